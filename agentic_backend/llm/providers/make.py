"""LangChain's classes for the providers, made from settings. Their packages are imported when a model names them."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args

from langchain_core.language_models import BaseChatModel

from agentic_backend import settings
from agentic_backend.llm.endpoint import connections_of
from agentic_backend.llm.providers.faults import Translating
from agentic_backend.llm.providers.transport import client_arguments, timeout_of
from backend_kit.client.connections import Connections

_LOGGERS: Final = ("anthropic", "azure", "httpcore", "httpcore2", "httpx", "httpx2", "ollama", "openai")
_LEAST_SECRET: Final = 4
_MOST_SAID: Final = 300
_SCOPE: Final = "https://cognitiveservices.azure.com/.default"
Close = Callable[[], Awaitable[None]]


class ModelUnusable(ValueError):
    """A model whose class refuses its settings. The text holds none of their values."""


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """A model as its provider's package has it, what is known of that, and what has to be closed after it."""

    model: BaseChatModel
    ends_with_reason: bool
    limit_field: str = ""
    closes: tuple[Close, ...] = field(default=())


def make(configured: settings.ChatModel, limits: Connections) -> ProviderModel:
    """The model of a provider other than `openai`. Imports its package, which takes seconds: call it in a thread.

    Raises `ModelUnusable` for settings that the class refuses.
    """
    for name in _LOGGERS:
        # They log addresses, and some what they send and receive, including users' text.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    how = configured.settings
    arguments: dict[str, Any] = dict(how.options)
    if "temperature" in how.model_fields_set:
        arguments.setdefault("temperature", how.temperature)
    maker = _MAKERS.get(configured.provider, _untested)
    with Translating(partial(_refusal, configured), ModelUnusable):
        made = maker(configured, arguments, limits)
    known = {name for field_name, info in type(made.model).model_fields.items() for name in (field_name, info.alias)}
    for name in how.options.keys() - known:
        raise ModelUnusable(f"model {configured.name}: options: {type(made.model).__name__} has no {name}")
    return made


def try_models(configured: Iterable[settings.ChatModel]) -> None:
    """Make each model of another provider than `openai` once, without a loop. Raises `ModelUnusable`."""
    for model in configured:
        if model.provider != "openai":
            make(model, connections_of(model))


def _refusal(configured: settings.ChatModel, failure: Exception) -> ModelUnusable:
    """What a class refuses. The text of the refusal only where no value of the options stands in it."""
    said, values = str(failure), [str(value) for value in configured.settings.options.values()]
    errors = getattr(failure, "errors", None)
    if callable(errors):
        detail = errors(include_url=False, include_input=False, include_context=False)[0]
        said = ": ".join([*map(str, detail["loc"]), detail["msg"]])
    if any(len(value) >= _LEAST_SECRET and value in said for value in values):
        said = type(failure).__name__
    return ModelUnusable(f"model {configured.name}: {' '.join(said.split())[:_MOST_SAID]}")


def _init(provider: str, configured: settings.ChatModel, **arguments: Any) -> BaseChatModel:
    from langchain.chat_models import init_chat_model

    model = init_chat_model(configured.name, model_provider=provider, **arguments)
    assert isinstance(model, BaseChatModel), "a model was named"
    return model


def _openai_client(limits: Connections) -> tuple[Any, Any]:
    """An HTTP client for OpenAI's SDK, and its timeouts."""
    import httpx2
    from openai import DefaultAsyncHttpxClient

    return DefaultAsyncHttpxClient(**client_arguments(httpx2, limits)), timeout_of(httpx2, limits)


def _openai_arguments(limits: Connections) -> tuple[dict[str, Any], Any]:
    http, timeout = _openai_client(limits)
    arguments = {
        "http_async_client": http,
        "timeout": timeout,
        "max_retries": 0,
        "stream_usage": True,
        # Its timeout makes a task per token on Python 3.11; the calls have deadlines of their own.
        "stream_chunk_timeout": None,
        "http_socket_options": (),
        "cache": False,
    }
    return arguments, http


def _build_events() -> None:
    """Have the SDK's classes of events ready: it builds them when the first answer comes, in half a second of CPU."""
    from openai.types.responses import ResponseStreamEvent

    union, *_ = get_args(ResponseStreamEvent)
    for kind in get_args(union):
        kind.model_rebuild()


def _responses(configured: settings.ChatModel, options: dict[str, Any], limits: Connections) -> ProviderModel:
    _build_events()
    shared, http = _openai_arguments(limits)
    how = configured.settings
    model = _init(
        "openai",
        configured,
        base_url=how.base_url or "https://api.openai.com/v1",
        api_key=how.api_key.get_secret_value() if how.api_key else "none",
        use_responses_api=True,
        **shared,
        **options,
    )
    return ProviderModel(model, ends_with_reason=True, closes=(http.aclose,))


def _azure(configured: settings.ChatModel, options: dict[str, Any], limits: Connections) -> ProviderModel:
    shared, http = _openai_arguments(limits)
    closes: list[Close] = [http.aclose]
    how = configured.settings
    key = how.api_key.get_secret_value() if how.api_key else os.environ.get("AZURE_OPENAI_API_KEY")
    if not key:
        from azure.identity.aio import DefaultAzureCredential, get_bearer_token_provider

        credential = DefaultAzureCredential()
        closes.append(credential.close)
        shared["azure_ad_async_token_provider"] = get_bearer_token_provider(credential, _SCOPE)
    if how.base_url:
        shared["azure_endpoint"] = how.base_url
    options.setdefault("azure_deployment", configured.name)
    model = _init("azure_openai", configured, api_key=key or None, **shared, **options)
    return ProviderModel(model, ends_with_reason=True, closes=tuple(closes))


def _anthropic(configured: settings.ChatModel, options: dict[str, Any], limits: Connections) -> ProviderModel:
    import httpx2
    from anthropic import DefaultAsyncHttpxClient

    how = configured.settings
    if how.base_url:
        options["base_url"] = how.base_url
    if how.api_key:
        options["api_key"] = how.api_key.get_secret_value()
    model = _init("anthropic", configured, max_retries=0, cache=False, **options)
    http = DefaultAsyncHttpxClient(**client_arguments(httpx2, limits))
    # Its own client is shared by all models of the process, whichever their limits and their event loop.
    timeout = timeout_of(httpx2, limits)
    model._async_client = model._async_client.with_options(http_client=http, timeout=timeout)  # type: ignore[attr-defined]
    return ProviderModel(model, ends_with_reason=True, closes=(http.aclose,))


def _ollama(configured: settings.ChatModel, options: dict[str, Any], limits: Connections) -> ProviderModel:
    import httpx

    how = configured.settings
    arguments = client_arguments(httpx, limits)
    transport = httpx.AsyncHTTPTransport(limits=arguments.pop("limits"))
    if how.api_key:
        arguments["headers"]["Authorization"] = f"Bearer {how.api_key.get_secret_value()}"
    if how.base_url:
        options["base_url"] = how.base_url
    client = {**arguments, "transport": transport}
    model = _init("ollama", configured, async_client_kwargs=client, cache=False, **options)
    return ProviderModel(model, ends_with_reason=True, limit_field="num_predict", closes=(transport.aclose,))


def _untested(configured: settings.ChatModel, options: dict[str, Any], limits: Connections) -> ProviderModel:  # noqa: ARG001 - as the others
    """A provider whose class is handed its settings, and no more is known of it."""
    how = configured.settings
    if how.base_url:
        options["base_url"] = how.base_url
    if how.api_key:
        options["api_key"] = how.api_key.get_secret_value()
    if configured.provider != "bedrock_converse":
        options["max_retries"] = 0
    limit = "max_output_tokens" if configured.provider == "google_genai" else ""
    return ProviderModel(_init(configured.provider, configured, **options), ends_with_reason=False, limit_field=limit)


_MAKERS: Final = {
    "openai_responses": _responses,
    "azure_openai": _azure,
    "anthropic": _anthropic,
    "ollama": _ollama,
}
