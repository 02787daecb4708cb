"""The chat models: their servers, keys and names."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import SecretStr
from yarl import URL

from agentic_backend.settings import AgenticSettings, ChatModel
from backend_kit.doctor.checks import Check, Diagnosis, Health
from backend_kit.doctor.models import ModelKeys, ModelListing, bearer_key, look_at_address, look_at_models

_OPENAI: Final = "https://api.openai.com/v1"
_KEYS: Final = ModelKeys(
    "ai.*_chat_model.settings.base_url (OPENAI_BASE_URL)",
    "ai.*_chat_model.settings.api_key (OPENAI_API_KEY)",
    "ai.*_chat_model.name (OPENAI_MODEL)",
)
_OTHERS: Final = ModelKeys("settings.base_url of that model", "its settings.api_key", "its name")

Server = Callable[[URL, SecretStr | None], ModelListing]


def _anthropic(base: URL, key: SecretStr | None) -> ModelListing:
    secret = key.get_secret_value() if key else os.environ.get("ANTHROPIC_API_KEY", "")
    headers = {"x-api-key": secret, "anthropic-version": "2023-06-01"}
    models = base / "v1" / "models"
    return ModelListing(models, headers, one=lambda name: models / name)


def _ollama(base: URL, key: SecretStr | None) -> ModelListing:
    def names(body: Any) -> set[str]:
        listed = {one["name"] for one in body["models"]}
        return listed | {name.removesuffix(":latest") for name in listed}

    return ModelListing(base / "api" / "tags", bearer_key(key), names)


_SERVERS: Final[Mapping[str, tuple[str, Server, ModelKeys]]] = {
    "openai": (_OPENAI, ModelListing.of_openai, _KEYS),
    "openai_responses": (_OPENAI, ModelListing.of_openai, _KEYS),
    "anthropic": ("https://api.anthropic.com", _anthropic, _OTHERS),
    "ollama": ("http://127.0.0.1:11434", _ollama, _OTHERS),
}
"""By provider: where its models are without a `base_url`, how they are listed, and the settings that say all that."""


def model_checks(settings: AgenticSettings) -> list[Check]:
    """A check for each server that is called, with all models that are called there."""
    called = [one for model in settings.ai.called_models for one in model.endpoints]
    servers: dict[tuple[str, str, str], list[ChatModel]] = {}
    for model in called:
        key = model.settings.api_key
        secret = key.get_secret_value() if key else ""
        servers.setdefault((model.provider, model.settings.base_url or "", secret), []).append(model)
    return [_check(models) for models in servers.values()]


def _check(models: list[ChatModel]) -> Check:
    first = models[0]
    what = f"model {first.name}" + (f" and {len(models) - 1} more" if len({one.name for one in models}) > 1 else "")
    return Check(what, lambda: _look(what, models), "settings.base_url of that model: see what is there")


async def _look(what: str, models: list[ChatModel]) -> list[Diagnosis]:
    first = models[0]
    base = first.settings.base_url
    if first.provider not in _SERVERS:
        if base is None:
            return [Diagnosis(what, Health.NOT_USED, f"not examined: {first.provider} is asked by the first question")]
        return await look_at_address(what, URL(base), _OTHERS.url)
    default, server, keys = _SERVERS[first.provider]
    names = {one.name for one in models}
    return await look_at_models(what, server(URL(base or default), first.settings.api_key), names, keys)
