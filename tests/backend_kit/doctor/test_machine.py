"""What a machine gives, beside what a service is configured for."""

from pathlib import Path

import pytest

from backend_kit.doctor.checks import Health
from backend_kit.doctor.machine import Machine, Wanted, look_at_machine

_GIB = 1 << 30
WANTED = Wanted(workers=2, files=12_000, files_of="limits.max_sockets", memory_mib=600)


def states(machine: Machine, wanted: Wanted = WANTED) -> list[Health]:
    return [finding.state for finding in look_at_machine(wanted, machine)]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(12_000, 2, _GIB), [Health.OK, Health.OK, Health.OK]),
        (Machine(11_999, 2, _GIB), [Health.SLOW, Health.OK, Health.OK]),
        (Machine(65_536, 1, _GIB), [Health.OK, Health.SLOW, Health.OK]),
        (Machine(65_536, 8, 599 << 20), [Health.OK, Health.OK, Health.SLOW]),
    ],
)
def test_less_than_is_configured_is_told(machine: Machine, expected: list[Health]) -> None:
    assert states(machine) == expected


def test_what_to_do_names_the_setting_and_the_figure() -> None:
    files, cores, memory = look_at_machine(WANTED, Machine(1024, 1, 1 << 20))
    assert files.figure == "1,024 may be open, 12,000 are configured (limits.max_sockets)"
    assert "ulimit -Hn 12000" in files.remedy
    assert cores.figure == "1 for 2 workers"
    assert "app.workers: auto" in cores.remedy
    assert memory.figure == "1 MiB, some 600 for what is configured"


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert Machine.here(limit).memory == 1 << 20
    limit.write_text("max\n")
    whole = Machine.here(limit).memory
    assert whole == Machine.here(tmp_path / "none").memory > 1 << 20
