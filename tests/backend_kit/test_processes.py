"""What a process and those that it has started use, against what the processes themselves did."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from backend_kit.processes import Family, descendants, open_descriptors

pytestmark = pytest.mark.servers

FIGURES = r"cpu_pct=(\d+\.\d\d) rss_mb=\d+\.\d\d open_fds=(?:\d+|n/a) threads=\d+"
ONE = re.compile(rf"\[KPI\]\[PROCESS\] name=([\w.:-]+) pid=(\d+) {FIGURES}$")
ALL = re.compile(rf"\[KPI\]\[PROCESS\] name=([\w.:-]+) processes=(\d+) {FIGURES}$")

COMPUTES = """
import sys, time
for line in sys.stdin:
    until = time.process_time() + float(line)
    while time.process_time() < until:
        pass
    print("done", flush=True)
"""


@contextmanager
def program(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def compute(one: "subprocess.Popen[str]", seconds: float) -> None:
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.write(f"{seconds}\n")
    one.stdin.flush()
    assert one.stdout.readline() == "done\n"


class Clock:
    """Ten seconds between two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


def test_a_process_alone_has_no_lines() -> None:
    with program("-c", COMPUTES) as alone:
        compute(alone, 0.0)
        family = Family(alone.pid)
        assert family.lines() == []
        line = family.line("model")
        assert line is not None
        told = ALL.match(line)
        assert told is not None
        assert (told[1], told[2]) == ("model", "1")


def test_each_descendant_has_a_line_and_the_sum_keeps_what_ended_ones_used() -> None:
    family = Family(clock=Clock())
    with program("-c", COMPUTES) as child:
        compute(child, 0.1)
        *lines, whole = family.lines()
        told = {int(match[2]): float(match[3]) for line in lines if (match := ONE.match(line))}
        assert told[child.pid] >= 1.0  # 0.1 of 10 s
        everything = ALL.match(whole)
        assert everything is not None
        assert (everything[1], int(everything[2])) == ("all", len(lines) + 1)
        assert float(everything[3]) >= told[child.pid]
        compute(child, 0.2)
    ended = ALL.match(family.lines()[-1])
    assert ended is not None
    assert float(ended[3]) >= 2.0
    assert str(child.pid) not in " ".join(family.lines())


def test_one_that_has_ended_and_is_not_waited_for_counts_once() -> None:
    with program("-c", COMPUTES) as child:
        compute(child, 0.5)
        family = Family(clock=Clock())
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        looks = [family.lines()]
        child.wait()
        looks.append(family.lines())
    assert str(child.pid) not in " ".join(looks[0])
    for line in (lines[-1] for lines in looks):
        told = ALL.match(line)
        assert told is not None
        assert float(told[3]) < 5.0  # 0.5 of 10 s was before


def test_a_module_is_named_and_an_argument_is_not() -> None:
    family = Family()
    with program("-m", "timeit", "-s", "import sys", "-n", "1", "sys.stdin.read()", "the secret") as child:
        lines = {int(match[2]): match[1] for line in family.lines() if (match := ONE.match(line))}
        assert lines[child.pid] == "timeit"


@pytest.mark.parametrize("arguments", [("-c", COMPUTES), ("-W", "ignore", "-c", COMPUTES)])
def test_an_argument_of_a_program_that_looks_like_a_module_is_none(arguments: tuple[str, ...]) -> None:
    family = Family()
    with program(*arguments, "-m", "canary") as child:
        compute(child, 0.0)
        assert str(child.pid) in " ".join(lines := family.lines())
        assert "canary" not in " ".join(lines)


def test_a_process_alone_has_not_used_what_a_child_did_that_has_ended() -> None:
    with program("-c", COMPUTES) as child:
        compute(child, 0.0)
        alone, together = Family(alone=True, clock=Clock()), Family(clock=Clock())
        compute(child, 0.5)
    lines = alone.line("supervisor"), together.line("all")
    told = [ALL.match(line) for line in lines if line is not None]
    own, all_of_them = (float(one[3]) for one in told if one is not None)
    assert own < 5.0 <= all_of_them  # 0.5 s of 10


def test_descendants_of_descendants_are_found_and_those_of_nobody_are_none() -> None:
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTES!r}])"
    with program("-c", inner) as child:
        compute(child, 0.0)
        assert len(descendants(child.pid)) == 1
        assert set(descendants(child.pid)) < set(descendants(os.getpid()))
        assert Family(child.pid, alone=True).lines() == []
    assert descendants(child.pid) == []
    assert Family(child.pid).line("gone") is None


def test_descriptors_are_counted_without_the_one_that_lists_them() -> None:
    is_open = 0
    for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with suppress(OSError):
            os.fstat(number)
            is_open += 1
    assert open_descriptors(psutil.Process()) == is_open
    with program("-c", COMPUTES) as one:
        compute(one, 0.0)
        assert open_descriptors(psutil.Process(one.pid)) == len(list(Path(f"/proc/{one.pid}/fd").iterdir()))
