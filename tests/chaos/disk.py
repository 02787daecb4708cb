"""The spool's disk: damage, no space, failing flushes, its bounds, and one owner only (A13-A15, A17, A19)."""

import asyncio
import os
import random
import resource
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spoolfile import connect
from tests.chaos.answers import INSTANT
from tests.chaos.deployment import Deployment, Service, Size, Stage, stage
from tests.chaos.kills import SLOW_ANSWERS, loss_row
from tests.chaos.load import Habits, create_session, take_turn
from tests.chaos.rows import Row, at_least, at_most, exactly, left_out, none_of
from tests.chaos.until import until, until_it
from tests.support.patience import HANGS_S
from tests.support.small_disk import Neighbour, NoRight, fill, small_disk

_TURNS = 40
_RATE = 30.0


async def damage(deployment: Deployment, size: Size) -> list[Row]:
    """A13: a spool full of waiting turns, damaged at seeded places; each time a service is started on it."""
    places = size.pick(10, 200)
    outcomes: list[_Outcome] = []
    async with stage(deployment, "A13", Habits(1.0), sessions=0, model=INSTANT) as scene:
        service = scene.service
        keep = deployment.directory / "spool-kept"
        await _fill(deployment, scene, keep)
        for number in range(places):
            shutil.rmtree(service.spool)
            shutil.copytree(keep, service.spool)
            if number % 2:  # what waits lies in the log until it is folded into the database: both must be hit
                _fold(service.spool)
            readable, sound = _damage(service.spool, deployment.draw(f"A13 {number}"))
            await asyncio.to_thread(_forget_turns, service.database.dsn)
            await service.start()
            await service.drained()
            rows, _ = await asyncio.to_thread(service.database.stored)
            stored = {message.exchange_id for messages in rows.values() for message in messages}
            aside = any(service.spool.glob("*.corrupt"))
            gone = _TURNS - sum(exchange.startswith("waiting-") for exchange in stored)
            alarm = "ALARM" in service.process.output
            outcomes.append(_Outcome(len(readable - stored), gone, sound, aside, alarm))
            await service.kill()
    lost = sum(outcome.not_replayed for outcome in outcomes)
    damaged = [outcome for outcome in outcomes if not outcome.sound]
    silent = sum(not (outcome.aside and outcome.alarm) for outcome in damaged)
    quiet = [outcome.gone for outcome in outcomes if outcome.gone and not outcome.alarm]
    return [
        exactly("A13", f"starts on a spool damaged at {places} seeded places", len(outcomes), places),
        none_of(
            "A13",
            "records that SQLite still reads as they were, not replayed",
            lost,
            of=places * _TURNS,
            unit="records",
        ),
        none_of(
            "A13",
            "damaged files that are not set aside as .corrupt with an alarm",
            silent,
            of=len(damaged),
            unit="files",
        ),
        exactly("A13", f"starts that missed records ({sum(quiet)} of them) without an alarm", len(quiet), 0),
    ]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One start on a damaged spool. `sound` is whether SQLite and the records' checksums found nothing wrong."""

    not_replayed: int
    gone: int
    sound: bool
    aside: bool
    alarm: bool


async def _fill(deployment: Deployment, scene: Stage, keep: Path) -> None:
    """Leave turns in the spool by kill -9 with Postgres away, and keep a copy of its directory."""
    sessions = [await create_session(scene.http, scene.service.address) for _ in range(4)]
    await _talk(scene, sessions, "first", 1)  # what the service knows needs no Postgres
    await scene.service.drained()
    await deployment.stop_postgres()
    await _talk(scene, sessions, "waiting", _TURNS // len(sessions))
    await scene.service.kill()
    await deployment.start_postgres()
    shutil.copytree(scene.service.spool, keep)


async def _talk(scene: Stage, sessions: list[str], name: str, count: int) -> None:
    async with scene.service.address.dial() as socket:
        for session_id in sessions:
            for number in range(count):
                asked = scene.ledger.ask(f"{name}-{session_id}-{number}", session_id, f"Question {number}? " * 20)
                await take_turn(socket, scene.ledger, asked)


def _fold(spool: Path) -> None:
    with sqlite3.connect(_database(spool)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _damage(spool: Path, draw: random.Random) -> tuple[set[str], bool]:
    """Cut or overwrite the database or its log somewhere.

    Returns the exchanges that SQLite still reads, by a copy of its own, and whether it finds nothing wrong.
    """
    files = [path for path in spool.iterdir() if path.suffix == ".sqlite" or path.name.endswith("-wal")]
    victim = draw.choice([path for path in files if path.stat().st_size])
    length = victim.stat().st_size
    place = draw.randrange(length)
    with victim.open("r+b") as file:
        if draw.random() < 0.4:
            file.truncate(place)
        else:
            file.seek(place)
            file.write(draw.randbytes(draw.choice((1, 64, 4096)))[: length - place])
    with tempfile.TemporaryDirectory(prefix="turnwise-chaos-look-") as place_of_look:
        look = Path(place_of_look) / "spool"
        shutil.copytree(spool, look)
        return _readable(_database(look))


def _readable(path: Path) -> tuple[set[str], bool]:
    found: set[str] = set()
    try:
        with sqlite3.connect(path) as connection:
            sound = connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
            for kind, exchange_id, crc, body in connection.execute("SELECT kind, exchange_id, crc, body FROM record"):
                if zlib.crc32(body) != crc:  # readable, but not as it was written: never to be replayed
                    sound = False
                elif kind == "turn":
                    found.add(exchange_id)
    except (sqlite3.Error, TypeError):
        sound = False
    return found, sound


def _forget_turns(dsn: str) -> None:
    """Take out what an earlier start has replayed, so that the next one has it to do again."""
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM session_history WHERE exchange_id LIKE 'waiting-%'")
        connection.execute("UPDATE session SET version = 1")


async def dead_letter(deployment: Deployment, size: Size) -> list[Row]:
    """A12 past the door: one of the turns that wait becomes a record that Postgres refuses; the others go on."""
    async with stage(deployment, "A12-dead", Habits(1.0), sessions=0, model=INSTANT) as scene:
        service = scene.service
        await _fill(deployment, scene, deployment.directory / "spool-good")
        victim = await asyncio.to_thread(_poison, service.spool)
        scene.ledger.asks.pop(victim)
        await service.start()
        await service.drained()
        report = await scene.settle()
        metrics = await service.metrics()
        rows, _ = await asyncio.to_thread(service.database.stored)
    stored = sum(message.exchange_id == victim for messages in rows.values() for message in messages)
    return [
        exactly(
            "A12",
            "dead letters of one poisoned record, by the metric",
            metrics["app_persist_dead_letters_total"],
            1,
        ),
        exactly("A12", "rows of the poisoned record", stored, 0),
        loss_row("A12", "turns before and behind a poisoned record", report),
    ]


def _poison(spool: Path) -> str:
    """Put a NUL into the last waiting turn of a session in the middle; its exchange."""
    with sqlite3.connect(_database(spool)) as connection:
        turns = connection.execute("SELECT max(id) FROM record WHERE kind = 'turn' GROUP BY session_id").fetchall()
        victim = sorted(id_ for (id_,) in turns)[1]
        query = "SELECT exchange_id, body FROM record WHERE id = ?"
        exchange_id, body = connection.execute(query, (victim,)).fetchone()
        poisoned = body.replace(b"Question", b"Nul \\u0000 ")
        change = "UPDATE record SET body = ?, crc = ? WHERE id = ?"
        connection.execute(change, (poisoned, zlib.crc32(poisoned), victim))
    connection.close()
    return str(exchange_id)


def _database(spool: Path) -> Path:
    return next(path for path in spool.iterdir() if path.suffix == ".sqlite")


async def no_space(deployment: Deployment, size: Size) -> list[Row]:
    """A14: the disk of the spool fills up under load, with Postgres away; then there is space again."""
    place = deployment.directory / "small"
    with ExitStack() as stack:
        try:
            await asyncio.to_thread(stack.enter_context, small_disk(place, 4))
        except NoRight:
            return [left_out("A14", "a full tmpfs", "no right to mount one")]
        return await _without_space(deployment, size, "a full tmpfs", place / "spool", lambda _: fill(place).unlink)


async def no_growth(deployment: Deployment, size: Size) -> list[Row]:
    """A14 by a limit on the size of files."""
    return await _without_space(deployment, size, "a file-size limit of 0", None, _limit_files)


async def _without_space(
    deployment: Deployment,
    size: Size,
    what: str,
    directory: Path | None,
    take: "Callable[[Service], Callable[[], None]]",
) -> list[Row]:
    changes: dict[str, Any] = {"persistence": {"spool_dir": str(directory)}} if directory else {}
    async with stage(deployment, f"A14 {what}", Habits(_RATE), sessions=20, **changes) as scene:
        await scene.crowd.answered(40)
        await deployment.stop_postgres()
        await scene.crowd.answered(20)
        give_back = take(scene.service)
        await until(lambda: scene.ledger.errors["storage_full"] > 0)
        await asyncio.sleep(1.5)  # what ran when the disk filled up has ended, or is about to be refused
        calls = (await deployment.model_stats())["requests"]["chat"]
        refused = scene.ledger.errors["storage_full"]
        await until(lambda: scene.ledger.errors["storage_full"] >= refused + 10)
        calls = (await deployment.model_stats())["requests"]["chat"] - calls
        status, body = await scene.service.ask_status("/ready")
        give_back()
        await scene.service.answers("/ready")
        await scene.crowd.answered(40)
        await deployment.start_postgres()
        report = await scene.settle()
    return [
        exactly("A14", f"{what}: model calls for 10 refused asks (storage_full)", calls, 0),
        exactly("A14", f"{what}: /ready says {body.get('status', 'nothing')}", status, 503),
        loss_row("A14", f"{what}, space freed after it", report),
    ]


def _limit_files(service: Service) -> Callable[[], None]:
    """No file may grow any more: writes fail with EFBIG, as a quota would have it."""
    _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, hard))
    return lambda: resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard, hard)) and None


async def killed_without_space(deployment: Deployment, size: Size) -> list[Row]:
    """A14+A1: kill -9 while somebody takes every byte of the spool's disk, with Postgres there."""
    return await _crammed(deployment, away=False)


async def killed_without_space_and_postgres(deployment: Deployment, size: Size) -> list[Row]:
    """A14+A1: the same with Postgres away."""
    return await _crammed(deployment, away=True)


async def _crammed(deployment: Deployment, *, away: bool) -> list[Row]:
    place = deployment.directory / f"crammed-{away}"
    with ExitStack() as stack:
        try:
            await asyncio.to_thread(stack.enter_context, small_disk(place, 16))
        except NoRight:
            return [left_out("A14+A1", "kill -9 on a full tmpfs", "no right to mount one")]
        return await _killed_without_space(deployment, place, away=away)


async def _killed_without_space(deployment: Deployment, place: Path, *, away: bool) -> list[Row]:
    changes: dict[str, Any] = {"persistence": {"spool_dir": str(place / "spool")}}
    name = "kill -9 on a full disk, Postgres away" if away else "kill -9 on a full disk, Postgres there"
    async with stage(deployment, f"A14+A1 {name}", Habits(_RATE), sessions=20, **changes) as scene:
        service = scene.service
        await scene.crowd.answered(40)
        if away:
            await deployment.stop_postgres()
        else:
            await deployment.to_postgres.tell(SLOW_ANSWERS)
        await scene.crowd.answered(20)
        with Neighbour(place):
            await until(lambda: scene.ledger.errors["storage_full"] > 0)
            await service.kill()
            await deployment.to_postgres.tell("normal")
            await service.start("/healthz")
            found = (await service.metrics())["app_persist_replayed_total"]
            told = await _refused(deployment, scene)
            readable = await _readable_sessions(scene) if away else 0
            await service.kill()
            await service.start("/healthz")
            if away:
                await deployment.start_postgres()
            await service.drained()
            crammed = await scene.compared(scene.ledger)
            await asyncio.sleep(3)  # what Postgres has is marked with the writer's next attempt, each 2 s at most
            await service.kill()
            await service.start("/healthz")
            again = (await service.metrics())["app_persist_replayed_total"]
            await service.drained()
        await service.answers("/ready")
        await scene.crowd.answered(20)
        report = await scene.settle()
        letters = (await service.metrics())["app_persist_dead_letters_total"]
    return [
        at_least("A14+A1", f"{name}: records that the next start found", found, 1, "records"),
        *told.rows(name),
        *([at_least("A14+A1", f"{name}: sessions whose history is read", readable, 1, "sessions")] if away else []),
        loss_row("A14+A1", f"{name}, two starts, the disk still full", crammed),
        exactly("A14+A1", f"{name}: records that a third start replays again", again, 0),
        exactly("A14+A1", f"{name}: dead letters", letters, 0),
        loss_row("A14+A1", f"{name}, space freed after it, no restart", report),
    ]


@dataclass(frozen=True, slots=True)
class _Refusals:
    """What who asked was told, and what it cost."""

    calls: int
    status: int
    said: str

    def rows(self, name: str) -> list[Row]:
        return [
            exactly("A14+A1", f"{name}: model calls for 10 refused asks (storage_full)", self.calls, 0),
            exactly("A14+A1", f"{name}: /ready says {self.said}", self.status, 503),
            exactly("A14+A1", f"{name}: it says storage_full", int(self.said == "storage_full"), 1),
        ]


async def _refused(deployment: Deployment, scene: Stage) -> _Refusals:
    refused = scene.ledger.errors["storage_full"]
    calls = (await deployment.model_stats())["requests"]["chat"]
    await until(lambda: scene.ledger.errors["storage_full"] >= refused + 10)
    calls = (await deployment.model_stats())["requests"]["chat"] - calls
    status, body = await scene.service.ask_status("/ready")
    return _Refusals(calls, status, str(body.get("status", "nothing")))


async def _readable_sessions(scene: Stage) -> int:
    """How many sessions show their newest message although it is in the spool alone."""
    found = [await scene.history(session_id, "?limit=1") for session_id in scene.ledger.sessions]
    return sum(status == 200 and len(messages) == 1 for status, messages in found)


class _FailingConnection(sqlite3.Connection):
    """Commits like any other, but for the ones that are to fail as a flush does: what is on disk is not known then."""

    failures: "list[float]" = []

    def execute(self, statement: str, /, *arguments: object) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.failures and time.monotonic() >= self.failures[0]:
            self.failures.pop(0)
            super().execute("ROLLBACK")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return super().execute(statement, *arguments)  # type: ignore[arg-type]


async def failed_flush(deployment: Deployment, size: Size) -> list[Row]:
    """A15: EIO on a flush, by the spool's own seam for connections: what was acknowledged is in the next file."""
    rounds = size.pick(5, 50)
    acked: set[int] = set()
    found: set[int] = set()
    aside = 0
    failed_acks = 0
    draw = deployment.draw("A15")
    for number in range(rounds):
        directory = deployment.directory / f"flush-{number}"
        now, then, put, corrupt = await _flush_round(directory, draw)
        acked |= {id_ + number * 10_000 for id_ in now}
        found |= {id_ + number * 10_000 for id_ in then}
        failed_acks += put - len(now)
        aside += corrupt
    return [
        none_of(
            "A15",
            f"acknowledged records that a failed flush (EIO) x {rounds} lost",
            len(acked - found),
            of=len(acked),
            unit="records",
        ),
        none_of(
            "A15",
            "records of the failed groups that were never acknowledged",
            failed_acks,
            of=len(acked),
            unit="records",
        ),
        exactly("A15", "files set aside as .corrupt", aside, rounds),
    ]


async def _flush_round(directory: Path, draw: random.Random) -> tuple[set[int], set[int], int, int]:
    """Ids acknowledged, ids found after a new start, records put, files set aside."""

    class Failing(_FailingConnection):
        failures = [time.monotonic() + draw.uniform(0.02, 0.15)]

    def connect_failing(path: Path) -> sqlite3.Connection:
        connect(path).close()
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Failing)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    spool = Spool(directory, lambda _: None, connect_to=connect_failing)
    spool.start()
    acked: set[int] = set()
    put = 0
    end, over = time.monotonic() + 0.3, False
    while not over:
        # A commit may take all of that on a busy disk: the last group goes in when the failure is behind it.
        over = not Failing.failures and time.monotonic() >= end
        group = [spool.put("turn", ("s", "u"), f"e{put + place}", b"{}") for place in range(5)]
        put += len(group)
        async with asyncio.timeout(HANGS_S):
            for id_, landed in group:
                await landed
                acked.add(id_)
    aside = sum(name.endswith(".corrupt") for name in await asyncio.to_thread(os.listdir, directory))
    await spool.aclose()
    again = Spool(directory, lambda _: None)
    found = {entry.id for entry in again.waiting}
    again.start()
    await again.aclose()
    return acked, found, put, aside


async def bounded(deployment: Deployment, size: Size) -> list[Row]:
    """A17: Postgres never comes back; the bound is small by configuration, and what is refused costs no model call."""
    limit = size.pick(200, 2000)
    rules: dict[str, Any] = {"persistence": {"max_records": limit}, "limits": {"max_turns": 50}}
    async with stage(deployment, "A17", Habits(100.0), sessions=50, model=INSTANT, **rules) as scene:
        await scene.crowd.answered(60)
        await scene.service.drained()
        rss = scene.service.rss_mb()
        await deployment.stop_postgres()
        for _ in range(10):  # what running turns do not need of what they reserved lets others in, until none runs
            if await _calls_for(deployment, scene, 50) == 0:
                break
        calls = await _calls_for(deployment, scene, 100)
        pending, grown = await scene.service.pending(), scene.service.rss_mb() - rss
        fill = (await scene.service.metrics())["app_persist_fill_ratio"]
        warned = scene.service.log.count("of its bound")
        status, _ = await scene.service.ask_status("/ready")
        await deployment.start_postgres()
        await scene.service.answers("/ready")
        report = await scene.settle()
    return [
        at_most("A17", "records that wait at most, by max_records", pending, limit, "records"),
        at_least("A17", "the fill that the metric shows", fill, 0.8, ""),
        at_least("A17", "warnings in the log", warned, 1, "lines"),
        exactly("A17", "model calls for 100 refused asks", calls, 0),
        exactly("A17", "/ready at the bound", status, 503),
        at_most("A17", "growth of memory", grown, 100, "MiB"),
        loss_row("A17", "Postgres away until the bound", report),
    ]


async def _calls_for(deployment: Deployment, scene: Stage, refused: int) -> int:
    """Calls of the model while so many asks are refused with `storage_full`."""
    target = scene.ledger.errors["storage_full"] + refused
    before = (await deployment.model_stats())["requests"]["chat"]
    await until(lambda: scene.ledger.errors["storage_full"] >= target)
    calls: int = (await deployment.model_stats())["requests"]["chat"] - before
    return calls


async def one_owner(deployment: Deployment, size: Size) -> list[Row]:
    """A19: a second process on the same spool directory, or on the same database."""
    database = await deployment.database()
    first = Service(deployment, database)
    same_spool = Service(deployment, await deployment.database(), persistence={"spool_dir": str(first.spool)})
    same_database = Service(deployment, database)
    rows = []
    try:
        await first.start()
        for what, second, within_s in (("spool directory", same_spool, 2.0), ("database", same_database, 12.0)):
            begun = time.perf_counter()
            await second.start(None)
            code = await second.ended()
            took_s = time.perf_counter() - begun
            words = [line for line in second.log.splitlines() if "another process" in line]
            heavy = [line for line in second.log.splitlines() if "alembic" in line or "Traceback" in line]
            rows += [
                exactly("A19", f"exit code of a second process on the same {what}", code, 3),
                exactly("A19", f"the same {what}: lines that say so", len(words), 1),
                exactly("A19", f"the same {what}: tracebacks, lines of heavy imports", len(heavy), 0),
                at_most("A19", f"the same {what}: told after", took_s, within_s * size.slack, "s"),
            ]
        await until_it(lambda: _answers(first))
    finally:
        for service in (first, same_spool, same_database):
            await service.close()
        await deployment.drop(database)
        await deployment.drop(same_spool.database)
    return rows


async def _answers(service: Service) -> bool:
    return (await service.ask_status("/ready"))[0] == 200
