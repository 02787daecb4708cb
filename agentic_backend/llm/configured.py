"""Settings to endpoints: which keys of the configuration bound a model call, and how."""

from agentic_backend import settings
from agentic_backend.llm.endpoint import CallDeadlines, Endpoint
from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections

_PROVIDER_URLS = {"openai": "https://api.openai.com/v1"}
_MAX_RETRIES = 2


def endpoint_of(model: settings.ChatModel, deadlines: settings.Deadlines) -> Endpoint:
    """The endpoint of a configured model.

    Streams have the deadlines of `deadlines`; `timeout.read` bounds a whole answer that is not streamed.
    `max_retries` counts up to 2: more would only add load where there is too much of it.
    """
    how = model.settings
    return Endpoint(
        base_url=how.base_url or _PROVIDER_URLS[model.provider],
        model=model.name,
        api_key=how.api_key,
        temperature=how.temperature,
        deadlines=CallDeadlines(
            first_token_s=deadlines.first_token_s, inter_token_s=deadlines.inter_token_s, answer_s=how.timeout.read
        ),
        retries=Retries(max_retries=min(how.max_retries, _MAX_RETRIES)),
    )


def connections_of(model: settings.ChatModel) -> Connections:
    """The connection limits of a configured model."""
    limits, timeout = model.settings.http_client_limits, model.settings.timeout
    return Connections(
        max_connections=limits.max_connections,
        keepalive=limits.max_keepalive_connections > 0,
        keepalive_s=limits.keepalive_expiry_seconds,
        connect_s=timeout.connect,
        pool_s=timeout.pool,
    )
