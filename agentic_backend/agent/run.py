"""The input and output of an agent's run: the only types that `session` and `agent` share."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

from agentic_backend.agent.graph_input import GraphInput
from agentic_backend.agent.interrupts import ResumedRun
from agentic_backend.errors import BadRequest
from agentic_backend.events import Emit, Part
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.settings import Restart
from backend_kit.auth import Credentials

FinishReason = Literal["stop", "length", "content_filter", "tool_calls", "cancelled", "other"]


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One turn as an agent sees it. `history` is oldest first and does not contain `message`.

    `emit` takes the agent's output as it is produced. All data of the user is here and none is in the graph, which
    all sessions share. `credentials` are the user's, for services that decide by them what the user may see: pass them
    to the clients of those services, never into a graph's state, a prompt or a log. `request_id` and `traceparent`
    (W3C) are sent along with them. `resume` is set if the run continues after waiting for a person. `model` is the id
    of the model that answers, None for the agent's own; use `AgentKit.model_for` to get it.

    `restarted` is set if the exchange ran before, in a process that died: its side effects may have happened, and what
    it showed is replaced. `credentials` are None if the service restarts it without a client. With `resume` too, a run
    that a person had let continue goes on from its checkpoint; the dead process had claimed it, so `resume.saved` is
    empty.

    `checkpoint` is for an agent that keeps a state: the newest one that its answers in the session name, where that is
    older than all of `history`; else "".

    Where a client sent the conversation itself, `history` is what it sent: with system text, tool calls and their
    results (`HistoryItem`), and `message` is empty where it ends with such results. `client_tools` are functions that
    the client offers, each with `name`, `description`, `parameters`; only an agent with `client_tools` gets any. A turn
    that is not `kept` leaves nothing behind: no history, no state, no run that waits for a person.

    An agent whose restart is `from_checkpoint` raises `MovesOn` behind a step once `moves()` says that another instance
    is to go on: it is asked for the first time when this process ends.

    `graph` is what a client of LangGraph's own API asked for; an agent that hosts no graph ignores it.

    `images` are those that the question shows, as data URLs: only an agent that `sees` them gets any. Those of earlier
    questions are in `history`.
    """

    session_id: str
    exchange_id: str
    user_id: str
    message: str
    emit: Emit
    history: Sequence[HistoryItem] = ()
    runtime_context: Mapping[str, Any] = field(default_factory=dict)
    language: str | None = None
    credentials: Credentials | None = field(default=None, repr=False, compare=False)
    request_id: str = ""
    traceparent: str | None = None
    resume: ResumedRun | None = None
    model: str | None = None
    restarted: bool = False
    checkpoint: str = ""
    client_tools: Sequence[Mapping[str, Any]] = ()
    kept: bool = True
    moves: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
    graph: GraphInput | None = None
    images: Sequence[str] = field(default=(), repr=False)


class MovesOn(Exception):
    """The run has stopped behind a step, all of which is in its state: another instance goes on with it."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The answer of a turn.

    `text` is the joined text of the `Delta`s on channel final; `parts` are further parts, such as citations.
    `metadata` has `model`, `finish_reason` (`FinishReason`), `token_usage{input_tokens,output_tokens,total_tokens}`
    if the model reports it, and `sources` if the answer has any.
    """

    text: str
    parts: list[Part] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class TurnAgent(Protocol):
    """What a turn needs of the agent that it is asked of."""

    @property
    def restart(self) -> Restart:
        """What the service does with a turn of it that the end of a process cut off."""

    @property
    def uses_credentials(self) -> bool:
        """Whether a run may use `AgentRun.credentials`, which no later process has."""

    @property
    def client_tools(self) -> bool:
        """Whether its model may call functions that the client offers (`AgentRun.client_tools`)."""

    def model_of(self, wanted: str | None, preferred: object = None, *, lenient: bool = False) -> str:
        """The id of the model that answers. Raises `BadRequest` where a turn wants one that it may not choose."""

    def sees(self, model: str) -> bool:
        """Whether it shows images to the model of that id (`AgentRun.images`), and this one can see."""

    def expect_input(self, given: GraphInput) -> None:
        """Raise `BadRequest` where it cannot take what a client of LangGraph's own API asks of it. A graph that is made
        for each run may refuse only then."""

    def misses_state(self, session_id: str, history: Sequence[HistoryItem]) -> bool:
        """Whether it goes on from a state of the session that no answer in `history` names: then `AgentRun.checkpoint`
        has to."""

    async def run(self, run: AgentRun) -> AgentAnswer:
        """Run one turn. Raises `TurnFailed`, or `Waiting` once a run that a person has to answer to is stored."""

    async def claim(self, session_id: str, run_id: str) -> Any:
        """Take over a run that waits. Raises `NotAwaiting` where none does, or `HistoryUnavailable`."""


class TurnAgents(Protocol):
    """Where turns find their agents."""

    def get(self, agent_id: str) -> TurnAgent:
        """The agent. Raises `AgentNotFound`."""

    def label(self, agent_id: str) -> str:
        """The agent's name in metrics: one of a small set, whatever a client sent."""


class AgentState(TypedDict, total=False):
    """The minimum that a graph's state must have: `message` is its input and `answer` its result."""

    message: str
    answer: AgentAnswer


def chosen_model(
    offered: Container[object], own: str, wanted: str | None, preferred: object = None, *, lenient: bool = False
) -> str:
    """The id of the model that answers a turn: the wanted one, else the preferred one, else the agent's own.

    One that is not `offered` is ignored. Raises `BadRequest` if it was wanted, unless `lenient`.
    """
    if wanted in offered:
        return str(wanted)
    if wanted is not None and not lenient:
        raise BadRequest(field="runtime_context.model")
    return str(preferred) if preferred in offered else own
