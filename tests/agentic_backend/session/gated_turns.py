"""A registry whose turns end when the test says so: everything real but the runner and the log."""

import asyncio
from collections.abc import Callable
from typing import Any

from agentic_backend.events import Delta
from agentic_backend.session.admission import Admission, TurnLimits
from agentic_backend.session.exchange import Exchange
from agentic_backend.session.models import AskRecord, Durability, Session, TurnRecord
from agentic_backend.session.past_exchanges import KnownSession, SessionMemory
from agentic_backend.session.registry import RegistryRules, TurnRegistry
from agentic_backend.session.store import Elsewhere
from agentic_backend.session.stream import Accepted, Ask, Cancelled, Final, Turn
from backend_kit.aio import TaskRegistry
from tests.support.patience import PATIENCE_S

USER = "ann"


class Log:
    """A log with or without room, which keeps what it is given."""

    def __init__(self) -> None:
        self.room = True
        self.records: list[TurnRecord] = []

    def has_room(self) -> bool:
        return self.room

    def begin(self, record: AskRecord) -> None:
        pass

    async def append(self, record: TurnRecord) -> Durability:
        self.records.append(record)
        return "none"


class Runner:
    """Runs a turn until its exchange is let go or stopped. `order` is who ran, in order of the beginnings. An exchange
    in `told` was there before: its end is told again, and the session stays as it is."""

    def __init__(self) -> None:
        self.memory = SessionMemory()
        self.alone = True
        self.elsewhere: Elsewhere | None = None
        self.told: dict[str, Final] = {}
        self.order: list[str] = []
        self.stubborn = False
        self.failure: Exception | None = None
        self._gates: dict[str, asyncio.Event] = {}
        self._began: dict[str, asyncio.Event] = {}

    def gate(self, exchange_id: str) -> asyncio.Event:
        return self._gates.setdefault(exchange_id, asyncio.Event())

    async def began(self, exchange_id: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._began.setdefault(exchange_id, asyncio.Event()).wait()

    async def run_turn(self, turn: Turn, known: KnownSession | None) -> KnownSession:
        ask = turn.ask
        self.order.append(ask.exchange_id)
        self._began.setdefault(ask.exchange_id, asyncio.Event()).set()
        if self.failure is not None:
            raise self.failure
        turn.publish(Accepted())
        if known is not None and ask.exchange_id in self.told:
            turn.publish(self.told[ask.exchange_id])
            return known
        known = known or self.memory.know(Session(ask.session_id, ask.user_id, ask.agent_id, "t", ""))
        exchange = Exchange(turn, known.session)
        exchange.open(exchange.question())
        try:
            await self._wait(ask.exchange_id)
        except asyncio.CancelledError:
            turn.publish(Cancelled(tuple(exchange.messages), exchange.next_session()))
            return known.after(exchange.next_session(), ask.exchange_id)
        exchange.emit(Delta("answer"))
        exchange.close("answer", [], {})
        turn.publish(Final(tuple(exchange.messages), exchange.next_session(), b"[]", 0.0, "none"))
        return known.after(exchange.next_session(), ask.exchange_id)

    async def _wait(self, exchange_id: str) -> None:
        while True:
            try:
                await self.gate(exchange_id).wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
            else:
                return


class GatedTurns:
    """A registry and what it stands on."""

    def __init__(self, tasks: TaskRegistry, rules: RegistryRules | None = None, **limits: Any) -> None:
        self.runner = Runner()
        self.log = Log()
        self.tasks = tasks
        given = {"max_turns": 0, "queue_length": 0, "queue_deadline_s": 600.0, **limits}
        self.admission = Admission(TurnLimits(**given))
        self.registry = TurnRegistry(
            runner=self.runner,  # type: ignore[arg-type] # what the registry needs of it
            admission=self.admission,
            log=self.log,
            tasks=tasks,
            rules=rules,
        )

    def ask(self, exchange_id: str, session_id: str = "s1", message: str = "Hello", **more: Any) -> Turn:
        given = {"agent_id": "Georges", "user_id": USER, "received_at": 0.0, "if_busy": "queue", **more}
        return self.registry.submit(Ask(session_id=session_id, exchange_id=exchange_id, message=message, **given))

    async def finish(self, *turns: Turn) -> None:
        """Let the turns go, one after the other, and wait for their ends."""
        for turn in turns:
            self.runner.gate(turn.ask.exchange_id).set()
            await ended(turn)


MakeGatedTurns = Callable[..., GatedTurns]


async def ended(turn: Turn) -> Any:
    """The payload of the turn's terminal event."""
    async with asyncio.timeout(PATIENCE_S):
        await turn.wait_ended()
    return turn.events[-1].payload


async def ticks(count: int = 3) -> None:
    """Let what is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)
