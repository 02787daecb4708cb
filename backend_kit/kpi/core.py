"""The observations of a process: each feeds the summary rollups, Prometheus and the ledger of the current turn."""

import re
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace
from operator import itemgetter
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import Final, Literal, NamedTuple, NotRequired, TypedDict

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge

from backend_kit.aio import Vigil
from backend_kit.kpi.activity import Activity
from backend_kit.kpi.exposition import TURN_BUCKETS, LegacyPhaseHistogram
from backend_kit.kpi.rollup import Rollup, Seen, Stats
from backend_kit.kpi.statements import StatementCounts

PHASES: Final = (
    "session_read", "agent_init", "history_restore", "llm_invoke", "llm_invoke_title", "vector_search",
    "vector_rerank", "kf_vector_search", "kf_vector_rerank", "answer_general_only", "answer_no_results",
    "answer_no_sources", "answer_with_sources", "stream_agent_response", "persist_tx", "stream_total", "session_list",
    "session_write", "history_get", "attachments_list_on_delete",
)  # fmt: skip
"""The phases of docs/contract.md#phases, on which readers of the summary depend: every process knows them."""

LEGACY_GAUGES: Final = ("persist_pool_wait_ms", "persist_sql_ms", "event_loop_lag_ms")
MAX_EXTRA_PHASES: Final = 160
_PHASE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")

MAX_ROWS: Final = 256
_CURRENT: ContextVar["Ledger | None"] = ContextVar("turnwise_ledger", default=None)
_NOTHING: Final = nullcontext()
_START_AND_DEPTH: Final = itemgetter("start_ms", "depth")
_LEAST_GAP_S: Final = 5e-5

Status = Literal["ok", "error", "cancelled", "timeout"]


class Timer:
    """Durations of one key in milliseconds: a summary rollup and a histogram in seconds, fed by one call."""

    __slots__ = ("_add", "_observe", "rollup")

    def __init__(self, child: Histogram | None) -> None:
        self.rollup = Rollup(kept=True)
        self._add = self.rollup.add
        self._observe = child.observe if child is not None else None

    def observe(self, ms: float) -> None:
        """Take a duration in milliseconds."""
        self._add(ms)
        if self._observe is not None:
            self._observe(ms * 1e-3)

    def observe_seconds(self, seconds: float) -> None:
        """Take a duration in seconds."""
        self._add(seconds * 1e3)
        if self._observe is not None:
            self._observe(seconds)

    def observe_traced(self, seconds: float, trace_id: str) -> None:
        """`observe_seconds` of something that was sent as a trace: an exemplar of its bucket leads to it."""
        self._add(seconds * 1e3)
        if self._observe is not None:
            self._observe(seconds, {"trace_id": trace_id})


class _Held(NamedTuple):
    """What a level has been `since` then, and its area over time until then. Set by one thread, read by any."""

    value: float
    since: float
    area: float

    @classmethod
    def of(cls, value: float, now: float, before: "_Held | None") -> "_Held":
        """It has this value from now on."""
        return cls(value, now, 0.0 if before is None else before.area + before.value * (now - before.since))


class Gauge:
    """Values of one key: a summary rollup of every value set, and a Prometheus gauge with the last.

    A `level` gauge describes a lasting state (open sockets), which each window begins with and whose average is over
    time: a value counts for as long as it lasts, however often it is set. Any other gauge is a stream of samples that
    count alike, and is omitted in a window without one.
    `child_scale` turns the key's unit into the Prometheus gauge's (1e-3 from milliseconds to seconds).
    """

    __slots__ = ("_child", "_clock", "_held", "_scale", "_told", "level", "rollup", "value")

    def __init__(
        self,
        child: PrometheusGauge | None,
        *,
        level: bool,
        child_scale: float = 1.0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.rollup = Rollup()
        self.level = level
        self.value: float | None = None
        self._child = child
        self._scale = child_scale
        self._clock = clock
        self._held: _Held | None = None
        self._told: _Held | None = None

    def set(self, value: float) -> None:
        """Take the new value."""
        self.value = value
        if self.level:
            self._held = _Held.of(value, self._clock(), self._held)
            if self._told is None:
                self._told = self._held
        self.rollup.add(value)
        if self._child is not None:
            self._child.set(value * self._scale)

    def take(self) -> Stats | None:
        """Figures of the window, which starts again: a level's with its current value; None where nothing is in it."""
        stats, began = self.rollup.take(), self._told
        if began is None:
            return stats
        ends = self._told = self._until_now()
        self.rollup.add(ends.value)
        if stats is None or ends.since <= began.since:
            return stats
        average = (ends.area - began.area) / (ends.since - began.since)
        return replace(stats, last=ends.value, total=average * stats.count)

    def _until_now(self) -> _Held:
        while True:  # another thread may set it between the two
            held, now = self._held, self._clock()
            if held is not None and held is self._held:
                return _Held.of(held.value, now, held)

    def inc(self, n: float = 1) -> None:
        """Raise the value by `n`, from 0 where none was set. From one thread only."""
        self.set((self.value or 0.0) + n)

    def dec(self, n: float = 1) -> None:
        """Lower the value by `n`. From one thread only."""
        self.set((self.value or 0.0) - n)


class Counter:
    """Increments of one key in the window, and the corresponding Prometheus counters."""

    __slots__ = ("_children", "rollup")

    def __init__(self, children: tuple[PrometheusCounter, ...]) -> None:
        self.rollup = Rollup()
        self._children = children

    def inc(self, n: float = 1) -> None:
        """Count `n` more."""
        self.rollup.add(n)
        for child in self._children:
            child.inc(n)


class Seconds:
    """A key's timer seen in seconds, for callers that hold perf_counter differences."""

    __slots__ = ("observe", "observe_traced")

    def __init__(self, timer: Timer) -> None:
        self.observe: Callable[[float], None] = timer.observe_seconds
        self.observe_traced: Callable[[float, str], None] = timer.observe_traced


class GaugedSeconds:
    """A wait whose compatible KPI name is a gauge in milliseconds and whose histogram is in seconds.

    The gauge may be one for several of these; `detail` takes what this one saw, in milliseconds.
    """

    __slots__ = ("_add", "_observe", "_set")

    def __init__(self, gauge: Gauge, child: Histogram, detail: Rollup) -> None:
        self._set = gauge.set
        self._observe = child.observe
        self._add = detail.add

    def observe(self, seconds: float) -> None:
        """Take a duration in seconds."""
        ms = seconds * 1e3
        self._set(ms)
        self._add(ms)
        self._observe(seconds)


class Amounts:
    """Sizes: their sum in the summary's counter, their distribution in a histogram."""

    __slots__ = ("_inc", "_observe")

    def __init__(self, counter: Counter, child: Histogram) -> None:
        self._inc = counter.inc
        self._observe = child.observe

    def observe(self, amount: float) -> None:
        """Take one size, in the histogram's unit."""
        self._inc(amount)
        self._observe(amount)


class _Series:
    """One phase: its timers by status, the one of `ok` at hand."""

    __slots__ = ("_bind", "_by_status", "_name", "ok")

    def __init__(self, name: str, bind: Callable[[str, Status], Timer]) -> None:
        self._name = name
        self._bind = bind
        self._by_status: dict[Status, Timer] = {}
        self.ok: Callable[[float], None] | None = None

    def timer(self, status: Status) -> Timer:
        timer = self._by_status.get(status)
        if timer is None:
            timer = self._by_status[status] = self._bind(self._name, status)
            if status == "ok":
                self.ok = timer.observe_seconds
        return timer


class LedgerRow(TypedDict):
    """One phase of a turn. Milliseconds; `start_ms` counts from the ask's arrival. `call`: which one of its phase it
    is, from 1 by start, where the ledger numbers that phase."""

    phase: str
    depth: int
    start_ms: float
    ms: float
    call: NotRequired[int]


class RowMark(NamedTuple):
    """What a row does not say: how its phase ended, and what it was done with, by name."""

    status: Status = "ok"
    about: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spent:
    """The token use of one model call of a turn. `at` is its end on the perf_counter clock; `cost` is in the currency
    of the price table, 0 if the model has no price. `cached_tokens` are a part of the input, `reasoning_tokens` one of
    the output."""

    at: float
    model: str
    input_tokens: int
    output_tokens: int
    cost: float
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Ledger:
    """Phases of one turn, in order of their start.

    `depth` is the number of phases open when the row's phase began, so rows of depth 0 never overlap, and what they
    leave of the turn is unattributed. Tasks of one turn share its ledger through their context; what runs side by
    side belongs inside a phase that waits for all of it. `current` names the phase entered last and still open, and
    `owner` the agent whose turn it is. `traceparent` goes out with the calls that the turn makes (W3C Trace Context).
    Rows beyond 256 are counted in `unattributed_ms` but not kept (`dropped_rows`).
    """

    __slots__ = (
        "_covered", "_marked", "_numbered", "_rows", "_timed", "current", "dropped_rows", "kpi", "open", "owner",
        "spent", "started", "traceparent",
    )  # fmt: skip

    def __init__(
        self,
        kpi: "Kpi",
        *,
        started: float | None = None,
        owner: str = "",
        numbered: Collection[str] = (),
        traceparent: str | None = None,
    ) -> None:
        """`started` is the ask's arrival on the perf_counter clock, now where absent; the rows of `numbered` phases say
        which call they are."""
        self.kpi = kpi
        self.owner = owner
        self._numbered = numbered
        self.traceparent = traceparent
        self.spent: list[Spent] = []
        self.started = perf_counter() if started is None else started
        self.current: str | None = None
        self.open = 0
        self.dropped_rows = 0
        self._covered = 0.0
        self._timed: list[tuple[str, int, float, float]] = []
        self._marked: dict[int, RowMark] = {}
        self._rows: list[LedgerRow] = []

    @contextmanager
    def activate(self) -> Iterator["Ledger"]:
        """Make this the ledger of the running task and of the tasks it starts."""
        token = _CURRENT.set(self)
        try:
            with self.kpi.activity:
                yield self
        finally:
            _CURRENT.reset(token)

    def add(
        self,
        phase: str,
        start: float,
        end: float,
        depth: int | None = None,
        status: Status = "ok",
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Enter a phase timed by other means; `start` and `end` on the perf_counter clock. Feeds no metric."""
        level = self.open if depth is None else depth
        if level == 0:
            self._covered += end - start
        if len(self._timed) < MAX_ROWS:
            if about is not None or status != "ok":
                self._marked[len(self._timed)] = RowMark(status, about or {})
            self._timed.append((phase, level, start, end))
        else:
            self.dropped_rows += 1

    def rows(self) -> list[LedgerRow]:
        """The finished phases by start, an outer phase before those inside it. The rows are the ledger's own."""
        rows = sorted(self._built(), key=_START_AND_DEPTH)
        if self._numbered:
            counts = dict.fromkeys(self._numbered, 0)
            for row in rows:
                if (name := row["phase"]) in counts:
                    row["call"] = counts[name] = counts[name] + 1
        return rows

    def marks(self) -> dict[int, RowMark]:
        """Those of the rows that have one, by the `id` of the row."""
        rows = self._built()
        return {id(rows[place]): mark for place, mark in self._marked.items()}

    def _built(self) -> list[LedgerRow]:
        # Each row is built once for history, frame, log and verdict: building them for each cost more than the timing.
        for phase, depth, start, end in self._timed[len(self._rows) :]:
            start_ms, ms = _milliseconds(start - self.started), _milliseconds(end - start)
            self._rows.append({"phase": phase, "depth": depth, "start_ms": start_ms, "ms": ms})
        return self._rows

    @contextmanager
    def name_gaps(self, name: str) -> Iterator[None]:
        """Time what no phase in the block covers: each gap of 50 us or more is a row and an observation of `name`."""
        before, dropped, begun = len(self._timed), self.dropped_rows, perf_counter()
        try:
            yield
        finally:
            ended = perf_counter()
            covered = sorted((start, end) for _, _, start, end in self._timed[before:])
            if self.dropped_rows == dropped:  # else what is not known to be covered may be
                covered_until = begun
                for start, end in [*covered, (ended, ended)]:
                    if start - covered_until >= _LEAST_GAP_S:
                        self.add(name, covered_until, start)
                        self.kpi.record_phase(name, start - covered_until)
                    covered_until = max(covered_until, end)

    def unattributed_ms(self, total_ms: float) -> float:
        """What the finished phases of depth 0 leave of a turn of `total_ms`; never below 0."""
        return max(total_ms - self._covered * 1e3, 0.0)


def _milliseconds(seconds: float) -> float:
    return int(seconds * 1e6 + 0.5) / 1e3  # a third of what round(…, 3) takes


def current_ledger() -> Ledger | None:
    """The ledger of the turn this code runs in, None outside a turn."""
    return _CURRENT.get()


def ledger_in(context: Context | None) -> Ledger | None:
    """The ledger of the turn that a task of this context runs in; for another thread."""
    return None if context is None else context.get(_CURRENT)


def phase(name: str, about: Mapping[str, str] | None = None) -> "PhaseTimer | nullcontext[None]":
    """Time a step of the current turn: `with phase("vector_search"): …`. Does nothing where no turn is current."""
    ledger = _CURRENT.get()
    return _NOTHING if ledger is None else ledger.kpi.phase(name, about)


class PhaseTimer:
    """Times a `with` block, also one that fails: in `__exit__`, monotonic clock, with how it ended as status.

    For one use: a new one for each entry, from `Kpi.phase`.
    """

    __slots__ = ("_about", "_depth", "_ledger", "_name", "_outer", "_series", "_start", "_timeouts")

    def __init__(
        self,
        name: str,
        series: _Series,
        ledger: Ledger | None,
        timeouts: tuple[type[BaseException], ...],
        about: Mapping[str, str] | None = None,
    ) -> None:
        self._about = about
        self._name = name
        self._series = series
        self._ledger = ledger
        self._timeouts = timeouts

    def __enter__(self) -> None:
        ledger = self._ledger
        if ledger is not None:
            self._depth = ledger.open
            self._outer = ledger.current
            ledger.open = self._depth + 1
            ledger.current = self._name
        self._start = perf_counter()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = perf_counter()
        start = self._start
        observe = self._series.ok
        status: Status = "ok"
        if exc_type is None and observe is not None:
            observe(end - start)
        else:
            status = _status(exc_type, self._timeouts)
            self._series.timer(status).observe_seconds(end - start)
        ledger = self._ledger
        if ledger is not None:
            ledger.open = still_open = ledger.open - 1
            # Tasks of one turn may end in another order than they began: the closed phase need not be the current one.
            ledger.current = self._outer if still_open else None
            ledger.add(self._name, start, end, self._depth, status, self._about)


def _status(exc_type: type[BaseException] | None, timeouts: tuple[type[BaseException], ...]) -> Status:
    if exc_type is None:
        return "ok"
    if issubclass(exc_type, (CancelledError, GeneratorExit)):
        return "cancelled"
    return "timeout" if issubclass(exc_type, timeouts) else "error"


class Kpi:
    """The observations of one process (or of one app in a test): built in the lifespan, handed around, no global.

    Every bound object it returns feeds the summary and Prometheus from one call, so the two cannot disagree. All of it
    may be used from any thread. Keys look like `name|label=value`; the same key returns the same object.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        service: str,
        legacy_ms_names: bool = False,
        phases: Iterable[str] = (),
        timeouts: tuple[type[BaseException], ...] = (),
        activity: Activity | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`phases` are names beyond PHASES; `timeouts` are exceptions that, as TimeoutError, end a phase as `timeout`;
        `activity` counts what else runs than turns; `clock` (seconds) says how long a level lasts.

        Raises ValueError for a phase name that is not `[a-z][a-z0-9_]*` or for more than 160 of them.
        """
        # The library's switch is global to the process; `_created` series would add half as many series for no use.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it without annotations
        self.registry = registry
        self.activity = activity or Activity()
        self.vigil = Vigil(registry)
        self.service = service
        self.legacy_ms_names = legacy_ms_names
        self.timers: dict[str, Timer] = {}
        self.gauges: dict[str, Gauge] = {}
        self.counters: dict[str, Counter] = {}
        self.details: dict[str, Rollup] = {}
        self.told_at_zero: list[str] = []
        """Names of counters whose 0 is worth a line of the summary: of what must not happen."""
        self.statements = StatementCounts()
        self.line_sources: list[Callable[[], Iterable[str]]] = []
        self.closing_lines: list[Callable[[], Iterable[str]]] = []
        self._clock = clock
        self._timeouts: tuple[type[BaseException], ...] = (TimeoutError, *timeouts)
        self._histogram = Histogram(
            "app_phase_latency_seconds",
            "Duration of a phase. Phases nest: never sum over them.",
            ["phase", "status"],
            buckets=TURN_BUCKETS,
            registry=registry,
        )
        self._series = {name: _Series(name, self._bind_phase) for name in PHASES}
        self._other = _Series("other", self._bind_phase)
        for name in phases:
            self.register_phase(name)
        self._legacy_gauges: dict[str, PrometheusGauge] = {}
        if legacy_ms_names:
            registry.register(LegacyPhaseHistogram(self._histogram, service))
            for name in LEGACY_GAUGES:
                self._legacy_gauges[name] = PrometheusGauge(name, "Last value, milliseconds.", registry=registry)

    def register_phase(self, name: str) -> None:
        """Let `name` be a phase of its own. At start, not per turn. Raises ValueError as the constructor does."""
        if name in self._series:
            return
        if not _PHASE_NAME.fullmatch(name):
            raise ValueError(f"phase name {name[:48]!r} is not [a-z][a-z0-9_]* of at most 48 characters")
        if len(self._series) >= len(PHASES) + MAX_EXTRA_PHASES:
            raise ValueError(f"no room for phase {name!r}: at most {MAX_EXTRA_PHASES} beyond the known ones")
        self._series[name] = _Series(name, self._bind_phase)

    def try_register_phase(self, name: str) -> bool:
        """Let `name` be a phase of its own if there is room for it. Raises ValueError for what is no name."""
        if name not in self._series and len(self._series) >= len(PHASES) + MAX_EXTRA_PHASES:
            return False
        self.register_phase(name)
        return True

    def phase(self, name: str, about: Mapping[str, str] | None = None) -> PhaseTimer:
        """Time a step: `with kpi.phase("history_restore"): …`. An unregistered name counts as `other`.

        `about` is what a trace says of it beyond its name: attributes that hold nothing of what a person wrote.
        Feeds the rollup `app.phase_latency_ms|phase=…`, `app_phase_latency_seconds` and the current turn's ledger.
        A deadline belongs inside the block: outside it, asyncio cancels the block, and that is its status.
        """
        return PhaseTimer(name, self._series.get(name) or self._other, _CURRENT.get(), self._timeouts, about)

    def status_of(self, failure: BaseException) -> Status:
        """How a phase ended that raised this, for `record_phase`."""
        return _status(type(failure), self._timeouts)

    def record_phase(self, name: str, seconds: float, status: Status = "ok") -> None:
        """Enter a phase timed by other means, in the rollup and the histogram but in no ledger."""
        (self._series.get(name) or self._other).timer(status).observe_seconds(seconds)

    def timer(self, name: str, histogram_child: Histogram | None = None) -> Timer:
        """The timer of key `name`; `histogram_child` is in seconds. First call for a key decides the child."""
        return self.timers.setdefault(name, Timer(histogram_child))

    def gauge(
        self, name: str, child: PrometheusGauge | None = None, *, level: bool = False, child_scale: float = 1.0
    ) -> Gauge:
        """The gauge of key `name`. Compatible names are bound to their Prometheus gauge automatically."""
        bound = child or self._legacy_gauges.get(name)
        return self.gauges.setdefault(name, Gauge(bound, level=level, child_scale=child_scale, clock=self._clock))

    def counter(self, name: str, *children: PrometheusCounter) -> Counter:
        """The counter of key `name`."""
        return self.counters.setdefault(name, Counter(children))

    def seconds(self, name: str, histogram_child: Histogram | None = None) -> Seconds:
        """`timer(name, histogram_child)`, observed in seconds."""
        return Seconds(self.timer(name, histogram_child))

    def gauged_seconds(self, name: str, histogram_child: Histogram, **labels: str) -> GaugedSeconds:
        """The gauge of key `name` (milliseconds) and a histogram in seconds, fed by one observation in seconds.

        `labels` are those of the child: the gauge has none of them, the distributions do.
        """
        key = name + "".join(f"|{label}={value}" for label, value in labels.items())
        return GaugedSeconds(self.gauge(name), histogram_child, self.details.setdefault(key, Rollup(kept=True)))

    def distributions(self) -> dict[str, Seen]:
        """The distribution of every timer and gauged wait since the start, in milliseconds, by key."""
        rollups = {key: timer.rollup for key, timer in list(self.timers.items())} | self.details.copy()
        found = {key: rollup.seen() for key, rollup in sorted(rollups.items())}
        return {key: seen for key, seen in found.items() if seen is not None and seen["count"]}

    def amounts(self, name: str, histogram_child: Histogram) -> Amounts:
        """The counter of key `name` and a histogram of the same unit, fed by one observation."""
        return Amounts(self.counter(name), histogram_child)

    def add_lines(self, source: Callable[[], Iterable[str]]) -> None:
        """Let an owner add lines to each summary (without the prefix); called in the summary thread."""
        self.line_sources.append(source)

    def add_closing_lines(self, source: Callable[[], Iterable[str]]) -> None:
        """Let an owner add complete lines to the end of each summary; called in the summary thread."""
        self.closing_lines.append(source)

    def _bind_phase(self, name: str, status: Status) -> Timer:
        suffix = "" if status == "ok" else f"|status={status}"
        return self.timer(f"app.phase_latency_ms|phase={name}{suffix}", self._histogram.labels(name, status))
