"""An agent that asks a person whatever the turn's context holds."""

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentState
from agentic_backend.settings import AgentSettings

INTERRUPTS = True


class State(TypedDict, total=False):
    message: str
    said: Any
    answer: AgentAnswer


def build(settings: AgentSettings, _kit: AgentKit) -> Graph:
    """Ask, then say what came back."""

    async def ask(state: State, runtime: Runtime[AgentRun]) -> State:  # langgraph calls it by name
        return {"said": interrupt(runtime.context.runtime_context["payload"])}

    async def answer(state: State) -> State:
        return {"answer": AgentAnswer(str(state["said"]))}

    graph = StateGraph(State, context_schema=AgentRun, input_schema=AgentState)
    graph.add_node("ask", ask)
    graph.add_node("answer", answer)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "answer")
    graph.add_edge("answer", END)
    return graph.compile(name=settings.id)
