"""Sessions, their history and the state of hosted graphs in memory, and what one process runs over them: whole turns
without a database."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AgentKit, Catalog, TurnAgents
from agentic_backend.agent.hosted import Hosting
from agentic_backend.agent.hosted.state_writes import CheckpointPart, StatePart
from agentic_backend.agent.interrupts import Checkpoints
from agentic_backend.errors import HistoryUnavailable, StorageFull
from agentic_backend.events import ChatMessage, text_part, utc_now
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.admission import Admission, TurnLimits
from agentic_backend.session.branches import Standing, line_of, standing_of
from agentic_backend.session.images import Image
from agentic_backend.session.models import AskRecord, Durability, Session, TurnRecord, checkpoint_of
from agentic_backend.session.past_exchanges import SessionMemory
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.restarts import RestartRules
from agentic_backend.session.store import Elsewhere, Leases
from agentic_backend.session.stream import Ask, Turn
from agentic_backend.session.turn import TurnRules, TurnRunner
from agentic_backend.session.turn_report import TurnReports
from agentic_backend.session.unkept import unkept_turns
from agentic_backend.settings import AgentSettings
from agentic_backend.spool.cache import RememberedExchange
from agentic_backend.verdict import Windows
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from backend_kit.wire import loads

USER: Final = "ann"
"""The user of a test that needs only one."""
_TURN_S: Final = 30.0
_EXCHANGES: Final = 20


def session_of(agent_id: str, session_id: str = "s1", user_id: str = USER) -> Session:
    """A session with an agent, as it is before its first turn."""
    return Session(session_id, user_id, agent_id, "A title", utc_now())


class MemoryStorage:
    """What turns need of storage, in memory: it outlives the processes that use it.

    `asks` are the turns that began, `fences` what guarded each write, `reads` counts the reads by name. While `away`,
    reads fail as those of a database that is down; while `full`, a finished turn is kept but not acknowledged; without
    `room` no turn begins. `left_over` is what the next process finds, `counted` the runs that it began again, `dropped`
    those that had ended after all, `shown` the images of all sessions by attachment.
    """

    def __init__(self, *sessions: Session) -> None:
        self.sessions = {(session.id, session.user_id): session for session in sessions}
        self.rows: dict[tuple[str, str], dict[int, bytes]] = {key: {} for key in self.sessions}
        self.asks: list[AskRecord] = []
        self.shown: dict[str, Image] = {}
        self.fences: list[int | None] = []
        self.reads: Counter[str] = Counter()
        self.away = False
        self.full = False
        self.room = True
        self.left_over: list[AskRecord] = []
        self.counted: list[AskRecord] = []
        self.dropped: list[AskRecord] = []
        self._remembered: dict[tuple[str, str], list[RememberedExchange]] = {key: [] for key in self.sessions}

    def has_room(self) -> bool:
        """See `TurnLog`."""
        return self.room

    def begin(self, record: AskRecord) -> None:
        """See `TurnLog`."""
        self.asks.append(record)

    async def append(self, record: TurnRecord) -> Durability:
        """See `TurnLog`."""
        self._store(record)
        if self.full:
            raise StorageFull
        return "spool"

    def take_over(self) -> list[AskRecord]:
        """See `CutOffTurns`."""
        left, self.left_over = self.left_over, []
        return left

    async def begin_again(self, record: AskRecord) -> AskRecord:
        """See `CutOffTurns`."""
        self.counted.append(record.begun_again())
        return self.counted[-1]

    def give_up(self, record: TurnRecord) -> None:
        """See `CutOffTurns`."""
        self._store(record)

    def drop(self, record: AskRecord) -> None:
        """See `CutOffTurns`."""
        self.dropped.append(record)

    async def get(self, session_id: str, user_id: str) -> Session | None:
        """See `TurnStore`."""
        self._read("get")
        return self.sessions.get((session_id, user_id))

    async def touch(self, session_id: str, user_id: str) -> bool:
        """See `TurnStore`."""
        self._read("touch")
        return (session_id, user_id) in self.sessions

    async def remembered(
        self, session_id: str, user_id: str, max_exchanges: int, up_to: int | None = None
    ) -> list[HistoryItem]:
        """See `TurnStore`."""
        on_line = {message.exchange_id for message in line_of(self._messages(session_id, user_id), up_to)}
        known = [one for one in self._remembered.get((session_id, user_id), []) if one.exchange_id in on_line]
        kept = known[-max_exchanges:] if max_exchanges > 0 else []
        return [item for exchange in kept for item in exchange.items]

    async def images(self, user_id: str, session_id: str | None, attachment_ids: Sequence[str]) -> dict[str, Image]:
        """See `ImageStore`."""
        self._read("images")
        mine = (session_id or "", user_id) in self.sessions
        return {one: self.shown[one] for one in attachment_ids if mine and one in self.shown}

    async def newest_checkpoint(self, session_id: str, user_id: str, agent_id: str, up_to: int | None = None) -> str:
        """See `TurnStore`."""
        self._read("newest_checkpoint")
        newest_first = reversed(line_of(self._messages(session_id, user_id), up_to))
        named = (checkpoint_of(message, agent_id) for message in newest_first)
        return next(filter(None, named), "")

    async def standing(self, session_id: str, user_id: str, rank: int) -> Standing | None:
        """See `TurnStore`."""
        self._read("standing")
        return standing_of(self._messages(session_id, user_id), rank)

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:
        """See `TurnStore`."""
        self._read("exchange_ids")
        ids = [loads(row)["exchange_id"] for row in self.history(session_id, user_id)]
        return set(list(dict.fromkeys(ids))[:most])

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:
        """See `TurnStore`."""
        self._read("exchange")
        return [row for row in self.history(session_id, user_id) if loads(row)["exchange_id"] == exchange_id]

    def history(self, session_id: str = "s1", user_id: str = USER) -> list[bytes]:
        """The encoded messages of a session, by rank."""
        return [row for _, row in sorted(self.rows.get((session_id, user_id), {}).items())]

    def line(self, session_id: str = "s1", user_id: str = USER) -> list[bytes]:
        """The encoded messages of its live line, by rank."""
        return [message.json for message in line_of(self._messages(session_id, user_id))]

    def _messages(self, session_id: str, user_id: str) -> list[ChatMessage]:
        return [ChatMessage.decode(row) for row in self.history(session_id, user_id)]

    async def cut_short(self, exchange_id: str, question: str, session_id: str = "s1", user_id: str = USER) -> None:
        """An ask whose process ended before its answer, as the start of the next one leaves it."""
        session = self.sessions[session_id, user_id]
        message = ChatMessage.build(
            session_id=session.id,
            exchange_id=exchange_id,
            rank=session.next_rank,
            role="user",
            channel="final",
            parts=[text_part(question)],
        )
        await self.append(AskRecord(session, message).interrupted())

    def _store(self, record: TurnRecord) -> None:
        key = (record.session.id, record.session.user_id)
        self.sessions[key] = record.session
        self.fences.append(record.fence)
        self.rows[key] |= {message.rank: message.json for message in record.messages}
        if (exchange := RememberedExchange.of(record)) is not None:
            self._remembered[key].append(exchange)

    def _read(self, name: str) -> None:
        self.reads[name] += 1
        if self.away:
            raise HistoryUnavailable


async def known() -> None:
    """Postgres and the agents are known."""


class TurnProcess:
    """What one process of the service runs over a storage: turns as sockets start them, with their registry, their
    history and their events. A second one over the same storage is a restart: what the first one left runs again by
    `begin_again`."""

    def __init__(
        self,
        storage: MemoryStorage,
        tasks: TaskRegistry,
        agents: Sequence[AgentSettings] | TurnAgents,
        kit: AgentKit | None = None,
        *,
        leases: Leases | None = None,
        elsewhere: Elsewhere | None = None,
        checkpoints: Checkpoints | None = None,
        memory: SessionMemory | None = None,
        hosting: Hosting | None = None,
        rules: TurnRules | None = None,
        limits: TurnLimits | None = None,
    ) -> None:
        """`agents` as they are configured, which need a `kit`, or a catalog of them. `tasks` runs the turns: close it
        last. Raises `AgentUnusable` as the start of the service would."""
        kpi = Kpi(CollectorRegistry(), service="agentic", legacy_ms_names=True)
        self.counts = CollectorRegistry()
        metrics = AgenticMetrics(self.counts, kpi)
        self.admission = Admission(limits or TurnLimits(max_turns=0, queue_length=0, queue_deadline_s=600.0))
        self._storage = storage
        self._agent_id = ""
        if isinstance(agents, Sequence):
            assert kit is not None
            self._agent_id = agents[0].id
            agents = Catalog(agents, kit, checkpoints=checkpoints, hosting=hosting)
        reports = TurnReports(kpi, metrics, Windows())
        runner = TurnRunner(
            store=storage,
            images=storage,
            log=storage,
            catalog=agents,
            admission=self.admission,
            metrics=metrics,
            kpi=kpi,
            reports=reports,
            rules=rules or TurnRules(_TURN_S, _EXCHANGES),
            leases=leases,
            elsewhere=elsewhere,
            memory=memory,
        )
        self.registry = TurnRegistry(runner=runner, admission=self.admission, log=storage, tasks=tasks)
        self.unkept = unkept_turns(agents, self.admission, metrics, kpi, reports, tasks, _TURN_S, name="unkept")

    def begin_again(self, ready: Callable[[], Awaitable[Any]] = known) -> None:
        """Run again what an earlier process left, once `ready` returns."""
        self.registry.begin_again(self._storage, ready, RestartRules(pause_s=0.0))

    def ask(
        self, exchange_id: str, message: str = "hello", agent_id: str | None = None, *, kept: bool = True, **more: Any
    ) -> Turn:
        """Begin a turn of the first agent or of another one, of which nothing is stored where it is not `kept`; `more`
        are further fields of `Ask`."""
        given = {"session_id": "s1", "user_id": USER, "received_at": 0.0, **more}
        return (self.registry if kept else self.unkept).submit(
            Ask(agent_id=agent_id or self._agent_id, message=message, exchange_id=exchange_id, **given)
        )


class MemoryState:
    """The `GraphState` of a test, and what it remembers of users: LangGraph's own saver and store in memory, which are
    there to be looked at."""

    def __init__(self) -> None:
        self.kept = InMemorySaver()
        self.remembered = InMemoryStore()

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[BaseCheckpointSaver[Any]]:
        """See `GraphState`."""
        yield self.kept

    async def write(self, parts: Sequence[StatePart]) -> None:
        """See `GraphState`."""
        for part in parts:
            if isinstance(part, CheckpointPart):
                await self.kept.aput(part.config, part.checkpoint, part.metadata, part.new_versions)
            else:
                await self.kept.aput_writes(part.config, part.writes, part.task_id, part.task_path)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[BaseStore]:
        """See `GraphState`."""
        yield self.remembered
