"""Background work after writes to Postgres, for which no caller waits."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from typing import Final

from backend_kit.aio.retry import Backoff, QuietLog, keep_trying
from knowledge_flow_backend.errors import DocumentsUnavailable
from knowledge_flow_backend.index.database import IndexDatabase

TICK_S: Final = 1.0


class CatchUp(ABC):
    """Catches up whenever something was written, and once a second for what another process wrote."""

    def __init__(self, database: IndexDatabase, log: logging.Logger, behind: str) -> None:
        """`behind` names in a log line what is out of date while the work fails."""
        self._database = database
        self._log = QuietLog(log)
        self._behind = behind
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Catch up at once, since something was written; otherwise the next look may be a second away."""
        self._woken.set()

    async def follow_writes(self) -> None:
        """Catch up until cancelled. Failures are logged, once a second at most, and retried with growing waits."""
        await self._database.wait_ready()
        while True:
            self._woken.clear()
            await keep_trying(self.catch_up, DocumentsUnavailable, Backoff(), on_failure=self._failed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()

    @abstractmethod
    async def catch_up(self) -> None:
        """Do all there is to do now. Raises `DocumentsUnavailable`; what is done by then stays done."""

    def _failed(self, failure: DocumentsUnavailable) -> None:
        self._log.warning("behind", "%s: %s; trying on", self._behind, failure)
