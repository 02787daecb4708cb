"""Turns that really run, over storage in memory that outlives the registry: a second registry is a restart."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.language_models import FakeListChatModel
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AgentKit, Catalog, TurnAgents
from agentic_backend.agent.interrupts import Checkpoints
from agentic_backend.errors import HistoryUnavailable, StorageFull
from agentic_backend.events import ChatMessage, text_part, utc_now
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.admission import Admission, TurnLimits
from agentic_backend.session.models import AskRecord, Durability, Session, TurnRecord
from agentic_backend.session.past_exchanges import SessionMemory
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.restarts import RestartRules, Restarts
from agentic_backend.session.store import Leases
from agentic_backend.session.stream import Ask, Turn
from agentic_backend.session.turn import TurnRules, TurnRunner
from agentic_backend.session.turn_report import TurnReports
from agentic_backend.settings import AgentSettings, Restart
from agentic_backend.verdict import Windows
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from backend_kit.wire import loads

USER = "ann"
SESSION = Session("s1", USER, "Echo", "A title", utc_now())


class MemoryStorage:
    """All ports of storage. `asks` are the turns that began, `reads` counts the reads by name. `left_over` is what the
    next process finds, `counted` the runs that it began again, `dropped` those that had ended after all."""

    def __init__(self, *sessions: Session) -> None:
        self.sessions = {(session.id, session.user_id): session for session in sessions}
        self.rows: dict[tuple[str, str], dict[int, bytes]] = {key: {} for key in self.sessions}
        self.asks: list[AskRecord] = []
        self.fences: list[int | None] = []
        self.reads: Counter[str] = Counter()
        self.away = False
        self.full = False
        self.room = True
        self.left_over: list[AskRecord] = []
        self.counted: list[AskRecord] = []
        self.dropped: list[AskRecord] = []

    def has_room(self) -> bool:
        return self.room

    async def begin_again(self, record: AskRecord) -> AskRecord:
        self.counted.append(record.begun_again())
        return self.counted[-1]

    def give_up(self, record: TurnRecord) -> None:
        self._store(record)

    def drop(self, record: AskRecord) -> None:
        self.dropped.append(record)

    def begin(self, record: AskRecord) -> None:
        self.asks.append(record)

    async def append(self, record: TurnRecord) -> Durability:
        self._store(record)
        if self.full:
            raise StorageFull
        return "spool"

    def _store(self, record: TurnRecord) -> None:
        key = (record.session.id, record.session.user_id)
        self.sessions[key] = record.session
        self.fences.append(record.fence)
        self.rows[key] |= {message.rank: message.json for message in record.messages}

    async def get(self, session_id: str, user_id: str) -> Session | None:
        self._read("get")
        return self.sessions.get((session_id, user_id))

    async def touch(self, session_id: str, user_id: str) -> bool:
        self._read("touch")
        return (session_id, user_id) in self.sessions

    async def remembered(self, _session_id: str, _user_id: str, _max_exchanges: int) -> list[HistoryItem]:
        return []

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:
        self._read("exchange_ids")
        ids = [loads(row)["exchange_id"] for row in self.history(session_id, user_id)]
        return set(list(dict.fromkeys(ids))[:most])

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:
        self._read("exchange")
        return [row for row in self.history(session_id, user_id) if loads(row)["exchange_id"] == exchange_id]

    def history(self, session_id: str = SESSION.id, user_id: str = USER) -> list[bytes]:
        return [row for _, row in sorted(self.rows.get((session_id, user_id), {}).items())]

    async def cut_off(self, exchange_id: str, question: str) -> None:
        """An ask whose process ended before its answer, as the start of the next one leaves it."""
        session = self.sessions[SESSION.id, USER]
        message = ChatMessage.build(
            session_id=session.id,
            exchange_id=exchange_id,
            rank=session.next_rank,
            role="user",
            channel="final",
            parts=[text_part(question)],
        )
        await self.append(AskRecord(session, message).interrupted())

    def _read(self, name: str) -> None:
        self.reads[name] += 1
        if self.away:
            raise HistoryUnavailable


async def ready() -> None:
    """Postgres and the agents are known."""


class TurnProcess:
    """What one process runs over the storage. `agents` are its agents, `rules` and `limits` those of its turns; what an
    earlier process left runs again once `registry.begin_again` is called and `restarting` returns."""

    def __init__(
        self,
        storage: MemoryStorage,
        tasks: TaskRegistry,
        leases: Leases | None = None,
        checkpoints: Checkpoints | None = None,
        memory: SessionMemory | None = None,
        agents: TurnAgents | None = None,
        rules: TurnRules | None = None,
        limits: TurnLimits | None = None,
        restarting: Callable[[], Awaitable[None]] = ready,
        restart: Restart | None = None,
    ) -> None:
        kpi = Kpi(CollectorRegistry(), service="agentic")
        unlimited = TurnLimits(max_turns=0, queue_length=0, queue_deadline_s=600.0)
        self.admission = admission = Admission(limits or unlimited)
        configured = [
            AgentSettings(id=name, name=name, class_path="tests.agentic_backend.session.echo", restart=restart)
            for name in ("Echo", "Other")
        ]
        kit = AgentKit(FakeListChatModel(responses=[]), "none")
        self.counts = CollectorRegistry()
        metrics = AgenticMetrics(self.counts, kpi)
        runner = TurnRunner(
            store=storage,  # type: ignore[arg-type] # the reads of a turn
            log=storage,
            catalog=agents or Catalog(configured, kit, checkpoints=checkpoints),
            admission=admission,
            metrics=metrics,
            kpi=kpi,
            reports=TurnReports(kpi, metrics, Windows(), acked_by_database=False),
            rules=rules or TurnRules(turn_s=30.0, restore_max_exchanges=20),
            leases=leases,
            memory=memory,
        )
        restarts = Restarts(runner, storage, restarting, RestartRules(pause_s=0.0))
        self.registry = TurnRegistry(runner=runner, admission=admission, log=storage, tasks=tasks, restarts=restarts)

    def ask(self, exchange_id: str, message: str = "hello", agent_id: str = "Echo", **more: Any) -> Turn:
        return self.registry.submit(Ask(SESSION.id, agent_id, message, exchange_id, USER, received_at=0.0, **more))
