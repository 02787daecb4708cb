"""What the model client tells about its calls, and how `AgenticMetrics` takes it."""

from typing import Literal, Protocol

from agentic_backend.metrics import AgenticMetrics

CallStatus = Literal["ok", "error", "cancelled", "timeout"]


class LlmObserver(Protocol):
    """Called on the event loop, a few times a call, never per token. Must not block or raise."""

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        """From the call to its first token, retries included."""

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        """From the call to its end, whatever the end."""

    def llm_tokens(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """What the endpoint says it has read and written, where it says so."""


class Metered:
    """Calls become the `app_llm_*` series and KPI lines."""

    def __init__(self, metrics: AgenticMetrics) -> None:
        self._metrics = metrics

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        self._metrics.llm_first_chunk(model, "ok").observe(seconds)

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        self._metrics.llm_request(model, status).observe(seconds)

    def llm_tokens(self, model: str, input_tokens: int, output_tokens: int) -> None:
        self._metrics.llm_tokens(model, "input").inc(input_tokens)
        self._metrics.llm_tokens(model, "output").inc(output_tokens)


class Unobserved:
    """An observer for where nobody looks."""

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        pass

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        pass

    def llm_tokens(self, model: str, input_tokens: int, output_tokens: int) -> None:
        pass
