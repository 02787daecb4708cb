"""What an upgrade in place finds: a spool of the program before, as a kill left it, is read and written on."""

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import Session
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spooldir import Mark
from backend_kit.kpi import Kpi
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, history_of, new_session, stored_ranks, total
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[3]
WORDS = "word " * 8000  # 120 records of them are more pages than SQLite leaves in its log
AT = "2026-01-02T03:04:05.000006Z"

Record = dict[str, str]


def message(session: Session, exchange_id: str, rank: int, role: str, text: str) -> dict[str, Any]:
    """A ChatMessage as the program before stored it."""
    return {
        "session_id": session.id,
        "exchange_id": exchange_id,
        "rank": rank,
        "timestamp": AT,
        "role": role,
        "channel": "final",
        "parts": [{"type": "text", "text": text}],
        "metadata": {"model": "mock"},
    }


def record(kind: str, session: Session, exchange_id: str, fields: dict[str, Any]) -> Record:
    """A record as the program before stored it; `fields` are those of its kind."""
    body = json.dumps({"op": kind, "schema": 1, **fields})
    return {
        "kind": kind,
        "session_id": session.id,
        "user_id": session.user_id,
        "exchange_id": exchange_id,
        "body": body,
    }


def turn_of(session: Session, number: int, words: str = "") -> Record:
    """The turn of this number, from 0 on, of a session."""
    exchange_id, rank = f"x{number}", 2 * number
    after = {**session.stored(), "title": "T", "updated_at": AT, "next_rank": rank + 2, "version": number + 1}
    question = message(session, exchange_id, rank, "user", f"question {number}")
    answer = message(session, exchange_id, rank + 1, "assistant", f"answer {number} {words}")
    fields = {"exchange_id": exchange_id, "session": after, "messages": [question, answer]}
    return record("turn", session, exchange_id, fields)


def ask_of(session: Session, number: int) -> Record:
    """The question of a turn that has not ended."""
    exchange_id, rank = f"x{number}", 2 * number
    now = {**session.stored(), "title": "T", "updated_at": AT, "next_rank": rank, "version": number}
    question = message(session, exchange_id, rank, "user", f"question {number}")
    return record("ask", session, exchange_id, {"session": now, "message": question})


def left_by_old(directory: Path, records: list[Record], done: int = 0) -> Path:
    """Its directory: it wrote the records, removed the first `done` of them, and was killed."""
    command = [sys.executable, "-m", "tests.support.old_spool", str(directory), str(done)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as old:
        assert old.stdin is not None
        assert old.stdout is not None
        old.stdin.write("".join(f"{json.dumps(one)}\n" for one in records))
        old.stdin.close()
        assert old.stdout.readline() == "written\n"
        old.kill()
    assert old.returncode == -signal.SIGKILL
    assert (directory / "spool-000001.sqlite-wal").stat().st_size > 0
    return directory


@pytest.mark.parametrize("missing", ["", "newest", "reserve", "lock", "spool-000001.sqlite-shm"])
async def test_turns_that_the_program_before_left_reach_postgres_in_order(
    held: Persistence,
    build: Build,
    database: Database,
    tmp_path: Path,
    missing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone, one, other = [await new_session(held) for _ in range(3)]
    held.owner.close()
    turns = [turn_of(session, number) for number in range(3) for session in (one, other)]
    left = left_by_old(tmp_path / "old", [turn_of(gone, 0), turn_of(gone, 1), *turns, ask_of(one, 3)], done=2)
    if missing:
        (left / missing).unlink()

    kpi = Kpi(CollectorRegistry(), service="agentic")
    heir = build(database.settings(), own_kpi=kpi, persistence={"spool_dir": str(left)})
    await heir.database.connect_until_ready(lambda _state: None)
    assert heir.dependencies()["postgres"]["pending_records"] == 7
    seen = await history_of(heir.store, other.id, USER)
    assert [loads(text)["rank"] for text in seen] == list(range(6))
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0

    assert stored_ranks(database.dsn, one) == [(rank, f"x{rank // 2}") for rank in range(8)]
    assert stored_ranks(database.dsn, other) == [(rank, f"x{rank // 2}") for rank in range(6)]
    assert stored_ranks(database.dsn, gone) == []  # the program before had them stored
    last = loads((await heir.store.exchange(one.id, USER, "x3"))[-1])
    assert last["metadata"]["extras"] == {"status": "interrupted", "interrupted_by": "restart"}
    assert total(kpi, "app_persist_replayed_total") == 7
    assert heir.dependencies()["spool"] == {"status": "up", "dead_letters": 0}
    assert "ALARM" not in caplog.text


async def test_a_spool_of_the_program_before_is_written_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = Session.new(USER, "georges", "")
    left = left_by_old(tmp_path / "old", [turn_of(session, number, WORDS) for number in range(120)], done=100)
    assert (left / "spool-000001.sqlite").stat().st_size > 1_000_000  # SQLite has copied the log, and left some in it
    spool = Spool(left, lambda _: None)
    spool.start()
    assert [entry.id for entry in spool.waiting] == list(range(101, 121))
    id_, landed = spool.put("turn", (session.id, USER), "new", b"{}")
    await landed
    assert (id_, Mark(left / "newest").newest) == (121, 121)
    spool.done(range(101, 121))
    await spool.aclose()

    again = Spool(left, lambda _: None)
    assert [(entry.id, entry.exchange_id) for entry in again.waiting] == [(121, "new")]
    await again.aclose()
    assert not list(left.glob("*.corrupt"))
    assert "ALARM" not in caplog.text


async def test_the_mark_of_the_program_before_tells_that_an_end_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    session = Session.new(USER, "georges", "")
    left = left_by_old(tmp_path / "old", [turn_of(session, number, WORDS) for number in range(120)])
    (left / "spool-000001.sqlite-wal").unlink()
    spool = Spool(left, lambda _: None)
    here = [entry.id for entry in spool.waiting]
    assert here == list(range(1, len(here) + 1))
    assert f"the newest record here is {len(here)}, 120 had been committed" in caplog.text
    spool.start()
    id_, landed = spool.put("turn", (session.id, USER), "new", b"{}")
    await landed
    assert id_ == 121  # no number of a record that is missing is given again
    await spool.aclose()


async def test_a_spool_that_the_program_before_had_emptied_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session.new(USER, "georges", "")
    left = left_by_old(tmp_path / "old", [turn_of(session, number) for number in range(3)], done=3)
    spool = Spool(left, lambda _: None)
    spool.start()
    assert (spool.waiting, spool.records) == ([], 0)
    id_, landed = spool.put("turn", (session.id, USER), "new", b"{}")
    await landed
    assert id_ == 4
    await spool.aclose()
    assert "ALARM" not in caplog.text
