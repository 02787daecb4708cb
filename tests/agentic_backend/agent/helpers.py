"""Runs and kits for tests of agents."""

from collections.abc import Sequence
from typing import Any

from agentic_backend.agent import AgentKit, AgentRun
from agentic_backend.events import AgentEvent, Delta
from agentic_backend.llm import CallDeadlines, Endpoint, ModelPool
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.settings import AgentSettings, AgentTuning, FieldSpec
from backend_kit.aio.retry import Retries

QUICK = Retries(base_s=0.001, cap_s=0.002)


def kit_for(pool: ModelPool, base_url: str, model: str = "m", deadlines: CallDeadlines | None = None) -> AgentKit:
    endpoint = Endpoint(base_url, model, retries=QUICK, deadlines=deadlines or CallDeadlines(), coalesce=False)
    return AgentKit(pool.chat_model(endpoint), model)


def settings_for(agent_id: str = "Georges", *, prompt: str | None = None, **more: Any) -> AgentSettings:
    fields = () if prompt is None else (FieldSpec(key="prompts.system", type="prompt", default=prompt),)
    return AgentSettings(id=agent_id, name=agent_id, tuning=AgentTuning(fields=fields), **more)


class Turn:
    """A run and the events it emitted."""

    def __init__(
        self, message: str = "Hi", history: Sequence[HistoryItem] = (), *, user: str = "u", language: str | None = None
    ) -> None:
        self.events: list[AgentEvent] = []
        self.run = AgentRun("s", "e", user, message, self.events.append, history, {}, language)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))
