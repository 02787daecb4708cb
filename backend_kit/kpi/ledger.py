"""The ledger of one turn: which phase took how long, and what no phase accounts for."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypedDict

if TYPE_CHECKING:
    from backend_kit.kpi.core import Kpi, PhaseTimer

MAX_ROWS: Final = 256
_CURRENT: ContextVar["Ledger | None"] = ContextVar("turnwise_ledger", default=None)
_NOTHING: Final = nullcontext()
_START_AND_DEPTH: Final = itemgetter("start_ms", "depth")


class LedgerRow(TypedDict):
    """One phase of a turn. Milliseconds; `start_ms` counts from the ask's arrival."""

    phase: str
    depth: int
    start_ms: float
    ms: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What one model call of a turn has used. `at` is its end on the perf_counter clock; `cost` is in the currency of
    the price table, 0 where the model has no price."""

    at: float
    model: str
    input_tokens: int
    output_tokens: int
    cost: float


class Ledger:
    """Phases of one turn, in order of their start.

    `depth` is the number of phases open when the row's phase began, so rows of depth 0 never overlap, and what they
    leave of the turn is unattributed. Tasks of one turn share its ledger through their context; what runs side by
    side belongs inside a phase that waits for all of it. `current` names the phase entered last and still open, and
    `owner` the agent whose turn it is. Rows beyond 256 are counted in `unattributed_ms` but not kept (`dropped_rows`).
    """

    __slots__ = ("_covered", "_rows", "_timed", "current", "dropped_rows", "kpi", "open", "owner", "spent", "started")

    def __init__(self, kpi: "Kpi", *, started: float | None = None, owner: str = "") -> None:
        """`started` is the ask's arrival on the perf_counter clock, now where absent."""
        self.kpi = kpi
        self.owner = owner
        self.spent: list[Spent] = []
        self.started = perf_counter() if started is None else started
        self.current: str | None = None
        self.open = 0
        self.dropped_rows = 0
        self._covered = 0.0
        self._timed: list[tuple[str, int, float, float]] = []
        self._rows: list[LedgerRow] = []

    @contextmanager
    def activate(self) -> Iterator["Ledger"]:
        """Make this the ledger of the running task and of the tasks it starts."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    def add(self, phase: str, start: float, end: float, depth: int | None = None) -> None:
        """Enter a phase timed by other means; `start` and `end` on the perf_counter clock. Feeds no metric."""
        level = self.open if depth is None else depth
        if level == 0:
            self._covered += end - start
        if len(self._timed) < MAX_ROWS:
            self._timed.append((phase, level, start, end))
        else:
            self.dropped_rows += 1

    def rows(self) -> list[LedgerRow]:
        """The finished phases by start, an outer phase before those inside it. The rows are the ledger's own."""
        # Each row is made once, for history, frame, log and verdict: making them anew for each cost more than timing.
        for phase, depth, start, end in self._timed[len(self._rows) :]:
            start_ms, ms = _milliseconds(start - self.started), _milliseconds(end - start)
            self._rows.append({"phase": phase, "depth": depth, "start_ms": start_ms, "ms": ms})
        return sorted(self._rows, key=_START_AND_DEPTH)

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


def phase(name: str) -> "PhaseTimer | nullcontext[None]":
    """Time a step of the current turn: `with phase("vector_search"): …`. Does nothing where no turn is current."""
    ledger = _CURRENT.get()
    return _NOTHING if ledger is None else ledger.kpi.phase(name)
