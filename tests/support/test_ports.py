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

_GIVES = """
import sys
from pathlib import Path
from tests.support.ports import Ports

ports = Ports(20_000, 60, Path(sys.argv[1]))
print(*(ports.block(1) for _ in range(15)), flush=True)
sys.stdin.read()
"""


@contextmanager
def given_elsewhere(file: Path) -> Iterator[set[int]]:
    """What another process gives, which ends after the block."""
    command = [sys.executable, "-c", _GIVES, str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield {int(port) for port in process.stdout.readline().split()}


def test_a_port_is_given_once_also_within_a_block(tmp_path: Path) -> None:
    ports = Ports(20_000, 60, tmp_path / "ports")
    given = [ports.block(1) for _ in range(8)]
    given += [port for first in (ports.block(6), ports.block(6)) for port in range(first, first + 6)]
    assert len(set(given)) == 20
    assert min(given) >= 20_000
    assert max(given) < 20_060


def test_processes_that_give_ports_at_once_give_none_twice(tmp_path: Path) -> None:
    with ExitStack() as stack:
        given = [stack.enter_context(given_elsewhere(tmp_path / "ports")) for _ in range(3)]
        assert [len(ports) for ports in given] == [15] * 3
        assert len(set.union(*given)) == 45
        assert Ports(20_000, 60, tmp_path / "ports").block(1) not in set.union(*given)


def test_what_a_process_was_given_is_free_when_it_has_ended(tmp_path: Path) -> None:
    with given_elsewhere(tmp_path / "ports") as theirs:
        assert len(theirs) == 15
    ports = Ports(20_000, 18, tmp_path / "ports")
    assert len({ports.block(3), ports.block(3)}) == 2


def test_what_was_given_long_ago_is_given_again(tmp_path: Path) -> None:
    ports = Ports(20_000, 6, tmp_path / "ports")
    given = [ports.block(1) for _ in range(60)]
    assert set(given) == set(range(20_000, 20_006))
    assert all(len(set(given[n : n + 3])) == 3 for n in range(58))


def test_the_ports_of_a_run_are_none_that_the_kernel_gives() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert all(20_000 <= free_port() < max(int(lowest), 22_000) for _ in range(50))
