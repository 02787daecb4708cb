"""Where the CPU of a process of Turnwise goes: its stacks, sampled by py-spy, by what a turn does and by library.

py-spy samples a process of this machine from outside, without stopping it.
"""

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ws_bench.errors import BenchError

_RATE = 500
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]+?)(?::\d+)?\)$")

DOES = (
    ("spool (thread)", ("spool/spool.py:_write_all",)),
    (
        "metrics, summary, lag (threads)",
        ("kpi/exposition.py:", "kpi/exposition.py:serve_until_closed", "kpi/summary.py:", "kpi/loop.py:watch"),
    ),
    ("batcher to Postgres", ("spool/batcher.py:",)),
    ("model: HTTP, chunks, messages", ("agentic_backend/llm/", "/aiohttp/")),
    ("answer: deltas to events", ("agent/answering.py:",)),
    ("graph", ("-packages/langgraph/", "agent/catalog.py:")),
    ("socket: frames out", ("chat/writer.py:", "chat/hub.py:")),
    ("turn: session, history, record", ("agentic_backend/session/", "agentic_backend/persist/")),
    ("door: its own shapes", ("agentic_backend/surfaces/", "backend_kit/mcp/", "/mcp/")),
    ("event stream out", ("chat/sse.py:_write", "chat/sse.py:_send_soon", "chat/series.py:_write")),
    ("socket: frames in; HTTP", ("/uvicorn/", "/starlette/", "/fastapi/", "agentic_backend/chat/")),
    ("lag probe, on the loop", ("kpi/loop.py:",)),
)
"""What a stack does: the first row of which a part stands in one of its frames."""

_LOOP = "asyncio/runners.py:run"
_LOOP_ITSELF = "event loop and its system calls"
ROOMS = ("agentic_backend", "knowledge_flow_backend", "backend_kit")


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames from the outermost inwards, each `file:function`, and in how many samples they were found.

    Of the loop's thread only what the loop called; empty where it was at work itself.
    """

    frames: tuple[str, ...]
    count: int


def find_spy() -> str | None:
    """The program py-spy: of this Python's environment, else of the path; None where there is none."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def record_stacks(spy: str, pid: int, form: str, path: Path, seconds: float) -> None:
    """Sample a process into a file: `raw` (collapsed stacks) or `flamegraph` (SVG). Blocks for that time.

    Raises `BenchError` with what to do where the kernel does not let it.
    """
    options = ["--rate", str(_RATE), "--format", form, "--output", str(path), "--duration", str(max(round(seconds), 1))]
    done = subprocess.run(  # noqa: S603 - py-spy itself, with arguments that are no text of others
        [spy, "record", "--pid", str(pid), "--nonblocking", "--full-filenames", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not path.exists():
        said = done.stderr.strip().splitlines()[-1:] or ["py-spy failed"]
        raise BenchError(
            f"{said[0]}; may py-spy look at process {pid}? Run as root, or set kernel.yama.ptrace_scope to 0"
        )


def parse(lines: Iterable[str]) -> list[Stack]:
    """The collapsed stacks as py-spy writes them: `function (file:line);… count`. Raises ValueError for other text."""
    stacks = []
    for line in lines:
        text, _, count = line.rpartition(" ")
        frames = []
        for frame in text.split(";"):
            found = _FRAME.match(frame)
            # "Class.method" or "method", by the version of Python.
            frames.append(f"{found['file']}:{found['function'].rpartition('.')[2]}" if found else frame)
            if frames[-1].endswith(_LOOP):
                frames.clear()
        stacks.append(Stack(tuple(frames), int(count)))
    return stacks


def does(stack: Stack) -> str:
    """What a turn is at in this stack."""
    if not stack.frames:
        return _LOOP_ITSELF
    for name, parts in DOES:
        if any(part in frame for part in parts for frame in stack.frames):
            return name
    return "other"


def library(stack: Stack) -> str:
    """Whose code runs: the package of the innermost frame, our own rooms by name."""
    if not stack.frames:
        return "uvloop"
    file = stack.frames[-1].rpartition(":")[0]
    if "/site-packages/" in file:
        return file.partition("/site-packages/")[2].split("/")[0].removesuffix(".py")
    for room in ROOMS:
        if f"/{room}/" in file:
            return room
    return "standard library"


def tables(stacks: Sequence[Stack], cpu_ms: float) -> list[str]:
    """What the process does, and whose code that is: two tables as lines. `cpu_ms` is the CPU of a turn."""
    by_work, by_library = Counter[str](), Counter[str]()
    for stack in stacks:
        by_work[does(stack)] += stack.count
        by_library[library(stack)] += stack.count
    return [*_table("what it does", by_work, cpu_ms), "", *_table("whose code", by_library, cpu_ms)]


def _table(title: str, of: Counter[str], cpu_ms: float) -> list[str]:
    """Rows by share, which add up to the CPU of a turn."""
    whole = of.total()
    rows = [f"{name:44} {count / whole:7.1%} {cpu_ms * count / whole:8.3f}" for name, count in of.most_common()]
    return [f"{title:44} {'share':>7} {'ms/turn':>8}", *rows]
