"""The turn that a graph runs for, for code that LangGraph calls without it: stores, models, authors' functions."""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.base import CheckpointTuple

from agentic_backend.agent.hosted.state_writes import CheckpointPart, StateWrites
from agentic_backend.agent.kit import AgentKit
from agentic_backend.agent.run import AgentRun
from agentic_backend.llm.observer import LlmObserver, TokenUse


@dataclass(slots=True)
class HostedTurn:
    """One run of a hosted graph.

    `checkpoint_id` is the newest checkpoint of the graph itself that was written, `use` the tokens of models, `head`
    a thread whose newest checkpoint was read already, and that one (None: it has none). `writes` are those of its
    state, `input_part` the checkpoint of its input, which is not written, since the next one holds what it does.
    `question_id` is the message of the graph's that is the question; None where the run began without one: what was
    said before it are then the messages `before`, by their ids, None where they are not known yet.
    """

    run: AgentRun
    kit: AgentKit
    observer: LlmObserver
    loop: asyncio.AbstractEventLoop
    checkpoint_id: str | None = None
    use: TokenUse | None = None
    head: tuple[str, CheckpointTuple | None] | None = None
    writes: StateWrites | None = None
    input_part: CheckpointPart | None = None
    question_id: str | None = None
    before: frozenset[str] | None = None

    def note_use(self, use: TokenUse) -> None:
        """Add the tokens of one call of a model to those of the turn."""
        before = self.use or TokenUse(0, 0)
        self.use = TokenUse(*(mine + its for mine, its in zip(before, use, strict=True)))


CURRENT: Final[ContextVar[HostedTurn | None]] = ContextVar("turnwise_hosted_turn", default=None)


def current_turn() -> HostedTurn:
    """The turn that this code runs in. Raises RuntimeError outside of one."""
    turn = CURRENT.get()
    if turn is None:
        raise RuntimeError("this runs only within a turn of an agent with `graph:`")
    return turn


def current_model() -> BaseChatModel:
    """The chat model of the turn that this code runs in: the one that the turn chose, else the agent's own.

    Raises RuntimeError outside of a turn of an agent with `graph:`.
    """
    turn = current_turn()
    return turn.kit.model_for(turn.run).chat_model
