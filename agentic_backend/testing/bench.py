"""Runs an agent as a turn of the service would, without a service, and returns what it emitted and answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun, Catalog, ResumedRun, SavedRun, Waiting
from agentic_backend.agent.hosted import GRAPH, Hosting
from agentic_backend.agent.kit import NamedModel
from agentic_backend.agent.people import answers_for, run_of
from agentic_backend.events import AgentEvent, Delta, Step
from agentic_backend.knowledge import KnowledgeClient
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.settings import ANY_MODEL, DEFAULT_MODEL, AgentSettings, AgentTuning, FieldSpec, McpServerRef
from agentic_backend.testing.storage import MemoryState
from agentic_backend.testing.tools import FakeToolbox
from backend_kit.kpi import Kpi, Ledger


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: either `answer`, or `question` if it waits for a person; the other is None.

    `events` are what it emitted, in order, and `phases` the names of the steps that it timed.
    """

    events: list[AgentEvent]
    phases: list[str]
    answer: AgentAnswer | None = None
    question: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The answer's streamed text: what came after the last step."""
        text = ""
        for event in self.events:
            if isinstance(event, Step):
                text = ""
            elif isinstance(event, Delta) and event.channel == "final":
                text += event.text
        return text

    @property
    def steps(self) -> list[Step]:
        """The whole messages other than the answer: thoughts, tool calls, their results."""
        return [event for event in self.events if isinstance(event, Step)]


@dataclass(slots=True)
class _MemoryCheckpoints:
    """Runs that wait, in memory: the `Checkpoints` of a test."""

    kept: dict[str, SavedRun] = field(default_factory=dict)

    async def keep(self, session_id: str, saved: SavedRun) -> None:
        self.kept[session_id] = saved

    async def take(self, session_id: str, run_id: str) -> SavedRun | None:
        saved = self.kept.get(session_id)
        return self.kept.pop(session_id) if saved is not None and saved.id == run_id else None


class AgentBench:
    """One agent and one conversation with it.

    `module` is the agent's module or the name of it, or, with a colon, a graph as `graph:` of the configuration names
    it (`package.module:name`, `./file.py:name`). `fields` are values of its tunable fields by key. The agent is
    compiled and run by the same code as in the service, including the recursion limit and checks. What a graph keeps
    of a session and of a user is in `state`.
    """

    def __init__(
        self,
        module: ModuleType | str,
        model: BaseChatModel,
        *,
        fields: dict[str, Any] | None = None,
        tools: FakeToolbox | None = None,
        knowledge: KnowledgeClient | None = None,
        recursion_limit: int = 40,
        further_models: Mapping[str, BaseChatModel] | None = None,
    ) -> None:
        """A turn may choose one of `further_models`, by id, instead of `model`. Raises `AgentUnusable` as the start of
        the service would."""
        tuned = tuple(FieldSpec(key=key, default=value) for key, value in (fields or {}).items())
        servers = () if tools is None else (McpServerRef(id=tools.server),)
        path = module if isinstance(module, str) else module.__name__
        hosted = ":" in path
        settings = AgentSettings(
            id="agent",
            name="Agent",
            class_path=None if hosted else path,
            graph=path if hosted else None,
            further_models=(ANY_MODEL,),
            tuning=AgentTuning(fields=tuned, mcp_servers=servers),
        )
        models = {DEFAULT_MODEL: model, **(further_models or {})}
        named = {model_id: NamedModel(one, model_id, model_id) for model_id, one in models.items()}
        kit = AgentKit(model, "scripted", knowledge, tools, named)
        self.state = MemoryState()
        catalog = Catalog(
            [settings],
            kit,
            recursion_limit=recursion_limit,
            checkpoints=_MemoryCheckpoints(),
            hosting=Hosting(self.state),
        )
        self._agent = catalog.get("agent")
        self._history: list[HistoryItem] = []
        self._waiting: tuple[AgentRun, dict[str, Any]] | None = None

    async def ask(self, message: str, **context: Any) -> Outcome:
        """Run one turn. `context` is its runtime context and may include `language`, `model` and `user_id`. Its answer
        is history for the next one. Raises the `TurnFailed` that would end the turn, or `BadRequest`."""
        run = AgentRun(
            session_id="session",
            exchange_id=uuid4().hex,
            user_id=context.pop("user_id", "user"),
            message=message,
            emit=_nowhere,
            history=tuple(self._history),
            language=context.pop("language", None),
            model=self._agent.model_of(context.pop("model", None)),
            runtime_context=context,
        )
        return await self._run(run)

    async def answer(self, said: Any) -> Outcome:
        """Continue the turn before with a person's answer to its question.

        Raises `NotAwaiting` if that was answered already, `BadRequest` if the question cannot take it and still waits,
        `AssertionError` if the agent asked nothing.
        """
        if self._waiting is None:
            raise AssertionError("the agent asked nothing")
        run, asked = self._waiting
        answers_for(asked, said)
        saved = await self._agent.claim(run.session_id, run_of(asked))
        return await self._run(replace(run, resume=ResumedRun(saved, said, asked)))

    async def _run(self, run: AgentRun) -> Outcome:
        events: list[AgentEvent] = []
        run = replace(run, emit=events.append)
        ledger = Ledger(Kpi(CollectorRegistry(), service="testing"))
        try:
            with ledger.activate():
                answer = await self._agent.run(run)
        except Waiting as waiting:
            self._waiting = run, waiting.payload
            return Outcome(events, _phases(ledger), question=waiting.payload)
        checkpoint = answer.metadata.get("extras", {}).get("checkpoint", "")
        self._history += [HistoryItem("user", run.message), HistoryItem("assistant", answer.text, checkpoint)]
        return Outcome(events, _phases(ledger), answer)


def _nowhere(_event: AgentEvent) -> None:
    """Ignore an event; each run of the bench replaces this."""


def _phases(ledger: Ledger) -> list[str]:
    # What LangGraph took between them is a row where it is long, which no test of an agent's should depend on.
    return [row["phase"] for row in ledger.rows() if row["phase"] != GRAPH]
