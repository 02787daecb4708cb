"""What a model endpoint is: its address and the bounds every call to it keeps. Values only, no I/O."""

from dataclasses import dataclass, field

from pydantic import SecretStr

from backend_kit.aio.retry import Retries

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
    deadlines: CallDeadlines = field(default_factory=CallDeadlines)
    retries: Retries = field(default_factory=Retries)
    """Only ever before the first token: shown text is never shown twice."""
    max_answer_chars: int = 200_000
    """An answer is ended here with finish_reason `length`."""
    coalesce: bool = True
    """Make one chunk of texts that arrived in one read: they have waited for the loop together. A token that comes
    alone is never held back. Off, a fast endless answer costs 2.4 KB of memory a token (langchain keeps each chunk)."""
    max_event_bytes: int = MIB
    """One SSE line or event above this is `llm_protocol`."""
    max_body_bytes: int = 8 * MIB
    """A non-streamed answer above this is `llm_protocol`."""
