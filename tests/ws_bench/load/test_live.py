"""What a run shows while it lasts."""

import asyncio
import io

import pytest

from tests.support.patience import PATIENCE_S
from ws_bench.load.live import LiveProgress, Progress, progress, progress_line


def at(elapsed_s: float = 5.0, done: int = 10, **more: object) -> Progress:
    values = {
        "total": 40,
        "active": 4,
        "in_flight": 3,
        "recent_ms": [30.0, 10.0, 20.0],
        "errors": {},
        "ends_at_s": None,
    }
    return progress(elapsed_s=elapsed_s, done=done, **{**values, **more})  # type: ignore[arg-type]


def test_time_left_is_told_by_the_plan_or_by_the_pace() -> None:
    assert at().left_s == 15.0
    assert at(ends_at_s=8.0).left_s == 3.0
    assert at(done=0).left_s is None
    assert at(total=0).left_s is None


def test_a_line_says_how_it_goes() -> None:
    assert progress_line(at(errors={"turn_timeout": 2})) == (
        "5s turns=10/40 active=4 in_flight=3 turns/s=0.6 p50=20ms p95=30ms errors: turn_timeout=2 left=15s"
    )
    assert "turns=10 active" in progress_line(at(total=0))


class Terminal(io.StringIO):
    """A terminal that keeps what it shows."""

    shown = None

    def __init__(self) -> None:
        super().__init__()
        self.drawn = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "turns in flight" in text:
            self.drawn.set()
        return super().write(text)


async def test_a_terminal_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    async with asyncio.TaskGroup() as group:
        showing = group.create_task(LiveProgress(at, stream=terminal).show_until_cancelled())
        await asyncio.wait_for(terminal.drawn.wait(), PATIENCE_S)
        showing.cancel()
    assert "10 of 40" in terminal.getvalue()
    assert "progress" in terminal.getvalue()
