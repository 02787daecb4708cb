"""An instance of a fleet as the tests of its parts need it: real but for its turns, with a clock of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import TextClause

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.bus import Message
from agentic_backend.fleet.leases import FleetLeases, SessionLease
from agentic_backend.fleet.membership import FleetRules, Membership, Presence
from agentic_backend.fleet.takeover import Takeover
from agentic_backend.persist.database import Queries
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import AskRecord, Rerun, Session, TurnRecord
from agentic_backend.session.stream import Ask, Turn
from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.pending import Key, Op
from backend_kit.aio import TaskRegistry
from backend_kit.db.pool import AnyRow
from backend_kit.kpi import Kpi
from tests.agentic_backend.records import USER, messages_of, rows
from tests.support.patience import PATIENCE_S

MANY = {"replicas": "many"}
RULES = FleetRules(beat_s=0.05, look_s=0.01, signals_s=0.05)
"""Nothing dies of a slow machine: clocks and rows of the tests say what is late."""


class Clock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Recorded(Queries):
    """Queries that are noted by name; those in `failing` fail as when Postgres does not answer, those in `lost` after
    they were run, and those in `gates` wait first."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self.ran: list[str] = []
        self.failing: list[str] = []
        self.lost: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.running = 0

    async def fetch(self, op: str, statement: TextClause, parameters: Any) -> Sequence[AnyRow]:
        self.ran.append(op)
        self.running += 1
        try:
            return await self._fetch(op, statement, parameters)
        finally:
            self.running -= 1

    async def _fetch(self, op: str, statement: TextClause, parameters: Any) -> Sequence[AnyRow]:
        if op in self.gates:
            await self.gates[op].wait()
        if op in self.failing:
            self.failing.remove(op)
            raise HistoryUnavailable
        found = await self._queries.fetch(op, statement, parameters)
        if op in self.lost:
            self.lost.remove(op)
            raise HistoryUnavailable
        return found


class Turns:
    """The turns of one instance, which do nothing: `taken` were taken up, `here` run, the rest notes what was asked."""

    def __init__(self) -> None:
        self.taken: list[AskRecord] = []
        self.here: dict[tuple[str, str], Turn] = {}
        self.forgotten: list[tuple[str, str]] = []
        self.reread_: list[Session] = []
        self.let_go_of = 0
        self.changed = asyncio.Event()

    def runs(self, exchange_id: str, user_id: str) -> Turn | None:
        return self.here.get((exchange_id, user_id))

    def running_ids(self) -> list[str]:
        return [exchange_id for exchange_id, _ in self.here]

    def take_up(self, cut: AskRecord) -> None:
        self.taken.append(cut)
        self.changed.set()

    async def forget_here(self, session_id: str, user_id: str) -> None:
        self.forgotten.append((session_id, user_id))
        self.changed.set()

    def reread(self, session: Session) -> None:
        self.reread_.append(session)
        self.changed.set()

    def let_go(self) -> None:
        self.let_go_of += 1
        self.changed.set()

    def begin(self, session: Session, exchange_id: str) -> Turn:
        """A turn that runs here."""
        turn = self.here[exchange_id, session.user_id] = turn_of(session, exchange_id)
        return turn


class Waits(set[Key]):
    """The sessions whose turns wait for Postgres; `ends` are the exchanges of those turns."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[str] = []

    def holds(self, key: Key) -> bool:
        return key in self

    def turns(self, key: Key) -> list[Op]:
        return [Op("turn", key, exchange_id, 1, b"") for exchange_id in self.ends if key in self]


class Instance:
    """One instance, which renews. `taken` is the seconds of each takeover, `waiting` the sessions whose turns wait for
    Postgres."""

    def __init__(
        self,
        name: str,
        settings: AgenticSettings,
        persistence: Persistence,
        tasks: TaskRegistry,
        kpi: Kpi,
        rules: FleetRules,
        url: str | None = None,
        *,
        keeps_spool: bool = False,
        **looks: Any,
    ) -> None:
        self.name = name
        self.kpi = kpi
        self.persistence = persistence
        self.tasks = tasks
        self.clock = Clock()
        self.queries = Recorded(persistence.queries)
        identity = Presence(id=name, url=url, token=f"token of {name}", keeps_spool=keeps_spool)
        self.membership = Membership(settings.storage.postgres, identity, rules=rules, clock=self.clock)
        self.waiting = Waits()
        self.leases = FleetLeases(self.queries, self.membership, persistence.cache, self.waiting)
        self.taken: list[float] = []
        self.takeover = Takeover(
            self.queries, self.membership, self.leases, persistence.log, self.taken.append, **looks
        )
        self.turns = Turns()
        self.takeover.turns = self.turns
        self._renewal: asyncio.Task[None] | None = None
        self._running: list[asyncio.Task[None]] = []

    async def renew(self) -> None:
        """Begin to renew, and have done so."""
        self._renewal = self.spawn(self.membership.renew)
        async with asyncio.timeout(PATIENCE_S):
            await self.membership.wait_valid()
            await self.takeover.recover()

    async def stop_renewing(self) -> None:
        """Renew no more."""
        assert self._renewal is not None
        self._renewal.cancel()
        await asyncio.wait([self._renewal])

    def start_asks(self) -> None:
        """Record questions from now on."""
        self.spawn(self.leases.write_asks)

    def start_looking(self) -> None:
        """Look for turns of the dead from now on."""
        self.spawn(self.takeover.look_for_dead)

    async def stop(self) -> None:
        """End all of it, before what it stands on."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def spawn(self, start: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run something of this instance's until its end."""
        self._running.append(self.tasks.spawn("fleet", start))
        return self._running[-1]

    async def acquire(self, session: Session) -> SessionLease:
        """Its lease of a session."""
        return await self.leases.acquire(session.id, session.user_id)

    async def begin(self, session: Session, exchange_id: str, **more: Any) -> SessionLease:
        """Its lease of a session, in which it has recorded the question of a turn."""
        lease = await self.acquire(session)
        async with asyncio.timeout(PATIENCE_S):
            await self.leases.record(lease, ask_record(session, exchange_id, **more))
        return lease


def ask_record(session: Session, exchange_id: str, question: str = "question", *, again: bool = True) -> AskRecord:
    """The record of a turn that begins, which may run `again`."""
    (message,) = messages_of(session, exchange_id, (question,))
    return AskRecord(session, message, None, Rerun("georges") if again else None)


def turn_of(session: Session, exchange_id: str) -> Turn:
    """A turn as somebody asks for it who has none of its events."""
    return Turn(Ask(session.id, "georges", "question", exchange_id, session.user_id, 0.0))


def under(lease: SessionLease, record: TurnRecord) -> TurnRecord:
    """The record as a turn makes it that runs under a lease."""
    return replace(record, fence=lease.fence)


LEASES = "SELECT holder, fence, exchange_id FROM session_lease ORDER BY session_id"


def leases_in(dsn: str) -> list[tuple[str, int, str | None]]:
    """(holder, fence, exchange id) of each lease."""
    return rows(dsn, LEASES)


def died(dsn: str, name: str, seconds: float = 11.0) -> None:
    """An instance has given no sign of life for so long."""
    query = "UPDATE instance SET heartbeat_at = clock_timestamp() - make_interval(secs => %s) WHERE id = %s RETURNING 1"
    assert rows(dsn, query, seconds, name) == [(1,)]


def steady(dsn: str, name: str, seconds: float = 60.0) -> None:
    """An instance has been heard without a gap for so long."""
    query = "UPDATE instance SET steady_since = clock_timestamp() - make_interval(secs => %s) WHERE id = %s RETURNING 1"
    assert rows(dsn, query, seconds, name) == [(1,)]


def notify(dsn: str, payload: str) -> None:
    """Say something to all instances."""
    rows(dsn, "SELECT pg_notify('turnwise_fleet', %s)", payload)


def forget_message(sender: str = "", to: str = "", session_id: str = "s1") -> Message:
    """One to forget a session."""
    return Message("forget", session_id, USER, to=to, sender=sender)
