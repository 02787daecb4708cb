"""Whether this machine, or the container, gives a service what it is configured for."""

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.settings import usable_cores

_MIB: Final = 1 << 20
_MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_NO_LIMIT: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a service is configured for: its `workers`, descriptors of one of them, and roughly MiB of all. `files_of`
    are the settings that the descriptors come from."""

    workers: int
    files: int
    files_of: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is: descriptors that one process may open, cores, bytes of memory."""

    files: int
    cores: int
    memory: int

    @classmethod
    def here(cls, memory_limit: Path = _MEMORY_LIMIT) -> "Machine":
        """This one, as far as this process may use it. `memory_limit` is the file of cgroup v2."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a service raises its soft limit itself
        files = _NO_LIMIT if hard == resource.RLIM_INFINITY else hard
        return cls(files, usable_cores(), min(psutil.virtual_memory().total, _limit_in(memory_limit)))


def look_at_machine(wanted: Wanted, machine: Machine) -> list[Diagnosis]:
    """Open files, cores and memory."""
    return [_files(wanted, machine), _cores(wanted, machine), _memory(wanted, machine)]


def _files(wanted: Wanted, machine: Machine) -> Diagnosis:
    has = "no limit" if machine.files >= _NO_LIMIT else f"{machine.files:,} may be open"
    figure = f"{has}, {wanted.files:,} are configured ({wanted.files_of})"
    if machine.files >= wanted.files:
        return Diagnosis("open files", Health.OK, figure)
    remedy = f"ulimit -Hn {wanted.files} (LimitNOFILE=, nofile), or lower {wanted.files_of}: the last are refused"
    return Diagnosis("open files", Health.SLOW, figure, remedy)


def _cores(wanted: Wanted, machine: Machine) -> Diagnosis:
    figure = f"{wanted.workers} of {machine.cores} used by app.workers"
    if wanted.workers > machine.cores:
        figure = f"{machine.cores} for {wanted.workers} workers"
        return Diagnosis("cores", Health.SLOW, figure, "app.workers: auto, or more cores: workers take turns on them")
    return Diagnosis("cores", Health.OK, figure)


def _memory(wanted: Wanted, machine: Machine) -> Diagnosis:
    has = machine.memory // _MIB
    figure = f"{has:,} MiB, some {wanted.memory_mib:,} for what is configured"
    if has < wanted.memory_mib:
        remedy = "more memory (memory.max of the container), or fewer app.workers: the kernel kills what takes more"
        return Diagnosis("memory", Health.SLOW, figure, remedy)
    return Diagnosis("memory", Health.OK, figure)


def _limit_in(file: Path) -> int:
    try:
        said = file.read_text().strip()
    except OSError:
        return _NO_LIMIT
    return int(said) if said.isdigit() else _NO_LIMIT
