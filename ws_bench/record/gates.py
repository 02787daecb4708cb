"""Gates: what a run must hold to end with exit code 0, and the share of turns that was good enough."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ws_bench.errors import UsageError
from ws_bench.record.golang import figure, parse_duration
from ws_bench.record.results import Spread, TurnResult

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_GATE = re.compile(r"\s*([a-z_]+?)[:_](min|avg|p50|p95|p99|p999|max|rate|count|per_s)\s*(<=|>=|<|>)\s*(\S+)\s*")
_ALIASES = {"turn": "turn_latency", "latency": "turn_latency", "first_token": "ttft"}
TIMES = ("turn_latency", "response", "ttft", "gap", "connect", "session_create")
_COUNTS = ("errors", "not_sent")
_FORM = "such as turn_latency:p95<4000ms, ttft:p99<500ms, errors:rate<0.1%, turns:per_s>20"


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition: a figure of a metric against a bound (milliseconds, a share of 1, a count, or a rate)."""

    text: str
    metric: str
    figure: str
    compare: str
    bound: float


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate saw; `value` is None where nothing was measured, and such a gate fails."""

    text: str
    value: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class Goodput:
    """Turns that met every limit, as a share of all that were to be made, and per second of the steady window."""

    limits: str
    share: float
    turns_per_s: float | None


def parse_gate(text: str) -> Gate:
    """The gate of `METRIC:FIGURE<BOUND`. Raises `UsageError`."""
    found = _GATE.fullmatch(text)
    if found is None:
        raise UsageError(f"invalid threshold {text!r} ({_FORM})")
    metric, figure, compare, bound = found.groups()
    metric = _ALIASES.get(metric, metric)
    known = (
        (metric in TIMES and figure not in {"rate", "count", "per_s"})
        or (metric in _COUNTS and figure in {"rate", "count"})
        or (metric, figure) == ("turns", "per_s")
    )
    if not known:
        raise UsageError(f"invalid threshold {text!r}: no such figure ({_FORM})")
    return Gate(text.strip(), metric, figure, compare, _bound(text, metric, bound))


def parse_goodput(text: str) -> dict[str, float]:
    """Limits in milliseconds of `ttft:300ms turn:4s`. Raises `UsageError`."""
    limits: dict[str, float] = {}
    for item in text.replace(",", " ").split():
        name, colon, limit = item.partition(":")
        name = _ALIASES.get(name, name)
        if not colon or name not in {"turn_latency", "ttft"}:
            raise UsageError(f"invalid goodput limit {item!r} (such as ttft:300ms turn:4s)")
        limits[name] = parse_duration(limit) * 1000
    return limits


def check_gates(
    gates: Sequence[Gate], spreads: Mapping[str, Spread | None], counts: Mapping[str, float], total: int
) -> list[GateResult]:
    """Hold each gate against the run. `counts` has errors, not_sent and, where there was a window, turns."""
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


def _bound(text: str, metric: str, bound: str) -> float:
    try:
        if metric in TIMES:
            return float(bound) if bound.replace(".", "", 1).isdigit() else parse_duration(bound) * 1000
        return float(bound[:-1]) / 100 if bound.endswith("%") else float(bound.removesuffix("/s"))
    except (ValueError, UsageError):
        raise UsageError(f"invalid bound in threshold {text!r} ({_FORM})") from None


def _value(gate: Gate, spreads: Mapping[str, Spread | None], counts: Mapping[str, float], total: int) -> float | None:
    if gate.metric in TIMES:
        figures = spreads.get(gate.metric)
        value = getattr(figures, gate.figure, None) if figures is not None else None
        return value if value is None or math.isfinite(value) else None
    if gate.figure == "per_s":
        return counts.get("turns")
    count = counts[gate.metric]
    return count if gate.figure == "count" else (count / total if total else None)
