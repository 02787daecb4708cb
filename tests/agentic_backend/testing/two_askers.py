"""An agent with two nodes side by side, each of which asks a person."""

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from agentic_backend.agent import AgentAnswer, AgentKit
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.settings import AgentSettings

INTERRUPTS = True


class State(TypedDict, total=False):
    message: str
    left: Any
    right: Any
    answer: AgentAnswer


def build(settings: AgentSettings, _kit: AgentKit) -> Graph:
    """Ask both, then say what came back."""

    async def left(_state: State) -> State:
        return {"left": interrupt("Left?")}

    async def right(_state: State) -> State:
        return {"right": interrupt(["right", 2])}

    async def answer(state: State) -> State:
        return {"answer": AgentAnswer(f"{state['left']} {state['right']}")}

    graph = StateGraph(State, context_schema=AgentRun, input_schema=AgentState)
    graph.add_node("left", left)
    graph.add_node("right", right)
    graph.add_node("answer", answer)
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_edge(["left", "right"], "answer")
    graph.add_edge("answer", END)
    return graph.compile(name=settings.id)
