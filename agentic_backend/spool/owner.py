"""Keeps the process' claim on its database: watches it, takes it again, and reports if it cannot be had."""

import asyncio
import logging
import select
import threading
import time
from collections.abc import Callable

import psycopg

from agentic_backend.spool.claim import EXIT_TAKEN, WAIT_S, DatabaseTaken, attempt
from agentic_backend.spool.connection import Connection, hang_up_after
from agentic_backend.spool.pooler import EXIT_POOLED, PoolerUnusable
from backend_kit.aio.retry import Backoff, QuietLog
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)

_AGAIN_S = 0.25
_ANSWER_S = 7.0
"""Seconds for an answer: more than a statement may take."""


class Owner:
    """Holds the database for this process: alone, or with others that share it (`shared`, for `replicas: many`).

    Nothing may be written to the database while it is not `held`: a writer awaits `wait_held` before each
    transaction. A lost claim, e.g. after a restart of Postgres, is taken again as soon as Postgres answers. If another
    process holds the database for over `wait_s`, or a pooler gives us no session of it, `give_up` is called once with
    the exit code: the service must end. Attempts continue, because pending records can be written if the other process
    ends.

    `claim` is the connection from `claim_at_start`, if any; `close` closes it like later ones.
    """

    def __init__(
        self,
        settings: Postgres,
        *,
        shared: bool,
        give_up: Callable[[int], None],
        claim: Connection | None = None,
        wait_s: float = WAIT_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """`answer_s` is how long the server is given to say whether it takes writes, in seconds."""
        self._settings = settings
        self._shared = shared
        self._give_up = give_up
        self._wait_s = wait_s
        self._answer_s = answer_s
        self._connection = claim
        self._held = asyncio.Event()
        if claim is not None:
            self._held.set()
        self._spoken = asyncio.Event()
        self._watched: int | None = None
        self._log = QuietLog(logger)
        self._reported = False
        # The claim is made in a thread that a cancelled task cannot stop: its connection must still be closed.
        self._closing = threading.Lock()
        self._closed = False

    @property
    def held(self) -> bool:
        """Whether this process has the claim, as far as its end of the connection can see."""
        if self._connection is None or not self._held.is_set():
            return False
        if _is_readable(self._connection):
            # The server sends nothing on an idle connection, so this is most likely its end; `hold_claim` checks.
            self._held.clear()
        return self._held.is_set()

    async def wait_held(self) -> None:
        """Wait until this process has the claim. If it has, that costs one system call."""
        while not self.held:
            await self._held.wait()

    def doubt(self) -> None:
        """Have the claim checked before anything else is written: its server may no longer be the primary."""
        self._held.clear()
        self._spoken.set()

    async def hold_claim(self) -> None:
        """Claim and watch, until cancelled or closed. Spawn it with `restart=True`."""
        while not self._closed:
            if self._connection is None:
                await self._claim()
                continue
            stands = await self._stands(self._connection)
            if stands and not self._closed:
                self._held.set()
                await self._wait_readable(self._connection)
            self._held.clear()
            if not stands and not self._closed:
                self._drop()
                self._log.warning("lost", "the claim on the database is lost: nothing is written until it stands again")

    def close(self) -> None:
        """Release the claim, after the last write. On the event loop."""
        with self._closing:
            self._closed = True
        self._held.clear()
        self._unwatch()
        self._spoken.set()
        self._drop()

    async def _claim(self) -> None:
        backoff = Backoff(longest_s=1.0)
        taken_since: float | None = None
        while self._connection is None and not self._closed:
            try:
                await asyncio.to_thread(self._attempt)
            except DatabaseTaken as error:
                taken_since = taken_since if taken_since is not None else time.monotonic()
                self._taken(error, time.monotonic() - taken_since)
                await asyncio.sleep(_AGAIN_S)
            except PoolerUnusable as error:
                self._refused(error, EXIT_POOLED)
                await asyncio.sleep(backoff.next_s())
            except psycopg.Error as error:
                taken_since = None
                where = self._settings.host, self._settings.port
                self._log.warning(
                    "away", "Postgres at %s:%d is not ready: sqlstate=%s; trying on", *where, error.sqlstate
                )
                await asyncio.sleep(backoff.next_s())

    def _attempt(self) -> None:
        connection = attempt(self._settings, shared=self._shared)
        with self._closing:
            if self._closed:
                connection.close()
            else:
                self._connection = connection
                logger.info("the database is claimed%s", ", together with other instances" if self._shared else "")

    def _taken(self, error: DatabaseTaken, for_s: float) -> None:
        if for_s < self._wait_s:
            self._log.warning("taken", "%s; waiting", error)
        else:
            self._refused(error, EXIT_TAKEN)

    def _refused(self, error: Exception, exit_code: int) -> None:
        if not self._reported:
            self._reported = True
            logger.critical("%s", error)
            self._give_up(exit_code)

    async def _stands(self, connection: Connection) -> bool:
        """Whether its server answers and takes writes: a claim on one that does not keeps nobody from the primary."""
        try:
            with hang_up_after(connection, self._answer_s):
                read_only = await asyncio.to_thread(connection.execute, "SHOW transaction_read_only")
        except psycopg.Error:
            return False
        return read_only.fetchone() == ("off",)

    async def _wait_readable(self, connection: Connection) -> None:
        self._spoken.clear()
        self._watched = connection.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._spoken.set)
        try:
            await self._spoken.wait()
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        """Call before the connection is closed: libuv aborts the process if a watched descriptor is closed."""
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _is_readable(connection: Connection) -> bool:
    """Whether there is something to read from the server, the end of the connection included. Reads nothing."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
