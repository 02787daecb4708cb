"""An agent that reasons, says something beside its answer, and asks a person what the question names.

`review`, `value` and `two` ask; `quiet` answers without reasoning; others it answers after some reasoning and a step.
"""

import asyncio
import json
from typing import Any, Final, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentState
from agentic_backend.events import Custom, Delta, Step, Thought, text_part
from agentic_backend.settings import AgentSettings

INTERRUPTS = True
SECRET: Final = "Zimtschnecke"
"""A word of the reasoning and of the custom events that is nowhere else."""
REVIEW: Final[dict[str, Any]] = {
    "action_requests": [
        {"name": "send", "args": {"to": "ann"}, "description": "Send it?"},
        {"name": "drop", "args": {}, "description": "Drop it?"},
    ],
    "review_configs": [
        {"action_name": "send", "allowed_decisions": ["approve", "edit", "reject"]},
        {"action_name": "drop", "allowed_decisions": ["approve", "reject"]},
    ],
}
FIRST: Final = {"review": REVIEW, "value": ["which", 1], "two": "Left?"}
EVENTS: Final = (
    *(Thought(text) for text in ("I ", "look ", f"for {SECRET}", ".")),
    Custom({"looking": [1, None, {"for": SECRET}]}),
    Step("system", "system_note", [text_part("Looked.")]),
    Thought("Now I "),
    Thought("know."),
    Custom(SECRET),
    *(Delta(text) for text in ("A turn ", "is ")),
    Thought("Is it?"),
    *(Delta(text) for text in ("a ", "turn.")),
)
ANSWER: Final = "A turn is a turn."


class State(TypedDict, total=False):
    message: str
    first: Any
    second: Any
    answer: AgentAnswer


def telling() -> dict[str, object]:
    """The agent's entry in `ai.agents`."""
    return {"id": "Teller", "name": "Teller", "class_path": __name__}


def build(settings: AgentSettings, _kit: AgentKit) -> Graph:
    """Two nodes side by side that may ask, and one that answers with what they were told."""

    async def first(state: State) -> State:
        return {"first": interrupt(FIRST[state["message"]])} if state["message"] in FIRST else {}

    async def second(state: State) -> State:
        return {"second": interrupt(REVIEW)} if state["message"] == "two" else {}

    async def answer(state: State, runtime: Runtime[AgentRun]) -> State:
        emit = runtime.context.emit
        if state["message"] in FIRST:
            text = json.dumps([state.get("first"), state.get("second")])
            emit(Delta(text))
            return {"answer": AgentAnswer(text)}
        for event in EVENTS:
            if state["message"] != "quiet" or not isinstance(event, Thought | Custom):
                emit(event)
                await asyncio.sleep(0)
        return {"answer": AgentAnswer(ANSWER, metadata={"model": "none", "finish_reason": "stop"})}

    graph = StateGraph(State, context_schema=AgentRun, input_schema=AgentState)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_node("tell", answer)
    graph.add_edge(START, "first")
    graph.add_edge(START, "second")
    graph.add_edge(["first", "second"], "tell")
    graph.add_edge("tell", END)
    return graph.compile(name=settings.id)
