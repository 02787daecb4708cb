"""Values as Go's flag and fmt packages read and write them: durations and booleans."""

import re

from ws_bench.errors import UsageError

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `90s`, `2m27.81s` or `0`. Raises `UsageError`; below zero is refused too."""
    body = text.removeprefix("+")
    if body == "0":
        return 0.0
    terms = list(_TERM.finditer(body))
    if not terms or "".join(term.group(0) for term in terms) != body:
        raise UsageError(f"invalid duration {text!r} (such as 90s, 1m30s, 250ms)")
    return sum(float(term.group(1)) * _UNIT_NS[term.group(2)] for term in terms) / 1e9


def format_duration(seconds: float) -> str:
    """A duration rounded to whole milliseconds, half away from zero, as Go prints it: `31.816s`, `2m27.81s`."""
    millis = int(seconds * 1000 + 0.5)
    if millis == 0:
        return "0s"
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    tail = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".") + "s"
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes_left}m{tail}"
    return f"{minutes_left}m{tail}" if minutes_left else tail


def figure(value: float) -> str:
    """A number as a person reads it: at most three decimals, an exponent only below a thousandth."""
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:g}"


def milliseconds(value: float) -> str:
    """A time at a glance: whole milliseconds, and a decimal below ten, so that a fast answer is not one of 0 ms."""
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def parse_bool(text: str) -> bool:
    """A Go boolean: `1 t T true TRUE True` and their opposites. Raises `UsageError`."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise UsageError(f"invalid boolean {text!r} (true or false)")


def format_bool(value: bool) -> str:
    """`true` or `false`."""
    return "true" if value else "false"
