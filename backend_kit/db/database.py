"""A service's database: two pools, a schema, and whether it has answered yet."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from backend_kit.aio.retry import Backoff, QuietLog, keep_trying
from backend_kit.db.faults import AnyFault, Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import Pool
from backend_kit.db.schema import SchemaTooNew
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The state of the schema: waiting, ready, or never usable (`refused`, with the reason as text)."""

    status: Literal["connecting", "ready", "refused"]
    reason: str = ""


class Database:
    """Both pools of one service and the schema behind them. Opens nothing before it is used.

    `main` is for requests, `writes` for transactions that may take long: neither can take the other's connections.
    """

    def __init__(self, settings: Postgres, migrate: Callable[[], str], *, main: Pool, writes: Pool) -> None:
        """`migrate` brings the schema to this code's revision, which it returns; it runs in a thread, and raises
        `SchemaTooNew` or a `DatabaseFault`."""
        self.main = main
        self.writes = writes
        self.state = DatabaseState("connecting")
        self.trouble: Cause | None = None
        """Why the last use of the database failed, None if it succeeded; set by its users."""
        self._settings = settings
        self._migrate = migrate
        self._ready = asyncio.Event()
        self._log = QuietLog(logger)

    @property
    def ready(self) -> bool:
        """Whether the schema has been seen to fit. It stays true through later outages."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Wait for the first contact with a schema that fits."""
        await self._ready.wait()

    async def connect_until_ready(self, on_state: Callable[[DatabaseState], None] = lambda _state: None) -> None:
        """Bring the schema to this code's revision, trying again for as long as Postgres is away.

        Returns once the schema fits (`ready`) or can never fit (`refused`). `on_state` gets each change of `state`.
        """

        def away(error: AnyFault) -> None:
            cause = cause_of(error)
            become(DatabaseState("connecting", cause))
            where = f"{self._settings.host}:{self._settings.port}"
            message = "Postgres at %s is not ready: cause=%s sqlstate=%s; trying on"
            self._log.warning(cause, message, where, cause, sqlstate_of(error))

        def become(state: DatabaseState) -> None:
            self.state = state
            on_state(state)

        if not self.ready:
            try:
                revision = await keep_trying(
                    lambda: asyncio.to_thread(self._migrate), DatabaseFault, Backoff(), on_failure=away
                )
            except SchemaTooNew as error:
                logger.critical("%s", error)
                become(DatabaseState("refused", str(error)))
                return
            self._ready.set()
            logger.info("the schema is at revision %s", revision)
        become(DatabaseState("ready"))

    async def aclose(self) -> None:
        """Close both pools, after everything that uses them."""
        await self.main.aclose()
        await self.writes.aclose()
