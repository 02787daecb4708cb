"""The messages of a session, page by page: what Postgres has, then what is pending; a page in memory at a time."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.events import ChatMessage
from agentic_backend.persist.database import Queries
from agentic_backend.session.branches import Fork, forks_in, line_forks, marked, superseded_by
from agentic_backend.session.models import HistoryPage, HistoryWindow, TurnRecord
from agentic_backend.spool.pending import RANK_LIMIT, Key, Op, Pending, superseded_ranks
from agentic_backend.spool.statements import CUT_MESSAGE_PIECE, FORKS, HISTORY_PAGE, MESSAGE_PIECE

PAGE_BYTES: Final = 256 * 1024
"""Bytes of the messages of a page, unless it has only one. A page is in memory three times while it is read."""
LARGE_BYTES: Final = 1024 * 1024
"""A message above this size is not part of a page, but read in pieces."""
PIECE_CHARS: Final = 256 * 1024
"""Characters of a large message that are read at a time: at most four times as many bytes."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A pending turn with the ranks of its messages, and what it supersedes. The messages of a small turn are kept,
    those of a large one read again."""

    op: Op
    ranks: tuple[int, ...]
    messages: tuple[ChatMessage, ...] | None
    forks: tuple[Fork, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """What a read of a session leaves out, or marks: the same from its first page to its last.

    `superseded` are the parameters by which statements know what to leave out. With `marks`, the forks by which
    superseded messages are marked, they leave out nothing.
    """

    superseded: dict[str, object]
    marks: tuple[Fork, ...] = ()

    def marked(self, message: bytes, rank: int) -> bytes:
        """The message as readers get it."""
        return marked(message, superseded_by(self.marks, rank)) if self.marks else message


class HistoryReader:
    """Reads windows of a session's messages, and single ones of any size.

    A page takes a connection for one statement; none is held between two pages, however long its reader takes.
    """

    def __init__(self, queries: Queries, pending: Pending) -> None:
        self._queries = queries
        self._pending = pending

    async def pages(self, key: Key, window: HistoryWindow) -> AsyncIterator[HistoryPage]:
        """See `SessionStore.pages`. What is committed while this reads is found in one of the two, and returned
        once."""
        if window.limit == 0:
            return
        end = RANK_LIMIT if window.up_to is None else min(window.up_to + 1, RANK_LIMIT)
        # Before Postgres, not after: what is committed in between is then in at least one of the two.
        waiting = await self._waiting(key)
        pending_forks = [fork for one in waiting for fork in one.forks]
        on_line = line_forks(pending_forks, window.up_to)
        ranks = [rank for one in waiting for rank in one.ranks if rank < end]
        below = ranks[0] if ranks else end
        if not window.branches:
            ranks = [rank for rank in ranks if superseded_by(on_line, rank) is None]
        last = max(0, len(ranks) - window.offset)
        chosen = ranks[:last] if window.limit is None else ranks[last - min(last, window.limit) : last]
        limit = None if window.limit is None else min(window.limit, RANK_LIMIT) - len(chosen)
        # What was pending is returned as it was when this began: of stored forks only those before it count.
        line = _Line(superseded_ranks(on_line, below))
        if below > 0 and limit != 0:
            if waiting and self._queries.just_failed:
                # The look-up of the session has waited already; only pending turns have brought the reader this far.
                raise HistoryUnavailable("the older part of the history is in Postgres")
            if window.branches:
                forks = [*await self._stored_forks(key, below), *pending_forks]
                line = _Line(superseded_ranks((), 0), tuple(line_forks(forks, window.up_to)))
            older = HistoryWindow(limit, min(max(0, window.offset - len(ranks)), RANK_LIMIT))
            async for page in self._stored(key, 0, below, older, line, more=bool(chosen)):
                yield page
        elif window.branches:
            line = _Line(line.superseded, tuple(on_line))
        if chosen:
            async for page in self._newer(key, waiting, chosen, line):
                yield page

    async def _stored_forks(self, key: Key, below: int) -> list[Fork]:
        values: dict[str, object] = {"session_id": key[0], "user_id": key[1], "forks_below": below}
        rows = await self._queries.fetch("forks", FORKS, values)
        return [Fork(row.rank, row.after_rank, row.exchange_id) for row in rows]

    async def pieces(
        self, key: Key, rank: int, text: HistoryWindow | None, pending_forks: Sequence[Fork]
    ) -> AsyncIterator[bytes]:
        """See `SessionStore.message`, of which this reads what Postgres has."""
        statement, op = MESSAGE_PIECE, "get_message"
        values: dict[str, object] = {"session_id": key[0], "user_id": key[1], "rank": rank, "chars": PIECE_CHARS}
        if text is not None:
            statement, op = CUT_MESSAGE_PIECE, "get_cut_message"
            values |= {"text_start": min(text.offset, RANK_LIMIT - 1) + 1, "text_chars": text.limit}
        forks = line_forks({*await self._stored_forks(key, RANK_LIMIT), *pending_forks})
        values["superseded_by"] = superseded_by(forks, rank)
        start, size = 1, None
        while True:
            rows = await self._queries.fetch(op, statement, {**values, "start": start})
            if not rows and start == 1:
                return
            if not rows or (size is not None and size != rows[0].bytes):
                raise HistoryUnavailable("a message was changed while it was read")
            piece, size = rows[0].piece, rows[0].bytes
            if piece:
                yield piece.encode()
            if len(piece) < PIECE_CHARS:
                return
            start += PIECE_CHARS

    async def _waiting(self, key: Key) -> list[_Waiting]:
        found, kept = [], 0
        # An exchange that was interrupted and ran again replaces its earlier record.
        for op in {op.exchange_id: op for op in self._pending.turns(key)}.values():
            messages = await self._messages(op)
            kept += op.size
            ranks = tuple(message.rank for message in messages)
            if ranks:
                small = messages if kept <= PAGE_BYTES else None
                found.append(_Waiting(op, ranks, small, tuple(forks_in(messages[:1]))))
        return found

    async def _messages(self, op: Op) -> tuple[ChatMessage, ...]:
        """Those of a pending turn; none once it is committed."""
        body = (await self._pending.read([op])).get(op)
        return () if body is None else TurnRecord.decode(body).messages

    async def _newer(
        self, key: Key, waiting: Sequence[_Waiting], chosen: Sequence[int], line: _Line
    ) -> AsyncIterator[HistoryPage]:
        wanted = set(chosen)
        told: list[bytes] = []
        size = 0
        for one in waiting:
            mine = [rank for rank in one.ranks if rank in wanted]
            if not mine:
                continue
            messages = await self._messages(one.op) if one.messages is None else one.messages
            said = [line.marked(message.json, message.rank) for message in messages if message.rank in wanted]
            if told and (not messages or size + sum(map(len, said)) > PAGE_BYTES):
                yield HistoryPage(told)
                told, size = [], 0
            if not messages:
                # It has been committed since.
                async for page in self._stored(key, mine[0], mine[-1] + 1, HistoryWindow(), line, more=True):
                    yield page
            told += said
            size += sum(map(len, said))
        yield HistoryPage(told, last=True)

    async def _stored(
        self, key: Key, first: int, below: int, window: HistoryWindow, line: _Line, *, more: bool
    ) -> AsyncIterator[HistoryPage]:
        """The window over the messages from `first` to before `below` in Postgres. `more`: others follow."""
        values: dict[str, object] = {
            "session_id": key[0],
            "user_id": key[1],
            "page_bytes": PAGE_BYTES,
            "large_bytes": LARGE_BYTES,
        }
        while True:
            place = {"first": first, "below": below, "limit": window.limit, "offset": window.offset}
            rows = await self._queries.fetch("history", HISTORY_PAGE, values | place | line.superseded)
            if not rows:
                return
            reached, last = rows[-1].rank, rows[-1].last
            large = rows[0].rank if rows[0].message is None else None
            messages = [] if large is not None else [line.marked(row.message.encode(), row.rank) for row in rows]
            # A fork that is committed while this is read does not count any more.
            line = _Line({"superseded": rows[0].superseded, "forks_below": 0}, line.marks)
            del rows  # not held while the page is sent
            yield HistoryPage(messages, large, reached == last and not more)
            if reached == last:
                return
            first, below, window = reached + 1, last + 1, HistoryWindow()
