"""Groups of a run's options beyond the compatible flags, as frozen values, and how their texts are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ws_bench.config.arrivals import Stage, duration_of
from ws_bench.config.distributions import RandomVariable
from ws_bench.config.golang import parse_duration
from ws_bench.errors import UsageError

_GATE = re.compile(r"\s*([a-z_]+?)[:_](min|avg|p50|p95|p99|p999|max|rate|count|per_s)\s*(<=|>=|<|>)\s*(\S+)\s*")
_ALIASES = {"turn": "turn_latency", "latency": "turn_latency", "first_token": "ttft"}
TIMES = ("turn_latency", "response", "ttft", "gap", "connect", "session_create")
_COUNTS = ("errors", "not_sent")
_FORM = "such as turn_latency:p95<4000ms, ttft:p99<500ms, errors:rate<0.1%, turns:per_s>20"


@dataclass(frozen=True, slots=True)
class Cut:
    """What to leave out at one end of a run: `amount` in seconds, as a share of its length, or in turns."""

    kind: str = "seconds"
    amount: float = 0.0


NO_CUT = Cut()


@dataclass(frozen=True, slots=True)
class Load:
    """When turns begin: an open loop if there are stages, else a closed one for a number of turns or for a time."""

    stages: tuple[Stage, ...] = ()
    arrival: str = "constant"
    duration_s: float = 0.0
    """For a closed loop; 0: each client makes its number of turns."""
    think: RandomVariable | None = None
    expected_interval_s: float = 0.0
    warmup: Cut = NO_CUT
    cooldown: Cut = NO_CUT
    seed: int = 0

    @property
    def open(self) -> bool:
        """Whether turns arrive independently of the service."""
        return bool(self.stages)

    @property
    def planned_s(self) -> float:
        """For how long turns begin, in seconds; 0 if the number of turns decides."""
        return duration_of(self.stages) if self.stages else self.duration_s


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """Extra clients that behave as badly as real ones; their turns are in no percentile."""

    hangup_share: float = 0.0
    """Hang-ups per measured turn."""
    hangup_after_s: float | None = None
    """Seconds after the ask; None: at the first token."""
    reconnect: bool = False
    slow_share: float = 0.0
    slow_bytes_per_s: float = 0.0
    burst: int = 0
    burst_at_s: float = 0.0
    idle: int = 0

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.hangup_share or self.slow_share or self.burst or self.idle)


@dataclass(frozen=True, slots=True)
class Observe:
    """What to monitor besides the sockets. `postgres` may hold a password: it is never printed or stored."""

    metrics_urls: tuple[str, ...] = ()
    interval_s: float = 1.0
    postgres: str = field(default="", repr=False)
    pids: tuple[int, ...] = ()
    verdict: bool = False
    """Ask for the service's verdict where no metrics are read, too."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write (empty: not wanted), and how to show progress."""

    json: str = ""
    csv: str = ""
    html: str = ""
    markdown: str = ""
    live: bool = True
    live_interval_s: float = 0.0
    """0: one second on a terminal, five elsewhere."""
    progress: bool = False
    """Print progress as JSON lines on stdout and nothing else: a worker's report to its parent process."""

    def files(self) -> dict[str, str]:
        """Path of each wanted file by its flag."""
        named = {"json": self.json, "csv": self.csv, "html": self.html, "md": self.markdown}
        return {flag: path for flag, path in named.items() if path}


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition: a figure of a metric compared with a bound (milliseconds, a share of 1, a count, or a rate)."""

    text: str
    metric: str
    figure: str
    compare: str
    bound: float


@dataclass(frozen=True, slots=True)
class Gates:
    """What decides the exit code besides success."""

    thresholds: tuple[Gate, ...] = ()
    goodput: Mapping[str, float] = field(default_factory=dict)
    abort: bool = False


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


def parse_cut(text: str) -> Cut:
    """`10s`, `10%` of the run, or a number of turns. Raises `UsageError`."""
    body = text.strip()
    if re.fullmatch(r"\d+", body):
        return Cut("turns", int(body))
    if body.endswith("%"):
        return Cut("share", parse_percent(body))
    return Cut("seconds", parse_duration(body))


def parse_percent(text: str) -> float:
    """A share of 1 from `5%` or `0.05`. Raises `UsageError`."""
    body = text.strip()
    try:
        share = float(body.removesuffix("%")) / (100 if body.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"invalid share {text!r} (such as 5%)") from None
    if not 0 <= share <= 1:
        raise UsageError(f"invalid share {text!r}: it must be in 0..100%")
    return share


def parse_bytes(text: str) -> float:
    """Bytes of `2KB`, `1.5MB` or `800`; a trailing `/s` is allowed. Raises `UsageError`."""
    found = re.fullmatch(r"(\d+\.?\d*)(B|KB|MB)?(/s)?", text.strip())
    if found is None or float(found.group(1)) <= 0:
        raise UsageError(f"invalid size {text!r} (such as 2KB)")
    return float(found.group(1)) * {"KB": 1e3, "MB": 1e6}.get(found.group(2) or "B", 1.0)


def parse_slow_readers(text: str) -> tuple[float, float]:
    """Share of clients and bytes a second of `10%:2KB/s`. Raises `UsageError`."""
    share, colon, speed = text.partition(":")
    if not colon:
        raise UsageError(f"invalid slow readers {text!r} (such as 10%:2KB/s)")
    return parse_percent(share), parse_bytes(speed)


def parse_pids(text: str) -> tuple[int, ...]:
    """Process ids, separated by commas. Raises ValueError."""
    return tuple(int(item) for item in text.split(",") if item.strip())


def _bound(text: str, metric: str, bound: str) -> float:
    try:
        if metric in TIMES:
            return float(bound) if bound.replace(".", "", 1).isdigit() else parse_duration(bound) * 1000
        return float(bound[:-1]) / 100 if bound.endswith("%") else float(bound.removesuffix("/s"))
    except (ValueError, UsageError):
        raise UsageError(f"invalid bound in threshold {text!r} ({_FORM})") from None
