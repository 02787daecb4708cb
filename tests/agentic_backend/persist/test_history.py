"""Histories in pages: what is in memory at a time, that no connection is held meanwhile, and that all is told once."""

from collections.abc import AsyncIterator

import pytest

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.persist.history import LARGE_BYTES, PAGE_BYTES, PIECE_CHARS
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import HistoryPage, HistoryWindow, Session
from agentic_backend.spool.pending import Op
from backend_kit.wire import loads
from tests.agentic_backend.records import USER, message_of, new_session, turn


async def conversation(persistence: Persistence, *sizes: int, stored: bool = True) -> tuple[Session, list[bytes]]:
    """A session and its messages; the answer of each turn has so many characters."""
    session = await new_session(persistence)
    after, messages = session, []
    for number, size in enumerate(sizes):
        record = turn(after, f"x{number}", f"question {number}", "é" * size)
        persistence.batcher.push(Op.turn(record))
        after = record.session
        messages += [message.json for message in record.messages]
    if stored:
        await write_all(persistence)
    return session, messages


async def write_all(persistence: Persistence) -> None:
    while len(persistence.pending):
        await persistence.batcher._write_all()


def pages_of(
    persistence: Persistence, session: Session, window: HistoryWindow | None = None
) -> AsyncIterator[HistoryPage]:
    return persistence.store.pages(session.id, USER, window or HistoryWindow())


def decoded(messages: list[bytes]) -> list[object]:
    return [loads(message) for message in messages]


async def test_a_page_has_bounded_bytes_and_none_holds_a_connection(held: Persistence) -> None:
    session, messages = await conversation(held, *[30_000] * 20)
    told: list[bytes] = []
    async for page in pages_of(held, session):
        assert held.database.main.stats().in_use == 0
        assert page.messages
        assert sum(map(len, page.messages)) <= PAGE_BYTES
        assert page.last == (len(told) + len(page.messages) == len(messages))
        told += page.messages
    assert decoded(told) == decoded(messages)


@pytest.mark.parametrize("window", [HistoryWindow(7), HistoryWindow(7, 5), HistoryWindow(None, 11)], ids=str)
async def test_a_window_of_many_pages_is_the_window(held: Persistence, window: HistoryWindow) -> None:
    session, messages = await conversation(held, *[80_000] * 8)
    told = [message async for page in pages_of(held, session, window) for message in page.messages]
    end = len(messages) - window.offset
    assert decoded(told) == decoded(messages[max(0, end - window.limit) if window.limit else 0 : end])


async def test_pending_turns_are_paged_too(held: Persistence) -> None:
    session, messages = await conversation(held, *[60_000] * 6, stored=False)
    told: list[bytes] = []
    async for page in pages_of(held, session):
        assert sum(map(len, page.messages)) <= PAGE_BYTES
        told += page.messages
    assert told == messages


async def test_what_is_committed_between_two_pages_is_told_once(held: Persistence) -> None:
    session, messages = await conversation(held, *[60_000] * 8, stored=False)
    told: list[bytes] = []
    async for page in pages_of(held, session):
        told += page.messages
        await write_all(held)
    assert decoded(told) == decoded(messages)


async def test_a_large_message_is_read_in_pieces(held: Persistence) -> None:
    session, messages = await conversation(held, 10, LARGE_BYTES, 10)
    pages = [page async for page in pages_of(held, session)]
    assert [(page.large, len(page.messages), page.last) for page in pages] == [
        (None, 3, False),
        (3, 0, False),
        (None, 2, True),
    ]
    pieces = [piece async for piece in held.store.message(session.id, USER, 3)]
    assert max(map(len, pieces)) <= 4 * PIECE_CHARS
    assert len(pieces) > 1
    assert loads(b"".join(pieces)) == loads(messages[3])


async def test_the_texts_of_a_large_message_are_cut_where_it_is_stored(held: Persistence) -> None:
    session, messages = await conversation(held, LARGE_BYTES)
    whole = loads(messages[1])
    for window, text in ((HistoryWindow(3, 2), "é" * 3), (HistoryWindow(None, LARGE_BYTES - 1), "é")):
        (piece,) = [piece async for piece in held.store.message(session.id, USER, 1, window)]
        assert loads(piece) == {**whole, "parts": [{"type": "text", "text": text}]}


async def test_a_message_that_changes_while_it_is_read_is_no_message(held: Persistence) -> None:
    session, _ = await conversation(held, LARGE_BYTES)
    pieces = held.store.message(session.id, USER, 1)
    assert await anext(pieces)
    held.batcher.delete((session.id, USER))
    await write_all(held)
    with pytest.raises(HistoryUnavailable):
        await anext(pieces)
    assert await message_of(held.store, session.id, USER, 1) is None
