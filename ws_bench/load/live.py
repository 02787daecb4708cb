"""Progress of a running run on stderr: a live table on a terminal, a line at intervals elsewhere."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ws_bench.config.golang import format_duration, milliseconds
from ws_bench.record.results import percentile

if TYPE_CHECKING:
    from rich.table import Table

_TERMINAL_S = 1.0
_ELSEWHERE_S = 5.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment. `total` is 0 and `left_s` None while unknown."""

    elapsed_s: float
    done: int
    total: int
    active: int
    in_flight: int
    turns_per_s: float
    p50_ms: float
    p95_ms: float
    errors: dict[str, int]
    left_s: float | None


def progress(
    *,
    elapsed_s: float,
    done: int,
    total: int,
    active: int,
    in_flight: int,
    recent_ms: list[float],
    errors: dict[str, int],
    ends_at_s: float | None,
) -> Progress:
    """Progress computed from the counts. `recent_ms` are the latencies of the last ten seconds."""
    recent = sorted(recent_ms)
    left: float | None
    if ends_at_s is not None:
        left = max(ends_at_s - elapsed_s, 0.0)
    else:
        left = elapsed_s * (total - done) / done if done and total else None
    return Progress(
        elapsed_s=elapsed_s,
        done=done,
        total=total,
        active=active,
        in_flight=in_flight,
        turns_per_s=len(recent) / min(max(elapsed_s, 1e-9), 10.0),
        p50_ms=percentile(recent, 0.50),
        p95_ms=percentile(recent, 0.95),
        errors=errors,
        left_s=left,
    )


def progress_line(now: Progress) -> str:
    """Progress as one line."""
    errors = " ".join(f"{name}={count}" for name, count in now.errors.items()) or "none"
    left = "" if now.left_s is None else f" left={format_duration(round(now.left_s))}"
    of = f"/{now.total}" if now.total else ""
    return (
        f"{format_duration(round(now.elapsed_s, 1))} turns={now.done}{of} active={now.active} "
        f"in_flight={now.in_flight} turns/s={now.turns_per_s:.1f} p50={milliseconds(now.p50_ms)}ms "
        f"p95={milliseconds(now.p95_ms)}ms "
        f"errors: {errors}{left}"
    )


class LiveProgress:
    """Shows what `current` returns, until it is cancelled."""

    def __init__(
        self, current: Callable[[], Progress], *, interval_s: float = 0.0, stream: TextIO | None = None
    ) -> None:
        self._current = current
        self._stream = sys.stderr if stream is None else stream
        self._interval_s = interval_s

    async def show_until_cancelled(self) -> None:
        """Show progress until cancelled; on a terminal without `rich` as lines too."""
        if self._stream.isatty():
            with contextlib.suppress(ImportError):
                await self._table()
        await self._lines(self._interval_s or _ELSEWHERE_S)

    async def _lines(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            print(progress_line(self._current()), file=self._stream, flush=True)

    async def _table(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream)
        with Live(_table(self._current()), console=console, auto_refresh=False, transient=True) as shown:
            while True:
                shown.update(_table(self._current()), refresh=True)
                await asyncio.sleep(self._interval_s or _TERMINAL_S)


def _table(now: Progress) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table(title="ws_bench", show_header=False, title_justify="left")
    share = now.done / now.total if now.total else 0.0
    if now.left_s is not None and now.elapsed_s + now.left_s > 0:
        share = max(share, now.elapsed_s / (now.elapsed_s + now.left_s))
    table.add_row("progress", ProgressBar(total=1.0, completed=share, width=40))
    left = "?" if now.left_s is None else format_duration(round(now.left_s))
    table.add_row("elapsed / left", f"{format_duration(round(now.elapsed_s, 1))} / {left}")
    table.add_row("turns", f"{now.done} of {now.total or '?'}")
    table.add_row("clients active / turns in flight", f"{now.active} / {now.in_flight}")
    table.add_row("turns/s, last 10 s", f"{now.turns_per_s:.1f}")
    table.add_row("latency p50 / p95, last 10 s", f"{milliseconds(now.p50_ms)} / {milliseconds(now.p95_ms)} ms")
    for name, count in now.errors.items() or {"none": 0}.items():
        table.add_row(f"errors: {name}", str(count))
    return table
