"""An agent whose turn begins again in the middle of its run, before living connections: as where a fleet's process was
cut off and another one has taken over, in one process and without a wait.

Asked `silent` it has said nothing before; else some reasoning, a step and half of an answer.
"""

from typing import Final

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentState
from agentic_backend.events import Delta, Step, Thought, text_part
from agentic_backend.session.exchange import Exchange
from agentic_backend.session.stream import Accepted, Turn, Whole
from agentic_backend.settings import AgentSettings

SAID: Final = ("Half ", "of an ")
"""Text of the run that breaks off."""
ANSWER: Final = "All of it."
THOUGHT: Final = "Once more."


def again() -> dict[str, object]:
    """The agent's entry in `ai.agents`."""
    return {"id": "Again", "name": "Again", "class_path": __name__}


def build(settings: AgentSettings, _kit: AgentKit) -> Graph:
    """A graph of one node."""

    async def answer(_state: AgentState, runtime: Runtime[AgentRun]) -> AgentState:
        run = runtime.context
        exchange = getattr(run.emit, "__self__", None)
        assert isinstance(exchange, Exchange)
        if run.message != "silent":
            run.emit(Thought("I begin."))
            run.emit(Step("system", "system_note", [text_part("Begun.")]))
            for text in SAID:
                run.emit(Delta(text))
        begin_again(exchange.turn)
        run.emit(Thought(THOUGHT))
        run.emit(Delta("All "))
        run.emit(Delta("of it."))
        return {"answer": AgentAnswer(ANSWER, metadata={"model": "none", "finish_reason": "stop"})}

    graph = StateGraph(AgentState, context_schema=AgentRun)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(name=settings.id)


def begin_again(turn: Turn) -> None:
    """What the first events of a run again are: those of its first run."""
    asked = next(event.payload for event in turn.events if isinstance(event.payload, Whole))
    turn.begin_again(1)
    turn.publish(Accepted())
    turn.publish(asked)
