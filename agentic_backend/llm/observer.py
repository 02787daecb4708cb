"""What the model client tells about its calls, and how `AgenticMetrics` takes it."""

from collections.abc import Iterable
from time import perf_counter
from typing import Final, Literal, NamedTuple, Protocol

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.settings import ModelPrice
from backend_kit.kpi import Spent, current_ledger

METERED: Final = "turnwise_metered"
"""In the `metadata` of a chat model that tells an `LlmObserver` of its calls itself: nobody else is to count them."""
CallStatus = Literal["ok", "error", "cancelled", "timeout"]


class TokenUse(NamedTuple):
    """Tokens of one model call. `cached_tokens` are those of the input that were read from the endpoint's cache,
    `reasoning_tokens` those of the output that were reasoning."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class LlmObserver(Protocol):
    """Called on the event loop, a few times a call, never per token. Must not block or raise."""

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        """From the call to its first token, retries included."""

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        """From the call to its end, whatever the end."""

    def llm_tokens(self, model: str, use: TokenUse) -> None:
        """What the endpoint says it has read and written, where it says so."""


class Metered:
    """Calls become the `app_llm_*` series and KPI lines, and what they used stands in the turn's ledger."""

    def __init__(self, metrics: AgenticMetrics, prices: Iterable[ModelPrice] = ()) -> None:
        """`prices` by model; one without costs nothing."""
        self._metrics = metrics
        self._prices = {price.model: price for price in prices}

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        self._metrics.llm_first_chunk(model, "ok").observe(seconds)

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        self._metrics.llm_request(model, status).observe(seconds)

    def llm_tokens(self, model: str, use: TokenUse) -> None:
        cost = self._cost(model, use)
        self._metrics.llm_tokens(model, "input").inc(use.input_tokens)
        self._metrics.llm_tokens(model, "output").inc(use.output_tokens)
        # Parts of the former, and of most models none: no series where there is nothing to tell.
        if use.cached_tokens:
            self._metrics.llm_tokens(model, "cached").inc(use.cached_tokens)
        if use.reasoning_tokens:
            self._metrics.llm_tokens(model, "reasoning").inc(use.reasoning_tokens)
        if cost:
            self._metrics.llm_cost(model).inc(cost)
        ledger = current_ledger()
        if ledger is not None:
            input_tokens, output_tokens, *parts = use
            ledger.spent.append(Spent(perf_counter(), model, input_tokens, output_tokens, cost, *parts))

    def _cost(self, model: str, use: TokenUse) -> float:
        price = self._prices.get(model)
        if price is None:
            return 0.0
        new, cached = price.input_per_million, price.cached_input_per_million
        read = (use.input_tokens - use.cached_tokens) * new + use.cached_tokens * (new if cached is None else cached)
        return (read + use.output_tokens * price.output_per_million) / 1e6


class Unobserved:
    """An observer for where nobody looks."""

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        pass

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        pass

    def llm_tokens(self, model: str, use: TokenUse) -> None:
        pass
