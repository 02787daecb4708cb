"""This instance among the others: its heartbeat in Postgres, and the messages that instances send one another."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from agentic_backend.fleet.bus import Message
from agentic_backend.fleet.statements import BEAT, CHANNEL, LEAVE, SWEEP
from agentic_backend.spool.connection import hang_up_after
from backend_kit.aio.retry import Backoff, QuietLog
from backend_kit.db.libpq import connect_args
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetRules:
    """The times of a fleet, in seconds. `renew_s` is below `dead_s` by more than a heartbeat and a clock's drift, and
    above `beat_s` and `answer_s`: one connection that breaks costs no turns."""

    beat_s: float = 2.0
    """Between two heartbeats."""
    answer_s: float = 3.0
    """For connecting, and until the answer to a heartbeat: after that the connection is replaced."""
    gap_s: float = 5.0
    """After a longer silence an instance must be heard for `dead_s` before it may call others dead."""
    renew_s: float = 6.0
    """An instance that could not renew for this long, by its own monotonic clock, releases its turns."""
    dead_s: float = 10.0
    """An instance that did not renew for this long, by the clock of Postgres, is dead to the others."""
    look_s: float = 0.25
    """Between two looks for turns of dead instances."""
    looks_each_time: int = 4
    """How many instances look each time, on average: a look reads the turns of all, so its cost grows with their
    number."""
    taken_at_once: int = 64
    """Turns taken over by one statement: the rest is left for other instances, which look too."""
    mirror_s: float = 60.0
    """How long a follower waits for an instance that has the turn."""
    signals_s: float = 0.5
    """Instances that are ended within this time of one another do not hand over to one another."""
    deaf_s: float = 5.0
    """Redis counts as away for an instance that has not heard itself there for this long."""


@dataclass(slots=True)
class Presence:
    """Who this instance is. `url` is where the others reach it, None if they cannot; `token` opens its relay to them:
    they read it in Postgres. `keeps_spool` if acknowledged turns may be in its spool alone."""

    id: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")
    url: str | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    keeps_spool: bool = False


def instance_id(spool: Path) -> str:
    """The id of the instance that has this spool, in any of its processes. Raises OSError."""
    file = spool / "instance"
    if file.exists():
        return file.read_text(encoding="ascii")
    made = f"{socket.gethostname()}:{secrets.token_hex(8)}"
    unfinished = file.with_suffix(".new")
    with unfinished.open("w", encoding="ascii") as writing:
        writing.write(made)
        writing.flush()
        os.fsync(writing.fileno())
    unfinished.replace(file)
    return made


class Membership:
    """Renews this instance in Postgres and hears the others, on a connection of its own.

    `on_message` gets what others tell this instance, `on_deaf` is called when some of it may have been missed, and
    `on_lost` once when the instance could not renew for `renew_s`: from then on it is not `valid` until it has renewed,
    and others may take its turns. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        settings: Postgres,
        identity: Presence,
        *,
        own_url: Callable[[str], str | None] = lambda _address: None,
        rules: FleetRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own_url` makes the url from the address by which this machine reaches Postgres, where none is configured."""
        self.identity = identity
        self.rules = rules or FleetRules()
        self.draining = False
        self.notified = 0
        """Messages that have come by Postgres, for any instance."""
        self.on_message: Callable[[Message], None] = lambda _message: None
        self.on_deaf: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._settings = settings
        self._own_url = own_url
        self._clock = clock
        self._renewed_at = float("-inf")
        self._lost = True
        self._member = asyncio.Event()
        self._log = QuietLog(logger)

    @property
    def valid(self) -> bool:
        """Whether no other instance may have taken turns of this one; check it before anything that must not be done
        twice. It only reads a clock. Nobody else takes turns of an instance with a spool."""
        if self.identity.keeps_spool:
            return self._renewed_at > float("-inf")
        return self._clock() - self._renewed_at < self.rules.renew_s

    async def wait_valid(self) -> None:
        """Wait until this instance has renewed lately."""
        while not self.valid:
            self._member.clear()
            await self._member.wait()

    async def renew(self) -> None:
        """Renew and listen until cancelled. Spawn it with `restart=True`."""
        backoff = Backoff(longest_s=1.0)
        while True:
            try:
                await self._belong(backoff)
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._log.warning("away", "the fleet cannot be reached: %s; trying on", type(error).__name__)
            await asyncio.sleep(backoff.next_s())

    async def watch(self) -> None:
        """Call `on_lost` once each time the instance could not renew for too long. Until cancelled."""
        while True:
            await asyncio.sleep(self.rules.beat_s / 8)
            self._notice_loss()

    async def leave(self, instance: str | None = None) -> None:
        """Leave at once, after the last write; with `instance`, remove that one, which has died. Never raises."""
        try:
            async with await self._connect() as connection:
                await self._execute(connection, LEAVE, {"id": instance or self.identity.id})
        except (psycopg.Error, OSError, TimeoutError) as error:
            dead_s = self.rules.dead_s
            self._log.warning(
                "leave", "the fleet was not left (%s): it notices in %.0f s", type(error).__name__, dead_s
            )

    async def _belong(self, backoff: Backoff) -> None:
        async with await self._connect() as connection:
            if self.identity.url is None:
                self.identity.url = self._own_url(_address_of(connection))
            await self._execute(connection, f"LISTEN {CHANNEL}")
            await self._beat(connection)
            await self._execute(connection, SWEEP)
            # Nobody has heard what was sent before the first LISTEN.
            self.on_deaf()
            backoff.reset()
            while True:
                due_at = self._renewed_at + self.rules.beat_s
                async with contextlib.aclosing(connection.notifies(timeout=max(0.0, due_at - self._clock()))) as heard:
                    # The generator ends at its timeout. Leaving it earlier would lose what arrived with the current
                    # notification.
                    async for notification in heard:
                        self.notified += 1
                        self.receive(notification.payload)
                await self._beat(connection)

    async def _beat(self, connection: psycopg.AsyncConnection[Any]) -> None:
        sent_at = self._clock()
        identity = self.identity
        values = {
            "id": identity.id,
            "url": identity.url,
            "token": identity.token,
            "keeps_spool": identity.keeps_spool,
            "draining": self.draining,
            "gap_s": self.rules.gap_s,
        }
        await self._execute(connection, BEAT, values)
        self._notice_loss()  # one that was stopped may renew before anybody looks
        # From when it was sent: Postgres cannot have written it earlier.
        silent_s, self._renewed_at = sent_at - self._renewed_at, sent_at
        self._lost = False
        self._member.set()
        if self.rules.gap_s < silent_s < float("inf"):
            self.on_deaf()  # it stood still: others may have taken it for dead and left it out

    async def _execute(
        self,
        connection: psycopg.AsyncConnection[Any],
        statement: LiteralString,
        values: Mapping[str, object] | None = None,
    ) -> None:
        with hang_up_after(connection, self.rules.answer_s):
            await connection.execute(statement, values)

    def _notice_loss(self) -> None:
        if not self.valid and not self._lost:
            self._lost = True
            logger.error("ALARM this instance could not renew for %.0f s: it lets go of its turns", self.rules.renew_s)
            self.on_lost()

    def receive(self, payload: str) -> None:
        """Take what somebody has said to all, or to one of them, by whichever way it came."""
        try:
            message = Message.decode(payload)
        except ValueError:
            self._log.warning("message", "a message of another instance is not understood")
            return
        if message.sender != self.identity.id and message.to in ("", self.identity.id):
            self.on_message(message)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        settings = self._settings
        password = settings.password.get_secret_value() if settings.password else None
        connection = await psycopg.AsyncConnection.connect(
            host=settings.host,
            port=settings.port,
            dbname=settings.database,
            user=settings.username,
            password=password,
            autocommit=True,
            **connect_args("turnwise-agentic-fleet", min(settings.connect_timeout, max(2, int(self.rules.answer_s)))),
        )
        connection.prepare_threshold = 0
        return connection


def _address_of(connection: psycopg.AsyncConnection[Any]) -> str:
    """The address of this machine on the way to Postgres."""
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        name = own.getsockname()
    return str(name[0]) if isinstance(name, tuple) else "127.0.0.1"
