"""What blocked the event loop: the code that ran at each stall, counted by place, task, phase and agent."""

import asyncio
import gc
import sys
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Final

from backend_kit.aio.vigil import kind_of
from backend_kit.kpi.core import ledger_in

UNSEEN: Final = "unseen"
"""The place of a stall that ended before its stack was taken: barely long enough, or a call that kept the GIL."""
_STACK_FRAMES: Final = 15
_KEPT: Final = 100
_LIBRARY: Final = (str(Path(asyncio.__file__).parents[1]), "site-packages", "<frozen")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What ran on the loop at one moment: the kind of a task, never its name, which may contain an id.

    `phase` and `agent` are those of the turn's ledger, "" outside a turn.
    """

    place: str
    task: str
    phase: str
    agent: str
    stack: str


@dataclass(slots=True)
class Culprit:
    """All stalls of one place, kind of task, phase and agent since the start. Milliseconds."""

    seen: Sighting
    stalls: int = 0
    total_ms: float = 0.0
    worst_ms: float = 0.0
    last_at: float = field(default=0.0)


class Culprits:
    """Counts stalls by their cause; the first 100 culprits have separate lines, further ones share one.

    Written by the monitor's thread, read by any.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Culprit] = {}
        self._said: dict[tuple[str, ...], int] = {}

    def count(self, seen: Sighting | None, ms: float) -> None:
        """Enter an ended stall; `seen` is None if its stack was not taken in time."""
        seen = seen or Sighting(UNSEEN, "", "", "", "")
        key = (seen.place, seen.task, seen.phase, seen.agent)
        if key not in self._kept and len(self._kept) >= _KEPT:
            key = ("other", "", "", "")
        culprit = self._kept.setdefault(key, Culprit(seen))
        culprit.seen = seen
        culprit.stalls += 1
        culprit.total_ms += ms
        culprit.worst_ms = max(culprit.worst_ms, ms)
        culprit.last_at = perf_counter()

    def top(self, most: int = 20) -> list[Culprit]:
        """The culprits that blocked the loop longest in total, worst first."""
        return sorted(self._kept.copy().values(), key=lambda culprit: -culprit.total_ms)[:most]

    def lines(self) -> list[str]:
        """One line for each of the three worst culprits that were caught since the last call."""
        news = [(key, c) for key, c in list(self._kept.items()) if c.stalls > self._said.get(key, 0)]
        for key, culprit in news:
            self._said[key] = culprit.stalls
        return [
            f"stall place={key[0]} task={key[1] or 'none'} phase={key[2] or 'none'} agent={key[3] or 'none'} "
            f"count={c.stalls} total_ms={c.total_ms:.0f} max_ms={c.worst_ms:.0f}"
            for key, c in sorted(news, key=lambda item: -item[1].total_ms)[:3]
        ]


def sight(loop: asyncio.AbstractEventLoop, thread: int) -> Sighting:
    """What runs on the loop now, seen from another thread."""
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(thread)
    ledger = ledger_in(_context_of(task)) if task is not None else None
    return Sighting(
        place=_place(frame),
        task=kind_of(task.get_name()) if task is not None else "",
        phase=(ledger.current or "") if ledger is not None else "",
        agent=ledger.owner if ledger is not None else "",
        stack=_stack(frame),
    )


def _context_of(task: "asyncio.Task[object]") -> Context | None:
    if hasattr(task, "get_context"):  # Python 3.12
        context: Context = task.get_context()
        return context
    # Before that, only the garbage collector can find what a task refers to.
    return next((found for found in gc.get_referents(task) if isinstance(found, Context)), None)


def _place(frame: FrameType | None) -> str:
    """The innermost function outside libraries, else the innermost."""
    innermost = ""
    while frame is not None:
        file = frame.f_code.co_filename
        place = f"{'/'.join(file.rsplit('/', 2)[-2:])}:{frame.f_code.co_name}"
        if not any(part in file for part in _LIBRARY):
            return place
        innermost = innermost or place
        frame = frame.f_back
    return innermost or UNSEEN


def _stack(frame: FrameType | None) -> str:
    """The thread's stack, innermost call first, on one line."""
    places: list[str] = []
    while frame is not None and len(places) < _STACK_FRAMES:
        code = frame.f_code
        file = "/".join(code.co_filename.rsplit("/", 3)[-3:])
        places.append(f"{file}:{frame.f_lineno}:{code.co_name}")
        frame = frame.f_back
    return " < ".join(places)
