"""What a model endpoint is: its address and the bounds every call to it keeps. Values only, no I/O."""

import random
from dataclasses import dataclass, field

from pydantic import SecretStr

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
class Retries:
    """When a call is tried again. Only ever before its first token: shown text is never shown twice."""

    max_retries: int = 2
    budget_s: float = 10.0
    """No retry starts later than this after the call's beginning."""
    base_s: float = 0.25
    cap_s: float = 4.0

    def delay_s(self, retries_done: int, retry_after_s: float | None) -> float:
        """The wait before the next attempt: full jitter over a doubling window, after what the server asked for."""
        window = min(self.cap_s, self.base_s * 2**retries_done)
        return (retry_after_s or 0.0) + random.uniform(0.0, window)  # noqa: S311 # spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class Connections:
    """Limits of the HTTP connections to the endpoints of one server. `max_connections` 0 means no limit.

    Idle connections are kept for `keepalive_s` unless `keepalive` is off: a new one for each call costs more CPU
    than the call's JSON.
    """

    max_connections: int = 0
    keepalive: bool = True
    keepalive_s: float = 30.0
    connect_s: float = 5.0
    pool_s: float = 10.0
    """How long a call waits for a free connection before it fails."""

    def __post_init__(self) -> None:
        if self.max_connections < 0 or min(self.keepalive_s, self.connect_s, self.pool_s) <= 0:
            raise ValueError("connection limits are positive; max_connections 0 means none")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model behind one OpenAI-compatible address. Equal endpoints share one client."""

    base_url: str
    """With the version, as the OpenAI clients want it: `http://host:port/v1`."""
    model: str
    api_key: SecretStr | None = None
    temperature: float | None = None
    deadlines: CallDeadlines = field(default_factory=CallDeadlines)
    retries: Retries = field(default_factory=Retries)
    max_answer_chars: int = 200_000
    """An answer is ended here with finish_reason `length`."""
    coalesce: bool = True
    """Make one chunk of texts that arrived in one read: they have waited for the loop together. A token that comes
    alone is never held back. Off, a fast endless answer costs 2.4 KB of memory a token (langchain keeps each chunk)."""
    max_event_bytes: int = MIB
    """One SSE line or event above this is `llm_protocol`."""
    max_body_bytes: int = 8 * MIB
    """A non-streamed answer above this is `llm_protocol`."""
