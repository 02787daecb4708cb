"""Headline scenarios about time and memory: what a turn has above the model's own, alone and under everything."""

import shutil
import time
from dataclasses import dataclass

from tests.bench.deployment import Server, cpu_s, rss_mb
from tests.bench.disk import Flushes, Probe, busy_disk
from tests.bench.driver import Load
from tests.bench.headline_stage import Stage, first_s, late_ms, slow_model
from tests.bench.measured import FOREIGN, Percentiles, Sample, Series, above

BEYOND_DISK_MS = 30.0
QUIET_MS = 17.0
QUIET_DISK_MS = 5.0
"""Up to this p95 of fdatasync, with nobody else on the service's core, a machine is quiet."""
CROWD_P95_MS = 250.0
CROWD_RSS_MB, RESTED_RSS_MB = 300.0, 230.0
IDLE_PCT = 0.3
TOKENS, GAP_MS = 50, 50.0
SHORT_GAP_MS = 15.0
FLUSH_S = 0.02
SLOW_DISK_P95_MS = 50.0
WHOLE_TOKENS = 21


def floor(stage: Stage) -> None:
    """Whole messages on a slow model: alone, beside a neighbour on the disk, and in the way of the system before."""
    size, verdicts = stage.size, stage.verdicts
    what = f"{size.clients} clients, {size.floor_s:g} s model"
    model = slow_model(size.floor_s, WHOLE_TOKENS)
    server = stage.service("floor", model, WHOLE_TOKENS, native=False)
    seen, disk = _on_the_floor(stage, server, size.turns)
    spent = _told(what, seen, size.floor_s, disk)
    verdicts.hold(f"{what}: failed turns", len(seen.failures), 0, "turns")
    bound = BEYOND_DISK_MS * size.slack + disk.p95_ms
    verdicts.hold(f"{what}: p95 above the floor (30 + fdatasync p95)", spent.p95, bound, "ms")
    verdicts.tell(f"{what}: p99 above the floor", spent.p99, "ms")
    if is_quiet(seen, disk):
        verdicts.hold(f"{what}: the same p95, quiet machine", spent.p95, QUIET_MS * size.slack, "ms")

    with busy_disk(stage.deployment.work):
        seen, disk = _on_the_floor(stage, server, size.few_turns)
    beside = f"{what}, neighbour writing to the disk"
    spent = _told(beside, seen, size.floor_s, disk)
    verdicts.hold(f"{beside}: failed turns", len(seen.failures), 0, "turns")
    bound = BEYOND_DISK_MS * size.slack + disk.p95_ms
    verdicts.hold(f"{beside}: p95 above the floor (30 + fdatasync p95)", spent.p95, bound, "ms")
    server.process.stop()

    server = stage.answering(stage.deployment.comparator("original_like", model, "original_floor"), WHOLE_TOKENS)
    seen, disk = _on_the_floor(stage, server, size.few_turns)
    spent = _told(f"{what}, original_like", seen, size.floor_s, disk)
    verdicts.tell(f"{what}: p95 above the floor of original_like", spent.p95, "ms")
    server.process.stop()


def is_quiet(seen: Sample, disk: Flushes) -> bool:
    """Whether nobody else used the service's core or its disk to speak of."""
    return seen.foreign_share <= FOREIGN and disk.p95_ms <= QUIET_DISK_MS


def _on_the_floor(stage: Stage, server: Server, turns: int) -> tuple[Sample, Flushes]:
    floor_s = stage.size.floor_s
    probe = Probe(stage.deployment.work)
    with probe.watching():
        load = Load(stage.size.clients, turns * floor_s, warm_s=1.1 * floor_s, ramp_s=floor_s)
        seen = stage.sample(server, load)
    return seen, probe.seen


def _told(what: str, seen: Sample, floor_s: float, disk: Flushes) -> Percentiles:
    spent = above(seen.latencies_s, floor_s)
    print(
        f"{what}: {len(seen.latencies_s)} turns, p50 / p95 / p99 above the floor {spent} ms, {seen.cpu_ms:.2f} ms CPU "
        f"a turn; {disk}; {Series([seen]).doubts or 'no doubts'}"
    )
    return spent


@dataclass(frozen=True, slots=True)
class Crowd:
    """What so many streaming clients saw, and what the model and the load did beside."""

    clients: int
    seen: Sample
    spent: Percentiles
    first: Percentiles
    model_late: tuple[int, int]

    @property
    def model_share(self) -> float:
        """What the mock model took of one core."""
        return self.seen.beside_ms * self.seen.turns_per_s / 1e3


def streams(stage: Stage) -> None:
    """Streamed answers for more and more clients in one process, its memory, and what it does when they have gone."""
    size, verdicts = stage.size, stage.verdicts
    gap_ms = GAP_MS if size.floor_s >= TOKENS * GAP_MS / 1e3 else SHORT_GAP_MS
    server = stage.service("streams", slow_model(size.floor_s, TOKENS, gap_ms), TOKENS)
    first_at_s = first_s(size.floor_s, TOKENS, gap_ms)
    verdicts.tell("RSS at the start", rss_mb(server.process.pid), "MB")
    crowds = []
    for count in size.crowds:
        crowds.append(_crowd(stage, server, count, first_at_s))
        if count == size.judged_crowd:
            verdicts.hold(f"RSS, {count} streaming clients", crowds[-1].seen.rss_mb, CROWD_RSS_MB * size.slack, "MB")
            rest(stage, server)
    server.process.stop()
    print_crowds(crowds)
    for crowd in crowds:
        what = f"{crowd.clients} streaming clients"
        verdicts.hold(f"{what}: failed turns", len(crowd.seen.failures), 0, "turns")
        if crowd.clients == size.judged_crowd:
            verdicts.hold(f"{what}: p95 above the floor", crowd.spent.p95, CROWD_P95_MS * size.slack, "ms")
            verdicts.tell(f"{what}: p95 of the first token above its own", crowd.first.p95, "ms")
        else:
            verdicts.tell(f"{what}: p95 above the floor", crowd.spent.p95, "ms")


def _crowd(stage: Stage, server: Server, count: int, first_at_s: float) -> Crowd:
    floor_s = stage.size.floor_s
    before = stage.deployment.model_late_ms()
    # Clients begin spread over one answer, and stay so: from then on the stream of tokens is a steady one.
    load = Load(count, stage.size.crowd_s, warm_s=floor_s + first_at_s + 0.5, ramp_s=floor_s)
    seen = stage.sample(server, load, beside=(stage.deployment.model.pid,))
    after = stage.deployment.model_late_ms()
    late = late_ms(before, after, 0.95), late_ms(before, after, 0.99)
    return Crowd(count, seen, above(seen.latencies_s, floor_s), above(seen.firsts_s, first_at_s), late)


def print_crowds(crowds: list[Crowd]) -> None:
    """One line a crowd. Shares are of one core, `others` is all that ran on the others; `late` is by their own word."""
    print(
        f"{'clients':>7} {'turns/s':>8} {'above the floor: p50, p95, p99':>31} {'first token: p50, p95, p99':>27} "
        f"{'frames':>7} {'CPU ms':>7} {'core':>5} {'RSS MB':>7} {'model':>6} {'late p95, p99':>14} {'load':>5} "
        f"{'late p95':>8} {'others':>7}  doubts"
    )
    for crowd in crowds:
        seen = crowd.seen
        print(
            f"{crowd.clients:7} {seen.turns_per_s:8.1f} {crowd.spent!s:>31} {crowd.first!s:>27} "
            f"{seen.frames_per_turn:7.1f} {seen.cpu_ms:7.2f} {seen.service_share:5.0%} {seen.rss_mb:7.0f} "
            f"{crowd.model_share:6.0%} {crowd.model_late[0]:7} {crowd.model_late[1]:6} {seen.load_share:5.0%} "
            f"{seen.load_late_ms:8.1f} {seen.others_share:7.0%}  {Series([seen]).doubts}"
        )


def rest(stage: Stage, server: Server) -> None:
    """Leave the service alone: what it uses at the end of that time, and what it holds."""
    size = stage.size
    time.sleep(size.rest_s - size.idle_s)
    before = cpu_s(server.process.pid)
    time.sleep(size.idle_s)
    used = cpu_s(server.process.pid) - before
    stage.verdicts.hold(f"idle CPU over {size.idle_s:.0f} s", used / size.idle_s * 100, IDLE_PCT * size.slack, "%")
    memory_mb = rss_mb(server.process.pid)
    stage.verdicts.hold(f"RSS {size.rest_s:.0f} s after", memory_mb, RESTED_RSS_MB * size.slack, "MB")


def slow_disk(stage: Stage) -> None:
    """Whole messages where each flush of the service takes 20 ms longer, by strace in front of it."""
    strace = shutil.which("strace")
    if strace is None:
        print("left out: strace is not installed (Debian: apt-get install strace)")
        return
    size, verdicts = stage.size, stage.verdicts
    calls = stage.deployment.work / "slow-disk.strace"
    # -D: the service is the process that is started and stopped, strace a child that ends with it.
    inject = f"inject=fdatasync,fsync:delay_exit={FLUSH_S * 1e6:.0f}"
    under = [strace, "-D", "-f", "-qq", "-o", str(calls), "--seccomp-bpf", "-e", "trace=fdatasync,fsync", "-e", inject]
    model = slow_model(size.disk_floor_s, WHOLE_TOKENS)
    server = stage.service("slow_disk", model, WHOLE_TOKENS, native=False, under=under)
    load = Load(size.clients, 8 * size.disk_floor_s, warm_s=1.5 * size.disk_floor_s, ramp_s=size.disk_floor_s)
    seen = stage.sample(server, load)
    server.process.stop()
    spent = above(seen.latencies_s, size.disk_floor_s)
    what = f"{size.clients} clients, {size.disk_floor_s:g} s model, flushes 20 ms longer"
    flushed = calls.read_text().count("(DELAYED)")
    print(f"{what}: {len(seen.latencies_s)} turns, above the floor {spent} ms, {flushed} flushes were delayed")
    verdicts.hold(f"{what}: failed turns", len(seen.failures), 0, "turns")
    verdicts.hold_at_least(f"{what}: delayed flushes", flushed, 1, "")
    verdicts.hold(f"{what}: p95 above the floor", spent.p95, SLOW_DISK_P95_MS * size.slack, "ms")
