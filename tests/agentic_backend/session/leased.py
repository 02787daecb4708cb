"""Sessions that several instances share, without a database: the leases of each, and how it sees the others."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentic_backend.errors import HistoryUnavailable, StorageFull
from agentic_backend.session.models import AskRecord, Durability, TurnRecord
from agentic_backend.session.store import HeldElsewhere, Lease, LeaseLost, NewestElsewhere
from agentic_backend.session.stream import Accepted, Cancelled, TextDelta, Turn
from agentic_backend.testing import MemoryStorage
from tests.agentic_backend.session.echo_process import SESSION
from tests.support.patience import PATIENCE_S


class Table(MemoryStorage):
    """The one lease of all instances, and the storage that they share: the write of a turn takes its question away.

    `asked` is the exchange whose question stands there, `recorded` each that ever did, with the events its turn had.
    """

    def __init__(self) -> None:
        super().__init__(SESSION)
        self.holder: str | None = None
        self.fence = 0
        self.asked: str | None = None
        self.recorded: list[str] = []
        self.unreachable = False
        self.waits: asyncio.Event | None = None

    async def append(self, record: TurnRecord) -> Durability:
        if record.fence != self.fence:
            raise LeaseLost
        self.asked = None
        return await super().append(record)


@dataclass(frozen=True)
class HeldLease:
    """A lease as its holder has it."""

    fence: int
    fresh: bool
    term: int = 0


class LeaseView:
    """The leases as one instance sees them: what it had it believes to have until it records a question. `valid` is
    whether it has renewed."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self._name = name
        self._mine: int | None = None
        self.valid = True
        self.term = 0
        self.acquired = 0

    async def acquire(self, _session_id: str, _user_id: str) -> HeldLease:
        table = self._table
        self.acquired += 1
        if self._mine is not None:
            return HeldLease(self._mine, True, self.term)
        await asyncio.sleep(0)
        if table.unreachable:
            raise HistoryUnavailable
        made = table.holder is None
        if table.holder != self._name:
            if table.asked is not None:
                raise HeldElsewhere(table.asked)
            table.holder = self._name
            table.fence += 1
        self._mine = table.fence
        return HeldLease(table.fence, made, self.term)

    def keep(self, fence: int | None) -> None:
        """It has taken the session with the turn that was open in it; None: it remembers nothing."""
        self._mine = fence

    async def record(self, lease: Lease, record: AskRecord) -> None:
        table = self._table
        if table.waits is not None:
            await table.waits.wait()
        if (table.holder, table.fence) != (self._name, lease.fence):
            self._mine = None
            raise LeaseLost
        table.asked = record.user_message.exchange_id
        table.recorded.append(table.asked)

    def withdraw(self, fence: int, _key: tuple[str, str], exchange_id: str) -> None:
        if (self._table.fence, self._table.asked) == (fence, exchange_id):
            self._table.asked = None

    def expect_valid(self, lease: Lease) -> None:
        if not self.valid or lease.term != self.term:
            raise LeaseLost


class Others:
    """The other instances as one sees them: what it asks of them, and whether one of them has the turn that it mirrors.

    That turn ends once `gate` is set. `runs` is what they say to run, `away` whether Postgres is, `waits` whether
    the end of the turn waits for it, `takers` whether any takes what is `handed` over, which waits for `takes`. What
    is heard of a turn behind its end waits for `hangs_up`.
    """

    def __init__(self, *, has: bool = True) -> None:
        self.has = has
        self.away = self.waits = False
        self.runs: AskRecord | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.ends = True
        self.hangs_up = asyncio.Event()
        self.hangs_up.set()
        self.stopped: list[str] = []
        self.mirrored: list[Turn] = []
        self.forgot: list[str] = []
        self.told: list[str] = []
        self.takers = False
        self.takes = asyncio.Event()
        self.takes.set()
        self.handing: list[str] = []
        self.handed: list[str] = []
        self.newest_there: list[NewestElsewhere] = []

    async def mirror(self, turn: Turn) -> bool:
        self.mirrored.append(turn)
        if self.away:
            raise HistoryUnavailable
        if self.waits:
            raise StorageFull
        if self.has:
            if turn.begins_after == 0 and not turn.has_published:
                turn.publish(Accepted())
            await self.gate.wait()
            if self.ends:
                turn.publish(Cancelled((), SESSION))
            await self.hangs_up.wait()
        return self.has

    async def find(self, _exchange_id: str, _user_id: str) -> AskRecord | None:
        return self.runs

    async def newest(self, sessions: Sequence[tuple[str, str]]) -> list[NewestElsewhere]:
        if self.away:
            raise HistoryUnavailable
        return [one for one in self.newest_there if (one.session_id, one.user_id) in sessions]

    async def stop(self, exchange_id: str, _user_id: str) -> bool:
        self.stopped.append(exchange_id)
        return self.has

    async def forget(self, session_id: str, _user_id: str) -> None:
        self.forgot.append(session_id)

    async def has_takers(self) -> bool:
        return self.takers

    async def hand_over(self, _session_id: str, _user_id: str, exchange_id: str) -> None:
        self.handing.append(exchange_id)
        await self.takes.wait()
        self.handed.append(exchange_id)

    async def publish_change(self, session_id: str, _user_id: str) -> None:
        self.told.append(session_id)


async def speaking(turn: Turn) -> Turn:
    """Wait until the turn has said something."""
    spoken = asyncio.Event()
    turn.follow(lambda: spoken.set() if isinstance(turn.events[-1].payload, TextDelta) else None)
    async with asyncio.timeout(PATIENCE_S):
        await spoken.wait()
    return turn
