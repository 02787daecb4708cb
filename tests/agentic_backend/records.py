"""What the tests of persistence share: settings for a database, turns to store, a look into the tables."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from agentic_backend.events import ChatMessage, text_part
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import HistoryWindow, Session, TurnRecord
from agentic_backend.session.store import SessionStore
from agentic_backend.settings import AgenticSettings
from agentic_backend.spool import spoolfile
from backend_kit.kpi import Kpi
from tests.support.patience import PATIENCE_S

USER = "ada"
EVERYTHING = HistoryWindow()

BEFORE_FLEETS = """
DROP TABLE attachment_image;
DROP TABLE share_link;
DROP INDEX feedbacks_newest;
ALTER TABLE feedbacks DROP COLUMN reason;
ALTER TABLE session DROP COLUMN metadata, DROP COLUMN created_at;
DROP TABLE agent_version;
ALTER TABLE agent DROP COLUMN version, DROP COLUMN created_at;
DROP TABLE agent_grant;
DROP TABLE audit_event;
DROP FUNCTION keep_audit_event(), keep_audit_events(), prune_audit(integer, integer);
DROP TABLE instance;
DROP TABLE user_share;
ALTER TABLE session_lease DROP COLUMN exchange_id, DROP COLUMN ask, DROP COLUMN runs, DROP COLUMN deaths,
    ADD COLUMN expires_at timestamptz NOT NULL
"""
"""Makes of the present tables those of revision 0009."""


class BadDisk:
    """A disk whose commits fail with an error while it is `broken`, as those of an unplugged one do."""

    def __init__(self, error: Exception) -> None:
        self.broken = False
        self._error = error

    def connect(self, path: Path) -> sqlite3.Connection:
        """Open a spool file on it."""
        spoolfile.connect(path).close()
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
                if sql == "COMMIT" and disk.broken:
                    raise disk._error
                return super().execute(sql, *parameters)  # type: ignore[arg-type]

        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)
        connection.execute("PRAGMA journal_mode = WAL")
        return connection


def settings_for(where: dict[str, Any], **sections: Any) -> AgenticSettings:
    """Settings of the service on this database; `sections` replace whole sections, `where` may hold pool keys."""
    return AgenticSettings.model_validate(
        {
            "security": {"user": {"enabled": False}},
            "ai": {"default_chat_model": {"name": "mock"}},
            "storage": {"postgres": where},
            **sections,
        }
    )


def messages_of(
    session: Session,
    exchange_id: str,
    texts: tuple[str, ...],
    *,
    answer_metadata: dict[str, Any] | None = None,
    after_rank: int | None = None,
) -> tuple[ChatMessage, ...]:
    """A user's message and answers, ranks from the session's next one on. With `after_rank` the question begins behind
    that message."""
    asked = {"model": "mock", "ratio": 1.5} if answer_metadata is None else answer_metadata
    question = asked if after_rank is None else {"extras": {"after_rank": after_rank}}
    return tuple(
        ChatMessage.build(
            session_id=session.id,
            exchange_id=exchange_id,
            rank=session.next_rank + place,
            role="user" if place == 0 else "assistant",
            channel="final",
            parts=[text_part(text)],
            metadata=question if place == 0 else asked,
        )
        for place, text in enumerate(texts)
    )


def turn(
    session: Session,
    exchange_id: str,
    *texts: str,
    metadata: dict[str, Any] | None = None,
    after_rank: int | None = None,
) -> TurnRecord:
    """The next turn of a session. Its `session` is the session after it."""
    said = texts or ("question", "answer")
    messages = messages_of(session, exchange_id, said, answer_metadata=metadata, after_rank=after_rank)
    after = session.advanced(session.next_rank + len(messages), session.title or "A title")
    return TurnRecord(after, exchange_id, messages)


def turns(session: Session, count: int) -> list[TurnRecord]:
    """The next `count` turns of a session."""
    made: list[TurnRecord] = []
    for number in range(count):
        made.append(turn(session, f"x{session.version + 1}", f"question {number}", f"answer {number}"))
        session = made[-1].session
    return made


def with_bytes(record: TurnRecord, old: bytes, new: bytes) -> TurnRecord:
    """The record with other bytes in its messages' encodings, as no encoder of ours would write them.

    `old` names the key: times and ids hold any digits.
    """
    messages = tuple(
        ChatMessage(
            m.session_id,
            m.exchange_id,
            m.rank,
            m.timestamp,
            m.role,
            m.channel,
            m.json.replace(old, new),
        )
        for m in record.messages
    )
    return TurnRecord(record.session, record.exchange_id, messages)


async def history_of(
    store: SessionStore, session_id: str, user_id: str = USER, window: HistoryWindow = EVERYTHING
) -> list[bytes]:
    """All messages of a window, which has no large one."""
    pages = [page async for page in store.pages(session_id, user_id, window)]
    assert not [page for page in pages if page.large is not None]
    return [message for page in pages for message in page.messages]


async def message_of(store: SessionStore, session_id: str, user_id: str, rank: int) -> bytes | None:
    """One message, None where there is none."""
    return b"".join([piece async for piece in store.message(session_id, user_id, rank)]) or None


async def new_session(persistence: Persistence, user_id: str = USER, title: str = "") -> Session:
    """A stored session."""
    session = Session.new(user_id, "georges", title)
    await persistence.store.create(session)
    return session


def rows(dsn: str, query: str, *parameters: object) -> list[Any]:
    """Look into the database past the service."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def stored_ranks(dsn: str, session: Session) -> list[tuple[int, str]]:
    """(rank, exchange_id) of the session's rows, ascending."""
    return rows(dsn, "SELECT rank, exchange_id FROM session_history WHERE session_id = %s ORDER BY rank", session.id)


def observations(kpi: Kpi, metric: str, **labels: str) -> float:
    """How many observations a histogram has taken."""
    return kpi.registry.get_sample_value(f"{metric}_count", labels) or 0.0


def total(kpi: Kpi, metric: str, **labels: str) -> float:
    """The value of a counter or gauge."""
    return kpi.registry.get_sample_value(metric, labels) or 0.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of, in another process say."""
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0.02)


async def until_waiting(dsn: str, count: int) -> None:
    """Wait until so many connections to this database queue for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: bool(rows(dsn, query)[0][0] >= count))
