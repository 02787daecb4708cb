"""No port is given twice: within a process, or by two that give ports at once."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.ports import Ports, free_port
from tests.support.processes import ROOT

pytestmark = pytest.mark.servers

_LOWEST = 19_000
"""Below those of a run: what is given here, the servers of other tests do not listen on."""
_GIVES = """
import sys
from pathlib import Path
from tests.support.ports import Ports

file, lowest, count, draws = sys.argv[1:]
ports = Ports(int(lowest), int(count), Path(file))
print(*(ports.block(1) for _ in range(int(draws))), flush=True)
sys.stdin.read()
"""


@contextmanager
def given_elsewhere(file: Path, count: int, draws: int) -> Iterator[set[int]]:
    """What another process gives of so many ports, which ends after the block."""
    command = [sys.executable, "-c", _GIVES, str(file), str(_LOWEST), str(count), str(draws)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield {int(port) for port in process.stdout.readline().split()}


def test_a_port_is_given_once_also_within_a_block(tmp_path: Path) -> None:
    ports = Ports(_LOWEST, 320, tmp_path / "ports")
    given = [ports.block(1) for _ in range(8)]
    given += [port for first in (ports.block(6), ports.block(6)) for port in range(first, first + 6)]
    assert len(set(given)) == 20
    assert min(given) >= _LOWEST
    assert max(given) < _LOWEST + 320


def test_processes_that_give_ports_at_once_give_none_twice(tmp_path: Path) -> None:
    with ExitStack() as stack:
        given = [stack.enter_context(given_elsewhere(tmp_path / "ports", 320, 20)) for _ in range(4)]
        assert [len(ports) for ports in given] == [20] * 4
        assert len(set.union(*given)) == 80
        mine = Ports(_LOWEST, 320, tmp_path / "ports")
        assert not {mine.block(1) for _ in range(1000)} & set.union(*given)


def test_processes_that_were_given_many_leave_some_to_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(given_elsewhere(tmp_path / "ports", 48, 100))
        mine = Ports(_LOWEST, 48, tmp_path / "ports")
        assert len({mine.block(1) for _ in range(1000)}) == 48 - 3 * 3


def test_what_a_process_was_given_is_free_when_it_has_ended(tmp_path: Path) -> None:
    with given_elsewhere(tmp_path / "ports", 48, 3) as theirs:
        assert len(theirs) == 3
    ports = Ports(_LOWEST, 48, tmp_path / "ports")
    assert theirs < {ports.block(1) for _ in range(3000)}


def test_what_was_given_long_ago_is_given_again(tmp_path: Path) -> None:
    ports = Ports(_LOWEST, 48, tmp_path / "ports")
    given = [ports.block(1) for _ in range(3000)]
    assert len(set(given)) == 48
    assert all(len(set(given[n : n + 4])) == 4 for n in range(len(given) - 3))


def test_where_all_are_taken_that_is_said(tmp_path: Path) -> None:
    with given_elsewhere(tmp_path / "ports", 16, 1), pytest.raises(RuntimeError, match="no 16 free ports in a row"):
        Ports(_LOWEST, 16, tmp_path / "ports").block(16)


def test_the_ports_of_a_run_are_none_that_the_kernel_gives() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert all(20_000 <= free_port() < max(int(lowest), 22_000) for _ in range(50))
