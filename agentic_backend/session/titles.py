"""Titles written by a model, in the background after the answer: no event of a turn waits for one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from agentic_backend.errors import HistoryUnavailable, StorageFull, TurnFailed
from agentic_backend.session.exchange import title_from
from agentic_backend.session.models import Session
from agentic_backend.session.store import SessionStore
from backend_kit.aio import TaskRegistry

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 4
_WAITING: Final = 100
_MARKUP: Final = " \t#*_`\"'«»“”.…"


class Writer(Protocol):
    """A writer of titles."""

    async def write(self, question: str, answer: str) -> str:
        """A title for a conversation that begins like this. May raise `TurnFailed`."""


class Titles:
    """Gives sessions better titles than their first question, at most four at once; `renamed` gets each session.

    A session keeps its title if no better one arrives: the model fails or returns nothing, a hundred sessions wait
    already, it takes over `deadline_s` seconds, or the service ends.
    """

    def __init__(
        self,
        writer: Writer,
        store: SessionStore,
        tasks: TaskRegistry,
        renamed: Callable[[Session], Awaitable[None]],
        *,
        deadline_s: float = 30.0,
    ) -> None:
        self._deadline_s = deadline_s
        self._writer = writer
        self._store = store
        self._tasks = tasks
        self._renamed = renamed
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._outstanding = 0

    def begin(self, session: Session, question: str, answer: str) -> None:
        """Request a title for a session whose first turn has just ended. Never waits, never raises."""
        if self._outstanding >= _WAITING:
            return
        self._outstanding += 1
        self._tasks.spawn("title", lambda: self._title(session, question, answer))

    async def _title(self, session: Session, question: str, answer: str) -> None:
        try:
            async with self._slots, asyncio.timeout(self._deadline_s):
                title = tidy(await self._writer.write(question, answer))
                if not title or title == session.title:
                    return
                changed = await self._store.change(session.id, session.user_id, title=title)
        except (TurnFailed, TimeoutError, HistoryUnavailable, StorageFull) as error:
            logger.info("no title for session_id=%s: %s", session.id, type(error).__name__)
            return
        finally:
            self._outstanding -= 1
        if changed is not None:
            await self._renamed(changed)


def tidy(said: str) -> str:
    """A model's text as a title: its first line without quotes and markup, printable, at most 60 characters."""
    printable = "".join(char if char.isprintable() or char == "\n" else " " for char in said.strip())
    return title_from(printable.strip(_MARKUP)).strip(_MARKUP)
