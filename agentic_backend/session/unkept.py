"""Turns of which nothing is stored: every session exists, is new, and stays so."""

from collections.abc import Sequence
from typing import Final

from agentic_backend.agent import TurnAgents
from agentic_backend.events import utc_now
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.admission import Admission
from agentic_backend.session.images import Image
from agentic_backend.session.models import AskRecord, Durability, Session, TurnRecord
from agentic_backend.session.registry import RegistryRules, TurnRegistry
from agentic_backend.session.turn import TurnRules, TurnRunner
from agentic_backend.session.turn_report import TurnReports
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi

_RULES: Final = RegistryRules(kept_s=0.0, kept_bytes=0, by_session=False)
"""Each ask is independent of all others."""


def unkept_turns(
    agents: TurnAgents,
    admission: Admission,
    metrics: AgenticMetrics,
    kpi: Kpi,
    reports: TurnReports,
    tasks: TaskRegistry,
    turn_s: float,
    *,
    name: str,
) -> TurnRegistry:
    """A registry whose turns are like those of any other, except that they know nothing and leave nothing.

    `name` is the agent and the title of their sessions.
    """
    log = NullLog()
    store = NullStore(name)
    runner = TurnRunner(
        store=store,
        images=store,
        log=log,
        catalog=agents,
        admission=admission,
        metrics=metrics,
        kpi=kpi,
        reports=reports,
        rules=TurnRules(turn_s, restore_max_exchanges=0, kept=False, ack="none"),
    )
    return TurnRegistry(runner=runner, admission=admission, log=log, tasks=tasks, rules=_RULES)


class NullStore:
    """Implements `TurnStore` by making each session up when it is asked for, and `ImageStore`."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def get(self, session_id: str, user_id: str) -> Session:
        """A session without a turn."""
        return Session(session_id, user_id, self._name, self._name, utc_now())

    async def images(self, user_id: str, session_id: str | None, attachment_ids: Sequence[str]) -> dict[str, Image]:  # noqa: ARG002 - of the port
        """None."""
        return {}

    async def touch(self, session_id: str, user_id: str) -> bool:  # noqa: ARG002 - of the port
        """True."""
        return True

    async def remembered(
        self,
        session_id: str,  # noqa: ARG002 - of the port
        user_id: str,  # noqa: ARG002 - of the port
        max_exchanges: int,  # noqa: ARG002 - of the port
        up_to: int | None = None,  # noqa: ARG002 - of the port
    ) -> list[HistoryItem]:
        """Nothing."""
        return []

    async def newest_checkpoint(
        self,
        session_id: str,  # noqa: ARG002 - of the port
        user_id: str,  # noqa: ARG002 - of the port
        agent_id: str,  # noqa: ARG002 - of the port
        up_to: int | None = None,  # noqa: ARG002 - of the port
    ) -> str:
        """None."""
        return ""

    async def standing(self, session_id: str, user_id: str, rank: int) -> None:
        """None."""

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:  # noqa: ARG002 - of the port
        """None."""
        return set()

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:  # noqa: ARG002 - of the port
        """Nothing."""
        return []


class NullLog:
    """Implements `TurnLog` by dropping what it is given."""

    def has_room(self) -> bool:
        """True."""
        return True

    def begin(self, record: AskRecord) -> None:
        """Nothing."""

    async def append(self, record: TurnRecord) -> Durability:  # noqa: ARG002 - of the port
        """Reports that nothing is stored."""
        return "none"
