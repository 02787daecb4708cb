"""The messages of a session as the parts of an answer, as JSON or as its caller writes them, whatever their size."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from agentic_backend.rest.answers import AnswerPart, Parts
from agentic_backend.session.models import HistoryPage, HistoryWindow, cut_texts
from agentic_backend.session.store import SessionStore

_OFF_LOOP_BYTES: Final = 64 * 1024
"""Pages of more bytes than this are encoded in a thread."""


class MessageReader:
    """Reads one session's messages. With `text` each of their texts is cut to that window of characters."""

    def __init__(self, store: SessionStore, session_id: str, user_id: str, text: HistoryWindow | None = None) -> None:
        self._store = store
        self._key = (session_id, user_id)
        self._text = text

    async def json(self, window: HistoryWindow) -> Parts:
        """The messages, with commas between them. May raise `HistoryUnavailable`."""
        between = b""
        async for page in self._store.pages(*self._key, window):
            if page.large is None:
                yield AnswerPart(between + await written_page(page, self._joined), page.last)
            else:
                async for piece in self._store.message(*self._key, page.large, self._text):
                    yield AnswerPart(between + piece)
                    between = b""
                if page.last:
                    yield AnswerPart(b"", last=True)
            between = b","

    async def written(self, write: Callable[[Sequence[bytes]], bytes], write_large: Callable[[int], bytes]) -> Parts:
        """All messages a page at a time, encoded by `write`, and by `write_large`, with its rank, one that is too large
        for memory. May raise `HistoryUnavailable`."""
        async for page in self._store.pages(*self._key, HistoryWindow()):
            written = await written_page(page, write) if page.large is None else write_large(page.large)
            yield AnswerPart(written, page.last)

    def _joined(self, messages: Sequence[bytes]) -> bytes:
        cut = self._text
        return b",".join(messages if cut is None else [cut_texts(message, cut) for message in messages])


async def written_page(page: HistoryPage, write: Callable[[Sequence[bytes]], bytes]) -> bytes:
    """The messages of a page encoded by `write`, in a thread if they are many bytes. The page is emptied."""
    if sum(map(len, page.messages)) <= _OFF_LOOP_BYTES:
        written = write(page.messages)
    else:
        written = await asyncio.to_thread(write, page.messages)
    # The generators below are suspended where they yielded the page, and hold it until the next one is asked for.
    page.messages.clear()
    return written


async def enclosed(head: bytes, parts: Parts, end: bytes) -> Parts:
    """The parts between two texts. One part, or none, stays a single part."""
    last = False
    async for part in parts:
        last = part.last
        yield AnswerPart(head + part.body + (end if last else b""), last)
        head = b""
    if not last:
        yield AnswerPart(head + end, last=True)
