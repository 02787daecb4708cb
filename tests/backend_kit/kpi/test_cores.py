"""What the loop waited for a core: the kernel's files, what stands for them, and a real program that takes the core."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi, LoopMonitor
from backend_kit.kpi.cores import CoreWaits, Starvation, Starved, pressure_s, quota_files, run_delay_s, throttled_s
from backend_kit.kpi.loop import Senses
from tests.support.patience import PATIENCE_S

V1_STAT = "nr_periods 40\nnr_throttled 12\nthrottled_time 1500000000\nnr_bursts 0\nburst_time 0\n"
V2_STAT = "usage_usec 900\nuser_usec 600\nsystem_usec 300\nnr_periods 40\nnr_throttled 12\nthrottled_usec 2500000\n"
HOG = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


def test_the_kernel_s_figures_are_seconds() -> None:
    assert run_delay_s("389824695 610427419 194\n") == pytest.approx(0.610427419)
    assert throttled_s(V1_STAT) == 1.5
    assert throttled_s(V2_STAT) == 2.5
    assert pressure_s("some avg10=80.02 avg60=92.78 avg300=62.91 total=21913924\nfull avg10=0 total=1\n") == 21.913924


def test_what_the_kernel_does_not_count_is_no_figure() -> None:
    assert run_delay_s("0 0 0\n") is None
    assert throttled_s("usage_usec 900\nuser_usec 600\nsystem_usec 300\n") is None
    assert pressure_s("") is None


class Proc:
    """A /proc and control groups as files of a test. `thread` is both threads, the loop's and the monitor's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.thread = root / "self" / "task" / str(threading.get_native_id()) / "schedstat"
        self.groups: list[str] = []
        self.mounts: list[str] = ["21 1 0:20 / /proc rw,relatime - proc proc rw"]
        (root / "self").mkdir()

    def write(self, file: Path, text: str) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def hierarchy(self, group: str, mount: str) -> None:
        """A line of /proc/self/cgroup and one of mountinfo."""
        self.groups.append(group)
        self.mounts.append(mount)
        self.write(self.root / "self" / "cgroup", "\n".join(self.groups))
        self.write(self.root / "self" / "mountinfo", "\n".join(self.mounts))

    def waited(self, seconds: float) -> None:
        self.write(self.thread, f"1000 {int(seconds * 1e9)} 7\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def waits(proc: Proc, cpu_s: float = 0.0) -> CoreWaits:
    return CoreWaits(threading.get_ident(), proc=proc.root, cpu_clock=lambda: cpu_s)


def test_version_2_counts_its_group_and_those_above_it(proc: Proc, tmp_path: Path) -> None:
    point = tmp_path / "cgroup"
    own = proc.write(point / "system.slice" / "turnwise.service" / "cpu.stat", V2_STAT)
    above = proc.write(point / "system.slice" / "cpu.stat", V2_STAT)
    proc.write(point / "user.slice" / "cpu.stat", V2_STAT)
    proc.hierarchy("0::/system.slice/turnwise.service", f"31 23 0:28 / {point} rw - cgroup2 cgroup2 rw,nsdelegate")
    assert quota_files(proc.root) == [own, above]


def test_version_1_counts_the_hierarchy_of_the_cpu(proc: Proc, tmp_path: Path) -> None:
    point = tmp_path / "cpu,cpuacct"
    own = proc.write(point / "docker" / "abc" / "cpu.stat", V1_STAT)
    proc.write(tmp_path / "cpuset" / "docker" / "abc" / "cpu.stat", V1_STAT)
    proc.hierarchy("3:cpuset:/docker/abc", f"34 31 0:31 / {tmp_path / 'cpuset'} rw - cgroup cgroup rw,cpuset")
    proc.hierarchy("1:cpu,cpuacct:/docker/abc", f"32 31 0:29 / {point} rw - cgroup cgroup rw,cpu,cpuacct")
    assert quota_files(proc.root) == [own]


@pytest.mark.parametrize(
    ("path", "root"),
    [("/", "/"), ("/kubepods/pod1/abc", "/kubepods/pod1/abc"), ("/kubepods/pod1/abc", "/"), ("/../other", "/")],
    ids=["a namespace", "its group is mounted", "its host's path", "moved outside"],
)
def test_a_container_counts_the_group_that_it_sees(proc: Proc, tmp_path: Path, path: str, root: str) -> None:
    point = tmp_path / "cgroup"
    own = proc.write(point / "cpu.stat", V2_STAT)
    proc.hierarchy(f"0::{path}", f"31 23 0:28 {root} {point} ro - cgroup2 cgroup rw")
    assert quota_files(proc.root) == [own]


def test_without_files_there_is_no_group(proc: Proc) -> None:
    assert quota_files(proc.root) == []


def test_the_kernel_s_count_is_taken_from_the_start_on(proc: Proc) -> None:
    proc.waited(5.0)
    proc.write(proc.root / "pressure" / "cpu", "some avg10=1.00 total=7000000\n")
    with waits(proc) as cores:
        assert cores.look() == Starvation(pressure_s=0.0)
        proc.waited(5.5)
        proc.write(proc.root / "pressure" / "cpu", "some avg10=1.00 total=9000000\n")
        assert cores.look() == Starvation(run_queue_s=0.5, pressure_s=2.0)


def test_what_a_quota_takes_is_a_part_of_the_wait_and_counts_once(proc: Proc, tmp_path: Path) -> None:
    stat = proc.write(tmp_path / "cgroup" / "cpu.stat", V2_STAT)
    proc.hierarchy("0::/", f"31 23 0:28 / {stat.parent} ro - cgroup2 cgroup rw")
    proc.waited(0.0)
    with waits(proc) as cores:
        proc.waited(0.75)
        proc.write(stat, V2_STAT.replace("2500000", "3000000"))
        assert cores.look() == Starvation(run_queue_s=0.25, throttled_s=0.5)
        proc.waited(1.0)  # eight threads of the group stood still together
        proc.write(stat, V2_STAT.replace("2500000", "5000000"))
        seen = cores.look()
        assert seen == Starvation(run_queue_s=0.25, throttled_s=0.75)
        assert seen.total_s == 1.0


def test_a_late_wake_is_a_wait_as_far_as_the_kernel_counts_one(proc: Proc) -> None:
    proc.waited(0.0)
    with waits(proc) as cores:
        cores.sleep_begins()
        assert cores.waited(0.2) == 0.0  # late for another reason: a call on the loop held the GIL
        proc.waited(0.03)  # the file stands for both threads
        assert cores.waited(0.2) == pytest.approx(0.06)
        proc.waited(0.33)
        assert cores.waited(0.2) == 0.2
        assert cores.waited(0.0005) == 0.0


def test_a_wait_from_before_the_sleep_explains_no_late_wake(proc: Proc) -> None:
    proc.waited(0.0)
    with waits(proc) as cores:
        cores.sleep_begins()
        proc.waited(0.5)  # the loop's, while the monitor had a core
        assert cores.waited(0.0) == 0.0
        cores.sleep_begins()
        assert cores.waited(0.2) == 0.0  # a call on the loop held the GIL


@pytest.mark.parametrize("zeros", [False, True], ids=["no file", "zeros"])
def test_where_the_kernel_counts_nothing_a_late_wake_is_what_we_did_not_compute(proc: Proc, zeros: bool) -> None:
    if zeros:
        proc.write(proc.thread, "0 0 0\n")
    cpu = iter([1.0, 1.05, 2.0, 2.5])
    with CoreWaits(threading.get_ident(), proc=proc.root, cpu_clock=lambda: next(cpu)) as cores:
        cores.sleep_begins()
        assert cores.waited(0.2) == pytest.approx(0.15)
        cores.sleep_begins()
        assert cores.waited(0.2) == 0.0  # other threads of ours computed for longer
        assert cores.look().run_queue_s == pytest.approx(0.15)
        assert cores.look().total_s == pytest.approx(0.15)


def test_what_is_published_is_what_has_come_since(kpi: Kpi) -> None:
    starved = Starved(kpi, 0.04)
    starved.publish(Starvation(1.0, 0.5))
    starved.publish(Starvation(1.25, 0.75, 3.0))
    starved.publish(Starvation(1.25, 0.75, 4.0))
    value = kpi.registry.get_sample_value
    assert value("app_cpu_starved_seconds_total", {"kind": "run_queue"}) == 1.25
    assert value("app_cpu_starved_seconds_total", {"kind": "throttled"}) == 0.75
    assert value("app_cpu_pressure_seconds_total", {"kind": "some"}) == 4.0


def test_a_monitor_that_was_started_again_takes_nothing_back(kpi: Kpi) -> None:
    starved = Starved(kpi, 0.04)
    for seen in (Starvation(1.0, 0.5, 9.0), Starvation(0.25, 0.0, 0.0), Starvation(0.5, 0.25, 1.0)):
        starved.publish(seen)
    value = kpi.registry.get_sample_value
    assert value("app_cpu_starved_seconds_total", {"kind": "run_queue"}) == 1.25
    assert value("app_cpu_starved_seconds_total", {"kind": "throttled"}) == 0.75
    assert value("app_cpu_pressure_seconds_total", {"kind": "some"}) == 10.0


@pytest.mark.parametrize(
    ("waited", "asleep_s", "waits", "wait_s"),
    [(0.0, 0.04, 1, 0.0), (0.0, 0.5, 12, 0.0), (0.01, 0.04, 1, 0.01), (0.1, 0.04, 3, 0.1 + 0.06 + 0.02)],
    ids=["none", "at rest", "one", "a long one is met by those that come meanwhile"],
)
def test_samples_of_the_wait_are_those_of_a_fixed_rate(
    kpi: Kpi, waited: float, asleep_s: float, waits: int, wait_s: float
) -> None:
    starved = Starved(kpi, 0.04)
    starved.take(waited, asleep_s)
    assert (starved.waits, round(starved.wait_s, 9)) == (waits, round(wait_s, 9))


def without_counts(tmp_path: Path) -> Senses:
    return Senses(cores_of=lambda thread: CoreWaits(thread, proc=tmp_path))


@pytest.mark.servers
@pytest.mark.parametrize("counts", [True, False], ids=["as this kernel counts", "as no kernel counts"])
def test_a_program_on_its_core_starves_a_loop(tmp_path: Path, counts: bool) -> None:
    senses = Senses() if counts else without_counts(tmp_path)
    core = min(os.sched_getaffinity(0))
    monitor = LoopMonitor(Kpi(CollectorRegistry(), service="agentic"), notice=lambda _: None, senses=senses)

    async def live() -> None:
        seen, loop = asyncio.Event(), asyncio.get_running_loop()

        def work() -> None:
            """A little of it, again and again."""
            totals = monitor.totals()
            if min(totals.starved_s, totals.core_wait_s) >= 0.02:
                seen.set()
            else:
                loop.call_later(0.002, work)

        monitor.start()
        work()
        async with asyncio.timeout(PATIENCE_S):
            await seen.wait()
        monitor.close()

    def run() -> None:
        os.sched_setaffinity(0, {core})  # this thread, and the monitor's, which it starts
        asyncio.run(live())

    thread = threading.Thread(target=run)
    hogs = [subprocess.Popen([sys.executable, "-c", HOG, str(core)], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.readline()
        thread.start()
        thread.join()
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()
    totals = monitor.totals()
    assert min(totals.starved_s, totals.core_wait_s) >= 0.02
    assert totals.core_waits > 0
