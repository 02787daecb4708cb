"""An agent of the test's making, without a graph."""

import asyncio
from typing import Any

from agentic_backend.agent import AgentAnswer, AgentRun, MovesOn, SavedRun, Waiting
from agentic_backend.errors import NotAwaiting
from agentic_backend.events import Delta
from agentic_backend.settings import Restart
from tests.support.patience import PATIENCE_S


class Hosted:
    """An agent whose turns end when the test says so, and the catalog that has it under every id."""

    def __init__(self, restart: Restart = "from_question", *, uses_credentials: bool = False) -> None:
        self.restart = restart
        self.uses_credentials = uses_credentials
        self.client_tools = False
        self.runs: list[AgentRun] = []
        self.gate = asyncio.Event()
        self.asks = False
        self._began = asyncio.Event()

    def get(self, _agent_id: str) -> "Hosted":
        return self

    def label(self, agent_id: str) -> str:
        return agent_id

    def model_of(self, wanted: str | None, _preferred: object = None, **_how: Any) -> str:
        return wanted or "default"

    def misses_state(self, _session_id: str, _history: Any) -> bool:
        return False

    async def run(self, run: AgentRun) -> AgentAnswer:
        self.runs.append(run)
        self._began.set()
        run.emit(Delta("Half"))
        if self.asks:
            raise Waiting({"question": "Sure?", "checkpoint_id": "c1"})
        await self.gate.wait()
        if run.moves():
            raise MovesOn
        return AgentAnswer("Half")

    async def claim(self, _session_id: str, run_id: str) -> SavedRun:
        if run_id != "c1":
            raise NotAwaiting
        return SavedRun(())

    async def began(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._began.wait()
