"""The status line: turns per second, p95, the bottleneck, and where the page and the log are."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from backend_kit.wire import loads
from turnwise.console import Console
from turnwise.first_turn import TOKEN
from turnwise.plan import ServicePlan

WINDOW_S = 60
EVERY_S = 2.0
PLAIN_EVERY_S = 60.0
_ASK_S = 2.0


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
