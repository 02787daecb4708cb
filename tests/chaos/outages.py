"""Faults of Postgres under load: crash, restart, absence, slowness, no free connection (A3, A4, A5, A7, A8)."""

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median, quantiles

import psycopg

from tests.chaos.deployment import Deployment, Size, Stage, stage
from tests.chaos.kills import loss_row
from tests.chaos.ledger import Asked
from tests.chaos.load import Habits, create_session
from tests.chaos.rows import Row, all_of, at_least, at_most, exactly, none_of
from tests.chaos.until import until_it

RATE = 50.0
Metrics = Mapping[str, float]
_RSS_MB = 100.0
_SMALL_POOL = {"postgres": {"pool_size": 2, "max_overflow": 0}}


async def crash(deployment: Deployment, size: Size) -> list[Row]:
    """A3: `-m immediate`, in the middle of whatever it does."""
    times = size.pick(2, 10)
    async with stage(deployment, "A3", Habits(RATE), sessions=size.sessions) as scene:
        for number in range(times):
            await scene.crowd.answered(size.sessions)
            await asyncio.sleep(deployment.draw(f"A3 {number}").uniform(0, 0.5))
            await deployment.stop_postgres(signal.SIGQUIT)
            await scene.crowd.answered(int(RATE))
            await deployment.start_postgres()
        return [loss_row("A3", f"Postgres crash (-m immediate) x {times}", await scene.settle())]


async def restart(deployment: Deployment, size: Size) -> list[Row]:
    """A4: `restart -m fast`; sessions that the service knows must not notice."""
    async with stage(deployment, "A4", Habits(RATE), sessions=size.sessions) as scene:
        await scene.crowd.answered(size.sessions * 2)
        before = await _window(scene, 3.0)
        begun = time.perf_counter()
        await deployment.stop_postgres()
        await deployment.start_postgres()
        await _window(scene, 2.0)
        during = scene.ledger.within(begun, time.perf_counter())
        await scene.service.drained()
        after = await _window(scene, 3.0)
        errors = sum(scene.ledger.errors.values())
        report = await scene.settle()
    more_ms = _more_ms(during, [*before, *after], 99)
    return [
        loss_row("A4", "Postgres restart -m fast under load", report),
        none_of("A4", "errors of sessions that the service knows", errors, of=len(during), unit="turns"),
        at_most("A4", "p99 of final, restart less before and after", more_ms, 20 * size.slack, "ms"),
    ]


async def absence(deployment: Deployment, size: Size) -> list[Row]:
    """A5: away for a minute (10 s in the short form), then both at once with kill -9."""
    away_s = 10.0 if size.short else 60.0
    async with stage(deployment, "A5", Habits(RATE), sessions=size.sessions) as scene:
        await scene.crowd.answered(size.sessions * 2)
        rows = await _away(deployment, scene, size, away_s)
        if not size.short:
            rows += await _away(deployment, scene, size, 300.0)
    return rows


async def absence_and_kill(deployment: Deployment, size: Size) -> list[Row]:
    """Both at once: away as long as in A5, and kill -9 in the middle of it."""
    away_s = 6.0 if size.short else 60.0
    async with stage(deployment, "A5+A1", Habits(RATE), sessions=size.sessions) as scene:
        await scene.crowd.answered(size.sessions)
        await deployment.stop_postgres()
        await asyncio.sleep(away_s / 2)
        await scene.service.kill()
        await scene.service.start("/healthz")
        await asyncio.sleep(away_s / 2)
        await deployment.start_postgres()
        await scene.service.answers("/ready")
        report = await scene.settle()
        replayed = (await scene.service.metrics())["app_persist_replayed_total"]
        return [
            loss_row("A5+A1", f"Postgres down {away_s:.0f} s and kill -9 in it, {RATE:.0f} turns/s", report),
            at_least(
                "A5+A1", "records that the next process found in the spool, by the metric", replayed, 1, "records"
            ),
        ]


async def _away(deployment: Deployment, scene: Stage, size: Size, away_s: float) -> list[Row]:
    what = f"Postgres down {away_s:.0f} s, {RATE:.0f} turns/s"
    begun, answers, errors = time.perf_counter(), scene.ledger.told_count, sum(scene.ledger.errors.values())
    logged = len(scene.service.log)
    rss = scene.service.rss_mb()
    metrics = await scene.service.metrics()
    await deployment.stop_postgres()
    await asyncio.sleep(away_s)
    told, told_s = scene.ledger.told_count - answers, time.perf_counter() - begun
    grown = scene.service.rss_mb() - rss
    away = await scene.service.metrics()
    await deployment.start_postgres()
    lag_s = await _caught_up(scene)
    lines, lines_s = most_lines_a_cause(scene.service.log[logged:]), time.perf_counter() - begun
    errors = sum(scene.ledger.errors.values()) - errors
    report = await scene.settle()
    back = await scene.service.metrics()
    scene.crowd.resume()
    return [
        *_metric_rows(what, metrics, away, back),
        loss_row("A5", what, report),
        none_of("A5", f"{what}: errors of sessions that the service knows", errors, of=told, unit="turns"),
        at_least("A5", f"{what}: conversations go on", told / told_s, RATE * 0.8, "turns/s"),
        at_least(
            "A5", f"{what}: age of the oldest record by its metric", away["app_persist_oldest_seconds"], away_s / 2, "s"
        ),
        at_most("A5", f"{what}: until the lag is below 1 s", lag_s, 10 * size.slack, "s"),
        at_most("A5", f"{what}: growth of memory", grown, _RSS_MB, "MiB"),
        at_most("G7", f"{what}: lines of one cause a second", lines / lines_s, 1.0, "lines"),
    ]


_RAISED = (
    *("app_persist_queue_depth", "app_persist_oldest_seconds", "app_persist_fill_ratio"),
    *("app_spool_records", "app_spool_bytes", "app_persist_retries_total"),
)
_WRITTEN = (
    *("app_persist_batch_records_count", "app_persist_batch_records_sum", "app_persist_lag_seconds_count"),
    *("app_spool_commit_seconds_count", "app_spool_ack_seconds_count"),
)


def _metric_rows(what: str, before: Metrics, away: Metrics, back: Metrics) -> list[Row]:
    """G6: what an outage moves, while it lasts and once it is over; how many series a name has."""
    moved = [name for name in _RAISED if _sum(away, name) > _sum(before, name)]
    moved += [name for name in _WRITTEN if _sum(back, name) > _sum(away, name)]
    series = Counter(
        name.partition("{")[0] for name in back if re.match("app_(persist|spool|db)_", name) and 'le="' not in name
    )
    unmoved = " ".join({*_RAISED, *_WRITTEN} - {*moved})
    return [
        all_of(
            "G6",
            f"{what}: metrics that it moves {unmoved}".strip(),
            len(moved),
            of=len(_RAISED + _WRITTEN),
            unit="metrics",
        ),
        at_most("G6", f"series of one name, of {len(series)} names of persistence", max(series.values()), 20, "series"),
    ]


def _sum(metrics: Metrics, name: str) -> float:
    """Over all its series."""
    return sum(value for series, value in metrics.items() if series.partition("{")[0] == name)


def most_lines_a_cause(log: str) -> int:
    """Of the lines above INFO, how many the commonest one has: numbers and what follows a colon make no other cause."""
    found = re.findall(r"^\S+ \S+ (?:WARNING|ERROR|CRITICAL) (.*)$", log, re.MULTILINE)
    causes = Counter(re.sub(r"\d+", "0", line).split(": ")[0] for line in found)
    return max(causes.values(), default=0)


async def _caught_up(scene: Stage) -> float:
    """Seconds from now until no more waits than is asked in 1 s: by /ready, whose count is of this moment."""
    begun = time.perf_counter()

    async def caught_up() -> bool:
        return 0 <= await scene.service.pending() <= RATE

    await until_it(caught_up)
    return time.perf_counter() - begun


async def slowness(deployment: Deployment, size: Size) -> list[Row]:
    """A7: windows with slow answers between windows without; only the batches may show it."""
    rows: list[Row] = []
    async with stage(deployment, "A7", Habits(RATE), sessions=size.sessions) as scene:
        await scene.crowd.answered(size.sessions * 3)
        for delay_ms in (500,) if size.short else (500, 5000):
            pairs = [await _pair(deployment, scene, delay_ms) for _ in range(size.pick(3, 5))]
            what = f"p95 of final, Postgres {delay_ms} ms slower: median of {len(pairs)} pairs"
            rows.append(at_most("A7", what, median(pair.more_ms for pair in pairs), 5 * size.slack, "ms"))
            if delay_ms == 500:  # 5 s is beyond the statement's deadline: nothing is written until it passes
                grown = median(pair.batch_grown for pair in pairs)
                rows.append(at_least("A7", "records of a batch grow instead", grown, 1.0, "x"))
        rows.append(loss_row("A7", "slow Postgres", await scene.settle()))
    return rows


@dataclass(frozen=True, slots=True)
class _Pair:
    """A quick and a slow window side by side."""

    more_ms: float
    batch_grown: float


async def _pair(deployment: Deployment, scene: Stage, delay_ms: int) -> _Pair:
    await deployment.to_postgres.tell("normal")
    await _caught_up(scene)
    quick, quick_batch = await _batch_window(scene)
    await deployment.to_postgres.tell(f"delay down {delay_ms} 0")
    slow, slow_batch = await _batch_window(scene)
    await deployment.to_postgres.tell("normal")
    more_ms = (percentile(slow, 95) - percentile(quick, 95)) * 1e3
    return _Pair(more_ms, slow_batch / quick_batch if quick_batch else 0.0)


async def _batch_window(scene: Stage) -> tuple[list[Asked], float]:
    """The turns of a window, and the mean of records a transaction in it."""
    before = await scene.service.metrics()
    answers = await _window(scene, 3.0)
    after = await scene.service.metrics()
    count, total = (
        after[f"app_persist_batch_records_{part}"] - before[f"app_persist_batch_records_{part}"]
        for part in ("count", "sum")
    )
    return answers, total / count if count else 0.0


async def no_connection(deployment: Deployment, size: Size) -> list[Row]:
    """A8: readers hold every connection of the pool behind a lock; turns go on, other readers are told soon.

    The short form holds them three times, the full one for a minute at a time: of what each adds to the windows beside
    it, the median counts, since one pause of the machine is a twentieth of a window.
    """
    rounds, holds_s = (3, 3.0) if size.short else (3, 60.0)
    more_ms: list[float] = []
    late_s, wrong = 0.0, 0
    async with stage(deployment, "A8", Habits(RATE), sessions=size.sessions, storage=_SMALL_POOL) as scene:
        await scene.crowd.answered(size.sessions * 2)
        others = [await create_session(scene.http, scene.service.address) for _ in range(2)]
        before = await _window(scene, 3.0)
        for _ in range(rounds):
            begun = time.perf_counter()
            while time.perf_counter() < begun + holds_s:
                waits = await _read_while_locked(scene, others)
                late_s = max(late_s, *(wait_s for wait_s, _ in waits))
                wrong += sum(not refused for _, refused in waits)
            during = scene.ledger.within(begun, time.perf_counter())
            await scene.service.drained()
            after = await _window(scene, 3.0)
            more_ms.append(_more_ms(during, [*before, *after], 95))
            before = after
        errors = sum(scene.ledger.errors.values())
        report = await scene.settle()
    return [
        exactly("A8", "errors of turns while no connection is free", errors, 0),
        at_most(
            "A8",
            f"p95 of final, no connection free less before and after, median of {rounds}",
            median(more_ms),
            5 * size.slack,
            "ms",
        ),
        at_most("A8", "a reader is told history_unavailable after", late_s, 2.2 * size.slack, "s"),
        exactly("A8", "other answers to readers", wrong, 0),
        loss_row("A8", f"no connection free for {rounds} times {max(holds_s, 5.0):.0f} s", report),
    ]


async def _read_while_locked(scene: Stage, others: list[str]) -> list[tuple[float, bool]]:
    """How long ten readers waited whom two others left no connection, and whether each was refused."""
    async with _locked(scene), asyncio.TaskGroup() as group:
        for session_id in others:  # each holds a connection until its statement is given up, after 5 s
            group.create_task(scene.history(session_id))
        await asyncio.sleep(0.3)
        return await asyncio.gather(*(_refused_read(scene, session_id) for session_id in scene.crowd.sessions[:10]))


@asynccontextmanager
async def _locked(scene: Stage) -> AsyncIterator[None]:
    """Nobody reads or writes the history while the block runs."""
    connection = await asyncio.to_thread(lambda: psycopg.connect(scene.service.database.dsn))
    try:
        await asyncio.to_thread(connection.execute, "LOCK TABLE session_history IN ACCESS EXCLUSIVE MODE")
        yield
    finally:
        await asyncio.to_thread(connection.close)


async def _refused_read(scene: Stage, session_id: str) -> tuple[float, bool]:
    """How long a reader waited for its refusal, and whether it was one."""
    begun = time.perf_counter()
    url = f"{scene.service.address.url}/chatbot/session/{session_id}/history"
    async with scene.http.get(url, headers=scene.service.address.headers) as response:
        refused = response.status == 503 and "history_unavailable" in await response.text()
    return time.perf_counter() - begun, refused


async def _window(scene: Stage, seconds: float) -> list[Asked]:
    """The turns that were asked in the next so many seconds and have been answered 1 s later."""
    begun = time.perf_counter()
    await asyncio.sleep(seconds)
    ended = time.perf_counter()
    await asyncio.sleep(1.0)
    return scene.ledger.within(begun, ended)


def _more_ms(during: list[Asked], beside: list[Asked], percent: int) -> float:
    """A percentile less that of the windows before and after: what else the machine does comes and goes."""
    return (percentile(during, percent) - percentile(beside, percent)) * 1e3


def percentile(answers: list[Asked], percent: int) -> float:
    """A percentile of ask to final, in seconds; infinite where nothing was answered."""
    times = [asked.took_s for asked in answers]
    return quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else float("inf")
