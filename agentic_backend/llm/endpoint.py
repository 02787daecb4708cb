"""What a model endpoint is: its address and the bounds every call to it keeps. Values only, no I/O."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import SecretStr

from agentic_backend import settings
from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CallDeadlines:
    """How long a call may be silent, in seconds of the monotonic clock."""

    first_token_s: float = 30.0
    """From the call to its first token, retries and their waits included."""
    inter_token_s: float = 20.0
    """Between two tokens. SSE comments are not tokens: a kept-alive stall is still a stall."""
    answer_s: float = 60.0
    """From the call to the whole answer where it is not streamed."""

    def __post_init__(self) -> None:
        if min(self.first_token_s, self.inter_token_s, self.answer_s) <= 0:
            raise ValueError("a deadline is a positive number of seconds")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model behind one OpenAI-compatible address. Equal endpoints share one client."""

    base_url: str
    """With the version, as the OpenAI clients want it: `http://host:port/v1`."""
    model: str
    api_key: SecretStr | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    """Of an answer, reasoning included; None: as many as the server lets."""
    max_tokens_name: settings.MaxTokensName = "max_tokens"
    """What the server calls that."""
    deadlines: CallDeadlines = field(default_factory=CallDeadlines)
    retries: Retries = field(default_factory=Retries)
    """Only ever before the first token: shown text is never shown twice."""
    max_answer_chars: int = 200_000
    """An answer is ended here with finish_reason `length`."""
    max_reasoning_chars: int = 1_000_000
    """So is one whose reasoning is longer."""
    coalesce: bool = True
    """Make one chunk of texts that arrived in one read: they have waited for the loop together. A full loop reads less
    often (`Coalescer`); one with time holds back no token. Off, a fast endless answer costs 2.4 KB of memory a token
    (langchain keeps each chunk)."""
    max_event_bytes: int = MIB
    """One SSE line or event above this is `llm_protocol`."""
    max_body_bytes: int = 8 * MIB
    """A non-streamed answer above this is `llm_protocol`."""


_PROVIDER_URLS = {"openai": "https://api.openai.com/v1"}
_OPENAI_HOST = "api.openai.com"
_MAX_RETRIES = 2


def endpoint_of(model: settings.ChatModel, deadlines: settings.Deadlines) -> Endpoint:
    """The endpoint of a configured model.

    Streams have the deadlines of `deadlines`; `timeout.read` bounds a whole answer that is not streamed.
    `max_retries` counts up to 2: more would only add load where there is too much of it.
    """
    how = model.settings
    base_url = how.base_url or _PROVIDER_URLS.get(model.provider, "")
    return Endpoint(
        base_url=base_url,
        model=model.name,
        api_key=how.api_key,
        temperature=how.temperature,
        max_tokens=how.max_tokens,
        max_tokens_name=how.max_tokens_name or _max_tokens_at(base_url),
        deadlines=CallDeadlines(
            first_token_s=deadlines.first_token_s, inter_token_s=deadlines.inter_token_s, answer_s=how.timeout.read
        ),
        retries=Retries(max_retries=min(how.max_retries, _MAX_RETRIES)),
    )


def _max_tokens_at(base_url: str) -> settings.MaxTokensName:
    """OpenAI's newer models refuse the old name, most other servers do not know the new one."""
    return "max_completion_tokens" if urlsplit(base_url).hostname == _OPENAI_HOST else "max_tokens"


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
