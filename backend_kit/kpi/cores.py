"""How long the loop had to wait for a core: by what Linux counts, and by the lateness of the monitor's own thread.

The wait of a thread in the run queue (`schedstat`) goes on while its group is throttled: the thread stays runnable. So
what a quota takes is a part of that wait and never added to it (docs/decisions/0088-starved-is-a-cause.md).
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from prometheus_client import Counter

from backend_kit.kpi.core import Kpi

_PROC: Final = Path("/proc")
_WAKE_S: Final = 0.001
"""A wake that is late by less was not kept from a core: a timer, and a core that sleeps, take that long."""
_LONGEST: Final = 4096


@dataclass(frozen=True, slots=True)
class Starvation:
    """Seconds since the start: of the loop's thread in the run queue and throttled, which exclude each other, and of
    the machine with any thread in a run queue, None where the system does not say."""

    run_queue_s: float = 0.0
    throttled_s: float = 0.0
    pressure_s: float | None = None

    @property
    def total_s(self) -> float:
        """What the loop's thread waited."""
        return self.run_queue_s + self.throttled_s


class CoreWaits:
    """Sees the waits of one event loop's thread for a core, from the monitor's thread, which makes and closes it.

    Where the kernel counts no waits by thread (no file, or zeros), a late wake of the monitor stands for them, less
    the CPU of this process meanwhile: what other threads of ours compute, or hold the GIL for, is nobody else's fault.
    The monitor sleeps on a timer, so that a call which blocks the loop without computing does not count.
    """

    def __init__(
        self, loop_thread: int, *, proc: Path = _PROC, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        """`loop_thread` is its `threading.get_ident()`."""
        self._cpu_clock = cpu_clock
        self._files = ExitStack()
        tasks = proc / "self" / "task"
        self._loop = self._open(tasks / str(_native_id(loop_thread)) / "schedstat", run_delay_s)
        self._mine = self._open(tasks / str(threading.get_native_id()) / "schedstat", run_delay_s)
        self._quotas = [self._open(path, throttled_s) for path in quota_files(proc)]
        self._pressure = self._open(proc / "pressure" / "cpu", pressure_s)
        self._loop_s = self._loop()
        self._both_s = self._sum_of_both()
        self._throttled_s = self._throttled()
        self._pressed_s = self._pressure()
        self._late_s = 0.0
        self._cpu_s = 0.0
        self._seen = Starvation(pressure_s=None if self._pressed_s is None else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def sleep_begins(self) -> None:
        """The monitor goes to sleep on a timer. Waits from before say nothing of its wake: 25 times a second."""
        self._both_s = self._sum_of_both()
        if self._both_s is None:
            self._cpu_s = self._cpu_clock()

    def waited(self, late_s: float) -> float:
        """How much of the lateness of its wake, in seconds, was a wait for a core: its own, or the loop's that held
        the GIL."""
        if late_s < _WAKE_S:
            return 0.0
        before, now = self._both_s, self._sum_of_both()
        self._both_s = now
        if before is not None and now is not None:
            return min(max(now - before, 0.0), late_s)
        late_s = max(late_s - (self._cpu_clock() - self._cpu_s), 0.0)
        self._late_s += late_s
        return late_s

    def look(self) -> Starvation:
        """Read the files. About once a second."""
        waited, self._late_s = self._late_s, 0.0
        loop_s = self._loop()
        if loop_s is not None and self._loop_s is not None:
            waited = max(loop_s - self._loop_s, 0.0)
        self._loop_s = loop_s
        throttled = self._throttled()
        # The group's, whose threads stand still on several cores at once: at most what the loop's thread waited.
        quota_s = min(max(throttled - self._throttled_s, 0.0), waited)
        self._throttled_s = throttled
        pressed = self._pressure()
        pressed_s = pressed - self._pressed_s if pressed is not None and self._pressed_s is not None else None
        seen = self._seen
        self._seen = Starvation(seen.run_queue_s + waited - quota_s, seen.throttled_s + quota_s, pressed_s)
        return self._seen

    def _sum_of_both(self) -> float | None:
        loop_s, mine_s = self._loop(), self._mine()
        return None if loop_s is None or mine_s is None else loop_s + mine_s

    def _throttled(self) -> float:
        return sum(read() or 0.0 for read in self._quotas)

    def _open(self, path: Path, parse: Callable[[str], float | None]) -> Callable[[], float | None]:
        """What reads a figure from a file that stays open, None whenever it is not there."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return lambda: None
        self._files.callback(os.close, file)

        def read() -> float | None:
            try:
                return parse(os.pread(file, _LONGEST, 0).decode())
            except (OSError, ValueError):  # the thread has ended; pressure is switched off
                return None

        return read


class Starved:
    """Adds up and publishes how long the loop waited for a core. On the monitor's thread; anybody may read.

    `waits` samples of what something that comes waits for one, `wait_s` in all: 25 a second, as of the lateness.
    """

    def __init__(self, kpi: Kpi, interval_s: float) -> None:
        """`interval_s` is between two samples."""
        self.seen = Starvation()
        self.waits = 0
        self.wait_s = 0.0
        self._interval = interval_s
        waits = Counter(
            "app_cpu_starved_seconds_total",
            "Time in which the loop's thread wanted a core and had none, as it waited its turn or was throttled.",
            ["kind"],
            registry=kpi.registry,
        )
        self._run_queue, self._throttled = (
            kpi.counter(f"cpu_starved_s|kind={kind}", waits.labels(kind)) for kind in ("run_queue", "throttled")
        )
        self._pressure = Counter(
            "app_cpu_pressure_seconds_total",
            "Time in which any thread of the machine waited for a core.",
            ["kind"],
            registry=kpi.registry,
        )

    def publish(self, seen: Starvation) -> None:
        """Count what has come since the last call. A monitor that was started again begins at 0, as its files do."""
        before, self.seen = self.seen, seen
        self._run_queue.inc(max(seen.run_queue_s - before.run_queue_s, 0.0))
        self._throttled.inc(max(seen.throttled_s - before.throttled_s, 0.0))
        if seen.pressure_s is not None:
            self._pressure.labels("some").inc(max(seen.pressure_s - (before.pressure_s or 0.0), 0.0))

    def take(self, waited: float, asleep_s: float) -> None:
        """Enter what the monitor waited after `asleep_s`, and what would have come meanwhile and waited with it."""
        times = max(round(asleep_s / self._interval), 1) if waited <= self._interval / 2 else 1
        while waited >= 0:
            self.waits += times
            self.wait_s += waited * times
            waited, times = waited - self._interval, 1


def run_delay_s(schedstat: str) -> float | None:
    """Seconds in the run queue from a thread's `schedstat`, None where the kernel does not count (zeros)."""
    ran, waited = schedstat.split()[:2]
    return int(waited) / 1e9 if int(ran) else None


def throttled_s(stat: str) -> float | None:
    """Seconds that a quota took, of both versions of a control group's `cpu.stat`, None where it has none."""
    fields = dict(line.split() for line in stat.splitlines())
    if "throttled_usec" in fields:
        return int(fields["throttled_usec"]) / 1e6
    return int(fields["throttled_time"]) / 1e9 if "throttled_time" in fields else None


def pressure_s(pressure: str) -> float | None:
    """Seconds in which some thread waited for a core, from a `pressure/cpu`."""
    some = next((line for line in pressure.splitlines() if line.startswith("some ")), "")
    total = next((field for field in some.split() if field.startswith("total=")), None)
    return int(total.removeprefix("total=")) / 1e6 if total is not None else None


def quota_files(proc: Path = _PROC) -> list[Path]:
    """The `cpu.stat` of the control groups whose quotas bound this process: its own and those above it, as far as they
    can be seen from here, of both versions. Empty where there are none."""
    try:
        groups = (proc / "self" / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    return [
        directory / "cpu.stat"
        for controllers, path in (line.split(":", 2)[1:] for line in groups if line.count(":") >= 2)
        for root, point in _mounts(mounts, controllers)
        for directory in _upwards(point, root, path)
        if (directory / "cpu.stat").is_file()
    ]


def _mounts(mountinfo: list[str], controllers: str) -> Iterator[tuple[str, Path]]:
    """(directory inside the hierarchy, where it is mounted) of that of version 2 (no controllers) or of `cpu`."""
    if controllers and "cpu" not in controllers.split(","):
        return
    for line in mountinfo:
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), [*after.split(), "", "", ""][:3]
        if kind == "cgroup2" if not controllers else kind == "cgroup" and "cpu" in options.split(","):
            yield fields[3], Path(fields[4])


def _upwards(point: Path, root: str, path: str) -> Iterator[Path]:
    """The group's directory and those above it, down to `point`: alone where the group is not below `root`, as in a
    container that sees its host's path but has only its own group mounted."""
    inside = Path(path)
    relative = inside.relative_to(root) if inside.is_relative_to(root) and ".." not in inside.parts else Path()
    directory = point / relative
    yield directory
    while directory != point:
        directory = directory.parent
        yield directory


def _native_id(thread: int) -> int | None:
    return next((one.native_id for one in threading.enumerate() if one.ident == thread), None)
