"""Gates, which a run must pass to exit with 0, and goodput: the share of turns within their limits."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ws_bench.config.golang import figure
from ws_bench.config.options import TIMES, Gate
from ws_bench.record.results import Spread, TurnResult

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class GateResult:
    """The outcome of a gate; `value` is None if nothing was measured, and such a gate fails."""

    text: str
    value: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class Goodput:
    """Turns that met every limit: as a share of all turns that were planned, and per second of the steady window."""

    limits: str
    share: float
    turns_per_s: float | None


def check_gates(
    gates: Sequence[Gate], spreads: Mapping[str, Spread | None], counts: Mapping[str, float], total: int
) -> list[GateResult]:
    """Check each gate against the run. `counts` has errors, not_sent and, if there was a window, turns (a rate)."""
    results = []
    for gate in gates:
        value = _value(gate, spreads, counts, total)
        passed = value is not None and _OPERATORS[gate.compare](value, gate.bound)
        results.append(GateResult(gate.text, value, passed))
    return results


def goodput(limits: Mapping[str, float], results: Sequence[TurnResult], total: int, window_s: float) -> Goodput:
    """Count the turns that met every limit; a turn without a first token misses a limit on it."""
    good = sum(1 for result in results if result.ok and _is_good(result, limits))
    shown = " ".join(f"{name}<={figure(limit)}ms" for name, limit in limits.items())
    return Goodput(shown, good / total if total else 0.0, good / window_s if window_s > 0 else None)


def _is_good(result: TurnResult, limits: Mapping[str, float]) -> bool:
    values = {"turn_latency": result.latency_ms, "ttft": result.first_token_ms}
    return all((value := values[name]) is not None and value <= limit for name, limit in limits.items())


def _value(gate: Gate, spreads: Mapping[str, Spread | None], counts: Mapping[str, float], total: int) -> float | None:
    if gate.metric in TIMES:
        figures = spreads.get(gate.metric)
        value = getattr(figures, gate.figure, None) if figures is not None else None
        return value if value is None or math.isfinite(value) else None
    if gate.figure == "per_s":
        return counts.get("turns")
    count = counts[gate.metric]
    return count if gate.figure == "count" else (count / total if total else None)
