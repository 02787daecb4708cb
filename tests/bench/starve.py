"""Takes cores away from a process: by programs that compute beside it, or by the quota of a control group."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

_PERIOD_US: Final = 100_000
_GROUPS: Final = Path("/sys/fs/cgroup")
_HOG: Final = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
_NICE: Final = 10
"""Of the process beside hogs, so that the hogs need no right. A fair scheduler gives what mostly sleeps a core at once:
hogs of its own weight hardly delay it."""


class CannotStarve(Exception):
    """This machine does not let us; the message says why."""


@contextmanager
def crowded(pid: int, hogs: int) -> Iterator[None]:
    """Let a process and so many that compute share one core. Raises CannotStarve."""
    if not hasattr(os, "sched_setaffinity"):
        raise CannotStarve("this system pins no process")
    core = min(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
        os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists() and group.read_text() != Path("/proc/self/autogroup").read_text():
        group.write_text(str(_NICE))  # Linux weighs sessions first, and the threads of each against each other
    command = [sys.executable, "-c", _HOG, str(core)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(hogs)]
    try:
        for hog in running:
            assert hog.stdout is not None
            hog.stdout.readline()
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.communicate()


@contextmanager
def quota_of(cores: float) -> Iterator[Callable[[int], None]]:
    """What puts a process into a new control group that may use so many cores; leave it when the process has ended.

    Version 1 and 2. Raises CannotStarve.
    """
    quota_us = int(cores * _PERIOD_US)
    try:
        if (_GROUPS / "cpu" / "cgroup.procs").exists():
            group = Path(tempfile.mkdtemp(prefix="turnwise-bench-", dir=_GROUPS / "cpu"))
            limits = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
        elif "cpu" in _read(_GROUPS / "cgroup.subtree_control").split():
            group = Path(tempfile.mkdtemp(prefix="turnwise-bench-", dir=_GROUPS))
            limits = {"cpu.max": f"{quota_us} {_PERIOD_US}"}
        else:
            raise CannotStarve(f"no control groups of the CPU below {_GROUPS}")
    except OSError as failure:
        raise CannotStarve(f"no control group can be made: {failure.strerror}") from failure
    try:
        try:
            for name, value in limits.items():
                (group / name).write_text(value)
        except OSError as failure:
            raise CannotStarve(f"the group {group} takes no quota: {failure.strerror}") from failure
        yield partial(_join, group)
    finally:
        group.rmdir()


def _join(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def _read(file: Path) -> str:
    return file.read_text() if file.is_file() else ""
