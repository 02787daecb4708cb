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
    read_s: float | None = None
    """Without any byte of an answer, once the request is sent; None: the other deadlines are enough."""
    write_s: float | None = None
    """Without the server taking any more of a request; None: the same."""

    def __post_init__(self) -> None:
        given = (self.first_token_s, self.inter_token_s, self.answer_s, self.read_s, self.write_s)
        if any(deadline is not None and deadline <= 0 for deadline in given):
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
_CAP_S = 1.0
"""With waits that grow no further, the ten retries that the settings allow fit into the budget of a call."""


def endpoint_of(model: settings.ChatModel, deadlines: settings.Deadlines) -> Endpoint:
    """The endpoint of a configured model.

    Streams have the deadlines of `deadlines`, and that of `timeout.read` between two bytes where it is shorter: of a
    longer one a timer a read would only cost. It also bounds a whole answer that is not streamed.
    """
    how = model.settings
    base_url = how.base_url or _PROVIDER_URLS.get(model.provider, "")
    longest_s = max(deadlines.first_token_s, deadlines.inter_token_s)
    return Endpoint(
        base_url=base_url,
        model=model.name,
        api_key=how.api_key,
        temperature=how.temperature,
        max_tokens=how.max_tokens,
        max_tokens_name=how.max_tokens_name or _max_tokens_at(base_url),
        deadlines=CallDeadlines(
            first_token_s=deadlines.first_token_s,
            inter_token_s=deadlines.inter_token_s,
            answer_s=how.timeout.read,
            read_s=how.timeout.read if how.timeout.read < longest_s else None,
            write_s=how.timeout.write,
        ),
        retries=Retries(max_retries=how.max_retries, cap_s=_CAP_S),
    )


def _max_tokens_at(base_url: str) -> settings.MaxTokensName:
    """OpenAI's newer models refuse the old name, most other servers do not know the new one."""
    return "max_completion_tokens" if urlsplit(base_url).hostname == _OPENAI_HOST else "max_tokens"


def connections_of(model: settings.ChatModel) -> Connections:
    """The connection limits of a configured model."""
    limits, timeout = model.settings.http_client_limits, model.settings.timeout
    return Connections(
        max_connections=limits.max_connections,
        max_idle=limits.max_keepalive_connections,
        keepalive_s=limits.keepalive_expiry_seconds,
        connect_s=timeout.connect,
        pool_s=timeout.pool,
        read_s=timeout.read,
        write_s=timeout.write,
    )
