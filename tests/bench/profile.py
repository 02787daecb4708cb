"""Where the CPU of a turn goes: py-spy on the service under load, by what a turn does and by library.

Command: `make profile` (`ARGS="--calm"`: 8 turns a second instead of as many as fit; `--door chat`: through a door).
Writes a flame graph (SVG), which any browser opens, beside the collapsed stacks that the two tables are made of; the
rows of each add up to the whole.
py-spy samples from outside and does not stop the service; only threads that run are counted.
"""

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.deployment import Server, deployed
from tests.bench.doors import DOORS, NATIVE, checked, opened
from tests.bench.driver import Load
from tests.bench.measured import Sample, sample
from tests.bench.turn import CALM, RATE, SATURATED, print_stage, spoken_answer, started, with_ack

_WARM_S = 4.0
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
    ("graph", ("/langgraph/", "agent/catalog.py:")),
    ("socket: frames out", ("chat/socket.py:_write", "chat/hub.py:")),
    ("turn: session, history, record", ("agentic_backend/session/", "agentic_backend/persist/")),
    ("door: its own shapes", ("agentic_backend/surfaces/", "backend_kit/mcp/", "/mcp/")),
    ("event stream out", ("chat/sse.py:_write",)),
    ("socket: frames in; HTTP", ("/uvicorn/", "/starlette/", "/fastapi/", "agentic_backend/chat/")),
    ("lag probe, on the loop", ("kpi/loop.py:",)),
)
"""What a stack does: the first row of which a part stands in one of its frames."""

_LOOP = "asyncio/runners.py:run"
_LOOP_ITSELF = "event loop and its system calls"
_ROOMS = ("agentic_backend", "knowledge_flow_backend", "backend_kit")


@dataclass(frozen=True, slots=True)
class Stack:
    """Frames from the outermost inwards, each `file:function`, and in how many samples they were found.

    Of the loop's thread only what the loop called; empty where it was at work itself.
    """

    frames: tuple[str, ...]
    count: int


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
    for room in _ROOMS:
        if f"/{room}/" in file:
            return room
    return "standard library"


def print_table(title: str, of: Counter[str], sample_ms: float) -> None:
    """Rows by share; `sample_ms` is the CPU of a turn that all of it is."""
    whole = of.total()
    print(f"\n{title:44} {'share':>7} {'ms/turn':>8}")
    for name, count in of.most_common():
        print(f"{name:44} {count / whole:7.1%} {sample_ms * count / whole:8.3f}")


def tables(stacks: Sequence[Stack], cpu_ms: float) -> None:
    """Both tables."""
    by_work, by_library = Counter[str](), Counter[str]()
    for stack in stacks:
        by_work[does(stack)] += stack.count
        by_library[library(stack)] += stack.count
    print_table("what it does", by_work, cpu_ms)
    print_table("whose code", by_library, cpu_ms)


def record(pid: int, form: str, path: Path, seconds: float) -> None:
    """Run py-spy on a process. Raises SystemExit with what to do where the kernel does not let it."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"
    options = ["--rate", "500", "--format", form, "--output", str(path), "--duration", str(round(seconds))]
    done = subprocess.run(
        [spy, "record", "--pid", str(pid), "--nonblocking", "--full-filenames", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not path.exists():
        print(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "py-spy failed")
        raise SystemExit("py-spy may not look at the service: run as root, or set kernel.yama.ptrace_scope to 0")


def profiled(stage_sample: Sample, output: Path, stacks: Sequence[Stack]) -> None:
    """Say what was seen."""
    if not stacks:
        raise SystemExit("py-spy found no thread at work: the window was too short")
    print(f"{stage_sample.turns:.0f} turns, {stage_sample.cpu_ms:.2f} ms of CPU each, {output} is the flame graph")
    tables(stacks, stage_sample.cpu_ms)


def under_load(server: Server, load: Load, deployment: object, output: Path) -> tuple[Sample, list[Stack]]:
    """One window for the stacks, one for the flame graph, both within one load."""
    collapsed = output.with_suffix(".txt")
    failed: list[BaseException] = []

    def spy() -> None:
        try:
            record(server.process.pid, "raw", collapsed, load.seconds / 2)
            record(server.process.pid, "flamegraph", output, load.seconds / 2 - 1)
        except SystemExit as error:
            failed.append(error)

    watcher = threading.Timer(load.warm_s, spy)
    watcher.start()
    seen = sample(deployment, server, load)  # type: ignore[arg-type]
    watcher.join()
    if failed:
        raise failed[0]
    return seen, parse(collapsed.read_text().splitlines())


def main() -> int:
    """Profile one of our agents, through one of the doors, or a hosted graph; the exit code."""
    parser = argparse.ArgumentParser(prog="make profile", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calm", action="store_true", help=f"{RATE:.0f} turns a second, a token each 20 ms")
    parser.add_argument("--hosted", action="store_true", help="the graph of bench-turn, hosted, instead of our agent")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=Path("profile.svg"))
    parser.add_argument("--door", choices=sorted({*DOORS} - {NATIVE}), help="our agent through this door")
    chosen = parser.parse_args()
    case = CALM if chosen.calm else SATURATED
    load = Load(case.clients, chosen.seconds, _WARM_S, case.rate)
    with deployed() as deployment:
        print_stage()
        name = "hosted" if chosen.hosted else "ours"
        answer = spoken_answer(deployment, case.model)
        if chosen.door:
            service = deployment.service("doors", case.model, change=with_ack(deployment, "doors", "spool"))
            server = checked(opened(service, chosen.door), answer)
        else:
            server = started(deployment, name, case, "spool", answer)
        seen, stacks = under_load(server, load, deployment, chosen.output)
        profiled(seen, chosen.output, stacks)
        for failure in seen.failures[:3]:
            print(failure[:300])
    return 1 if seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
