"""An agent as an author would add it: one module with a `build`."""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun
from agentic_backend.agent.kit import Graph
from agentic_backend.events import Delta, Step, text_part
from agentic_backend.settings import AgentSettings
from backend_kit.kpi import phase


class State(TypedDict, total=False):
    message: str
    shouted: str
    answer: AgentAnswer | None


def build(settings: AgentSettings, kit: AgentKit) -> Graph:
    mode = settings.tuned("mode", "once")

    async def shout(state: State) -> State:
        with phase("shout"):
            return {"shouted": state["message"].upper()}

    async def answer(state: State, runtime: Runtime[AgentRun]) -> State:
        if mode == "silent":
            return {"answer": None}
        runtime.context.emit(Step("assistant", "thought", [text_part("loudly")]))
        runtime.context.emit(Delta(state["shouted"]))
        return {"answer": AgentAnswer(state["shouted"], metadata={"user": runtime.context.user_id})}

    def after(_state: State) -> str:
        return "shout" if mode == "loop" else END

    graph = StateGraph(State, context_schema=AgentRun)
    graph.add_node("shout", shout)
    graph.add_node("answer", answer)
    graph.add_edge(START, "shout")
    graph.add_edge("shout", "answer")
    graph.add_conditional_edges("answer", after)
    return graph.compile()
