"""A process whose agents are echoes, over storage in memory."""

from typing import Any

from agentic_backend.agent import AgentKit, TurnAgents
from agentic_backend.session.stream import Turn
from agentic_backend.settings import AgentSettings, Restart
from agentic_backend.testing import FakeModel, MemoryStorage, TurnProcess, session_of
from backend_kit.aio import TaskRegistry

SESSION = session_of("Echo")


class EchoProcess(TurnProcess):
    """Its agents are `Echo` and `Other`, unless it is given others."""

    def __init__(
        self,
        storage: MemoryStorage,
        tasks: TaskRegistry,
        agents: TurnAgents | None = None,
        restart: Restart | None = None,
        **parts: Any,
    ) -> None:
        echoes = [
            AgentSettings(id=name, name=name, class_path="tests.agentic_backend.session.echo", restart=restart)
            for name in ("Echo", "Other")
        ]
        super().__init__(storage, tasks, agents or echoes, AgentKit(FakeModel(), "none"), **parts)

    def ask(self, exchange_id: str, message: str = "hello", agent_id: str | None = "Echo", **more: Any) -> Turn:
        return super().ask(exchange_id, message, agent_id, **more)
