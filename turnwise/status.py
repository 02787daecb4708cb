"""What a start tells while it runs: turns per second, p95 and the bottleneck in the status line; in the log, what those
programs use that do not tell of themselves, and the launcher itself."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from backend_kit.processes import Family
from backend_kit.wire import loads
from turnwise.console import Console
from turnwise.first_turn import TOKEN
from turnwise.plan import ServicePlan
from turnwise.supervise import Child

WINDOW_S = 60
EVERY_S = 2.0
PLAIN_EVERY_S = 60.0
_ASK_S = 2.0
PROCESSES_EVERY_S: Final = 10.0
"""As often as the services write their summaries by default."""


async def show_status(console: Console, service: ServicePlan, log: Path) -> None:
    """Keep the line up to date until cancelled. Without a terminal: print a line a minute if there were turns."""
    last = ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as client:
        while True:
            figures = await _figures(client, service)
            if console.has_status_line:
                console.status(status_line(figures, service.origin, log))
            elif figures and figures != last:
                console.announce(figures)
            last = figures or ""
            await asyncio.sleep(EVERY_S if console.has_status_line else PLAIN_EVERY_S)


def status_line(figures: str | None, origin: str, log: Path) -> str:
    """The text of the line. `figures` is None if the service does not answer."""
    busy = "not answering" if figures is None else figures or "no turns in the last minute"
    return f" {origin}  {busy}  log {log}"


def describe(live: dict[str, Any]) -> str:
    """The figures of `/kpi/live` as text; empty if there were no turns."""
    steps = [step for step in live.get("steps", []) if isinstance(step, dict)]
    turns = sum(step.get("turns", 0) for step in steps)
    if not turns:
        return ""
    seconds = sum(step.get("window_s", 0.0) for step in steps)
    newest = next(step for step in reversed(steps) if step.get("turns"))
    p95 = (newest.get("turn_latency_ms") or {}).get("p95")
    parts = [f"{turns / max(seconds, 1.0):.2f} turns/s"]
    parts += [] if p95 is None else [f"p95 {p95:.0f} ms" if p95 < 1000 else f"p95 {p95 / 1e3:.2f} s"]
    parts += [f"bound by {newest['bound_by']}"] if newest.get("bound_by") else []
    return "  ".join(parts)


async def _figures(client: aiohttp.ClientSession, service: ServicePlan) -> str | None:
    url = f"{service.origin}{service.base_path}/kpi/live?window_s={WINDOW_S}"
    try:
        async with client.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            # With authentication the figures need an operator; an answer without them still shows that it is up.
            return describe(loads(await answer.read())) if answer.status == 200 else ""
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
    except (ValueError, TypeError, AttributeError):
        return ""  # an answer of unknown shape must not end the launcher


class ProcessLog:
    """Lines about programs and what they have started, such as the processes of Postgres: `name=postgres`."""

    def __init__(self, name: str, console: Console, running: Callable[[], Sequence[Child]]) -> None:
        """`name` is that of this process; `running` are the programs to tell of."""
        self._name = name
        self._console = console
        self._running = running
        self._families: dict[str, Family] = {name: Family(alone=True)}

    async def write_each(self, seconds: float = PROCESSES_EVERY_S) -> None:
        """Write the lines at this interval until cancelled."""
        while True:
            pids = {self._name: os.getpid()} | {one.name: one.pid for one in self._running() if one.pid is not None}
            await asyncio.to_thread(self._write_lines, pids)
            await asyncio.sleep(seconds)

    def _write_lines(self, pids: dict[str, int]) -> None:
        for name, pid in pids.items():
            family = self._families.get(name)
            if family is None or family.pid != pid:
                self._families[name] = Family(pid)  # it has figures from the next look on
            elif (line := family.line(name)) is not None:
                self._console.output(self._name, line)
