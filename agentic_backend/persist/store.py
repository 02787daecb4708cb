"""Sessions and history as their readers see them: what Postgres has, overlaid with what is pending."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from agentic_backend.errors import HistoryUnavailable, StorageFull
from agentic_backend.events import asked_images, utc_now
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import Queries
from agentic_backend.persist.history import HistoryReader
from agentic_backend.persist.listing import SessionList, session_of
from agentic_backend.session.branches import Standing, forks_in, line_forks, marked, standing_of, superseded_by
from agentic_backend.session.models import HistoryPage, HistoryWindow, Session, SessionsWanted, checkpoint_of, cut_texts
from agentic_backend.session.store import ALL_SESSIONS
from agentic_backend.spool.batcher import Batcher
from agentic_backend.spool.cache import HistoryCache, RememberedExchange
from agentic_backend.spool.pending import RANK_LIMIT, Change, Key, Pending, PendingLine, overlaid, superseded_ranks
from agentic_backend.spool.statements import (
    CREATE_SESSION,
    EXCHANGE,
    EXCHANGE_IDS,
    GET_SESSION,
    NEWEST_CHECKPOINT,
    REMEMBERED,
    STANDING,
    TOUCH_SESSION,
)
from backend_kit.auth import AuditEvent
from backend_kit.db.pool import AnyRow
from backend_kit.wire import dumps

_CREATE_S = 10.0
"""A burst of new sessions waits this long at most. Its clients come back after a second."""


class PostgresSessionStore:
    """Implements `SessionStore`.

    Reads and small writes take one connection of the main pool for one statement. Where Postgres does not answer
    they raise `HistoryUnavailable`: immediately if it refuses, after `pool_timeout` if no connection comes free.
    What is pending overlays what is stored, so a reader finds a turn as soon as its `final` was sent.
    New sessions are made `creating` at a time: the others wait here, and leave the pool to the turns.
    A delete or a change waits `commit_s` seconds for its commit, then `spool_s` for the disk.
    The callers time the phases (session_read, history_get and so on), since they know the purpose of a read.
    """

    def __init__(
        self,
        queries: Queries,
        pending: Pending,
        batcher: Batcher,
        cache: HistoryCache,
        *,
        metrics: AgenticMetrics,
        creating: int,
        commit_s: float = 5.0,
        spool_s: float = 1.0,
    ) -> None:
        self._creating = asyncio.Semaphore(creating)
        self._commit_s = commit_s
        self._spool_s = spool_s
        self._queries = queries
        self._sessions = SessionList(queries, pending)
        self._reader = HistoryReader(queries, pending)
        self._pending = pending
        self._batcher = batcher
        self._cache = cache
        self._metrics = metrics

    async def create(
        self, session: Session, most: int = 0, metadata: dict[str, Any] | None = None
    ) -> Literal["made", "there"] | None:
        """See `SessionStore`, and `ThreadStore` with `metadata`."""
        data = {"title": session.title, "next_rank": session.next_rank, "preferences": session.preferences}
        values = {
            "session_id": session.id,
            "user_id": session.user_id,
            "agent_id": session.agent_id,
            "data": dumps(data).decode(),
            "updated_at": session.updated_at,
            "version": session.version,
            "metadata": dumps(metadata or {}).decode(),
            "most": most,
        }
        try:
            async with asyncio.timeout(_CREATE_S):
                await self._creating.acquire()
        except TimeoutError:
            raise HistoryUnavailable("too many new sessions at once", retry_after_s=1.0) from None
        try:
            made = await self._queries.fetch("create_session", CREATE_SESSION, values)
        finally:
            self._creating.release()
        # A session that existed may have exchanges, which the cache would never see.
        if made and made[0].is_new and session.next_rank == 0:
            self._cache.begin((session.id, session.user_id))
        if not made:
            return None
        return "made" if made[0].is_new else "there"

    async def get(self, session_id: str, user_id: str) -> Session | None:
        """The session including pending operations, or None.

        If Postgres is away it is the session as its pending turn leaves it; without one raises `HistoryUnavailable`.
        """
        key = (session_id, user_id)
        if not _is_id(session_id) or self._pending.deletion(key) is not None:
            return None
        # Taken before the query: what is committed while it runs may be in neither.
        pending = self._pending.ops(key)
        try:
            rows = await self._queries.fetch("get_session", GET_SESSION, _of(key))
        except HistoryUnavailable:
            session = overlaid(None, pending)
            if session is None:
                raise
            return session
        return overlaid(replace(session_of(rows[0]), rested=rows[0].rested), pending) if rows else None

    async def touch(self, session_id: str, user_id: str) -> bool:
        """Store that a session is used again after a long time, so that retention keeps it. False if it is gone."""
        return bool(await self._queries.fetch("touch_session", TOUCH_SESSION, _of((session_id, user_id))))

    async def list_for(self, user_id: str, wanted: SessionsWanted = ALL_SESSIONS) -> list[Session]:
        """The user's sessions including pending operations, newest first, in one query."""
        return await self._sessions.page(user_id, wanted)

    async def delete(self, session_id: str, user_id: str, event: AuditEvent | None = None) -> bool:
        """See `SessionStore`.

        Returns after the commit. If that takes over `commit_s`, the spool suffices: the session is hidden from its
        readers and deleted as soon as Postgres can. Without a spool it raises `HistoryUnavailable` in that case.
        """
        if not _is_id(session_id):
            return False
        key = (session_id, user_id)
        committed, on_disk = self._batcher.delete(key, event)
        self._cache.forget(key)
        return await self._decided(committed, on_disk)

    async def change(
        self,
        session_id: str,
        user_id: str,
        *,
        title: str | None = None,
        preferences: dict[str, Any] | None = None,
        pinned: bool | None = None,
        by_person: bool = False,
    ) -> Session | None:
        """See `SessionStore`. Waits as `delete`."""
        session = await self.get(session_id, user_id)
        if session is None:
            return None
        # Naming or pinning a conversation does not count as using it: it stays where it was in the list.
        at = session.updated_at if by_person else utc_now()
        named = True if by_person and title is not None else None
        change = Change((session_id, user_id), at, title, preferences, pinned, named)
        committed, on_disk = self._batcher.change(change)
        if not await self._decided(committed, on_disk):
            return None
        # A person may have named it since it was read: then this title is not the one that it has now.
        return change.of(session) if title is None or by_person else await self.get(session_id, user_id)

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:
        """See `SessionStore`."""
        key = (session_id, user_id)
        if not self._may_exist(key):
            return set()
        # Taken before the query: what is committed while it runs may be in neither.
        pending = {op.exchange_id for op in self._pending.turns(key)}
        rows = await self._queries.fetch("exchange_ids", EXCHANGE_IDS, {**_of(key), "most": most})
        return set(islice(pending | {row.exchange_id for row in rows}, most))

    async def newest_checkpoint(self, session_id: str, user_id: str, agent_id: str, up_to: int | None = None) -> str:
        """See `SessionStore`. Read from memory where it is pending, else by one query."""
        key = (session_id, user_id)
        if not self._may_exist(key):
            return ""
        line = PendingLine.of(await self._pending.messages(key), up_to)
        for message in reversed(line.messages):
            if checkpoint := checkpoint_of(message, agent_id):
                return checkpoint
        values = {**_of(key), "agent_id": agent_id, **line.stored()}
        rows = await self._queries.fetch("newest_checkpoint", NEWEST_CHECKPOINT, values)
        return str(rows[0].checkpoint) if rows else ""

    async def standing(self, session_id: str, user_id: str, rank: int) -> Standing | None:
        """See `SessionStore`. Read from memory where it is pending, else by one query."""
        key = (session_id, user_id)
        if not self._may_exist(key) or not 0 <= rank <= RANK_LIMIT:
            return None
        messages = await self._pending.messages(key)
        if (standing := standing_of(messages, rank)) is not None:
            return standing
        values = {**_of(key), "rank": rank, **superseded_ranks(line_forks(forks_in(messages)), RANK_LIMIT)}
        rows = await self._queries.fetch("standing", STANDING, values)
        return Standing(rows[0].live, rows[0].follows is not False) if rows else None

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:
        """See `SessionStore`. Raises `StorageFull` as described there."""
        key = (session_id, user_id)
        if not self._may_exist(key):
            return []
        if any(op.exchange_id == exchange_id and not op.kept for op in self._pending.turns(key)):
            # It ended with `storage_full` and may still be lost: replaying it would present its end as durable.
            raise StorageFull(retry_after_s=self._commit_s)
        for record in await self._pending.records(key):
            if record.exchange_id == exchange_id:
                return [message.json for message in record.messages]
        rows = await self._queries.fetch("exchange", EXCHANGE, {**_of(key), "exchange_id": exchange_id})
        return [row.message.encode() for row in rows]

    async def pages(self, session_id: str, user_id: str, window: HistoryWindow) -> AsyncIterator[HistoryPage]:
        """See `SessionStore`."""
        key = (session_id, user_id)
        if self._may_exist(key):
            async for page in self._reader.pages(key, window):
                yield page

    async def message(
        self, session_id: str, user_id: str, rank: int, text: HistoryWindow | None = None
    ) -> AsyncIterator[bytes]:
        """See `SessionStore`."""
        key = (session_id, user_id)
        if not self._may_exist(key) or not 0 <= rank <= RANK_LIMIT:
            return
        pending = await self._pending.messages(key)
        forks = forks_in(pending)
        for message in pending:
            if message.rank == rank:
                whole = marked(message.json, superseded_by(line_forks(forks), rank))
                yield whole if text is None else cut_texts(whole, text)
                return
        async for piece in self._reader.pieces(key, rank, text, forks):
            yield piece

    async def remembered(
        self, session_id: str, user_id: str, max_exchanges: int, up_to: int | None = None
    ) -> list[HistoryItem]:
        """See `SessionStore`.

        Exchanges that failed, were interrupted or have no answer count among the last ones but are left out. Read from
        memory if the session was used lately, else by one query: up to a rank always by that.
        """
        key = (session_id, user_id)
        if max_exchanges <= 0 or not self._may_exist(key):
            return []
        exchanges = self._cache.get(key, max_exchanges) if up_to is None else None
        self._metrics.cache_request("history", hit=exchanges is not None)
        if exchanges is None:
            exchanges = await self._restore(key, max_exchanges, up_to)
        return [item for exchange in exchanges for item in exchange.items]

    async def _restore(self, key: Key, depth: int, up_to: int | None) -> list[RememberedExchange]:
        records = await self._pending.records(key)
        line = PendingLine.of([message for record in records for message in record.messages], up_to)
        ranks = {message.rank for message in line.messages}
        pending = [record for record in records if record.messages[0].rank in ranks]
        values = {**_of(key), "messages": 2 * depth, **line.stored()}
        if up_to is not None:
            exchanges = _exchanges(await self._queries.fetch("remembered", REMEMBERED, values))
            exchanges += [found for record in pending if (found := RememberedExchange.of(record))]
            return exchanges[max(0, len(exchanges) - depth) :]
        loading = self._cache.load(key, depth, pending)
        try:
            return self._cache.loaded(loading, _exchanges(await self._queries.fetch("remembered", REMEMBERED, values)))
        finally:
            self._cache.end(loading)

    def _may_exist(self, key: Key) -> bool:
        return _is_id(key[0]) and self._pending.deletion(key) is None

    async def _decided(self, committed: "asyncio.Future[bool]", on_disk: "asyncio.Future[None] | None") -> bool:
        """Whether an operation found its session; True too if its commit is pending but certain."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._commit_s):
                return await asyncio.shield(committed)
        if on_disk is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._spool_s):
                    await asyncio.shield(on_disk)
                    return True
        raise HistoryUnavailable("an operation waits for Postgres")


def _of(key: Key) -> dict[str, object]:
    return {"session_id": key[0], "user_id": key[1]}


def _is_id(session_id: str) -> bool:
    """Whether it may be a session id. Ours are printable ASCII; Postgres refuses some others, e.g. with NUL."""
    return session_id.isascii() and session_id.isprintable()


def _exchanges(rows: Sequence[AnyRow]) -> list[RememberedExchange]:
    """Rows of final messages, newest first, as whole exchanges that did not fail, oldest first."""
    questions: dict[str, str] = {}
    images: dict[str, tuple[str, ...]] = {}
    answers: dict[str, str] = {}
    checkpoints: dict[str, str] = {}
    failed: set[str] = set()
    for row in reversed(rows):
        if row.failed:
            failed.add(row.exchange_id)
        elif row.role == "user":
            questions[row.exchange_id] = row.text or ""
            images[row.exchange_id] = asked_images(row.with_images or [])
        elif row.text or row.checkpoint:
            answers[row.exchange_id] = row.text or ""
            checkpoints[row.exchange_id] = row.checkpoint
    return [
        RememberedExchange.of_texts(
            exchange_id, question, answers[exchange_id], checkpoints[exchange_id], images[exchange_id]
        )
        for exchange_id, question in questions.items()
        if exchange_id in answers and exchange_id not in failed and (question or checkpoints[exchange_id])
    ]
