"""The parsing child: reads one job a line, answers one line each, within limits the kernel keeps.

Started by the pool as `python -m knowledge_flow_backend.ingest.worker MEMORY_MB PARENT_PID`. It holds no secret and no
connection, and it ends with its parent, with its stdin, at the memory limit, or when the pool kills it.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from types import TracebackType

from backend_kit.wire import dumps, loads
from knowledge_flow_backend.ingest.work import PARSERS, Job, Parse, run

EXIT_OUT_OF_MEMORY = 77
_MAX_OUTPUT_BYTES = 1 << 30
_MAX_OPEN_FILES = 64
_PR_SET_PDEATHSIG = 1
_NICE = 10
"""Lowers a child's priority for the processor: searches have callers who wait, files do not."""


def main(parsers: Mapping[str, Parse] = PARSERS) -> int:
    """Serve until the parent has no more work. Arguments: memory limit in MB, process id of the parent."""
    memory_mb, parent = (int(argument) for argument in sys.argv[1:3])
    sys.excepthook = _brief
    _end_with_parent(parent)
    _limit(memory_mb)
    os.nice(_NICE)
    # What a parser prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        for line in sys.stdin.buffer:
            began = time.process_time()
            answer = run(Job(**loads(line)), parsers)
            answers.write(dumps({**answer, "cpu_s": time.process_time() - began}) + b"\n")
    except MemoryError:
        # The remaining address space is fragmented: a new process serves the next file.
        return EXIT_OUT_OF_MEMORY
    return 0


def _limit(memory_mb: int) -> None:
    _lower(resource.RLIMIT_AS, memory_mb * 1024 * 1024)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, _MAX_OUTPUT_BYTES)
    _lower(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)


def _lower(kind: int, wanted: int) -> None:
    """Set a limit, or keep the lower one under which the service was started: raising that is refused."""
    _, hard = resource.getrlimit(kind)
    chosen = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (chosen, chosen))


def _end_with_parent(parent: int) -> None:
    """A service that was killed leaves no child behind, not even one in the middle of a file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent drains first
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def _brief(kind: type[BaseException], _value: BaseException, trace: TracebackType | None) -> None:
    """Say where it failed, and nothing of the text it failed on."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "start"
    sys.stderr.write(f"parsing child ends: {kind.__name__} at {where}\n")


if __name__ == "__main__":
    sys.exit(main())
