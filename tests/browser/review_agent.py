"""An agent that reasons, tells of its progress, and then asks a person two questions at once: about a call, and a word.

The call is langchain's request to review it, as its middleware makes one.
"""

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from agentic_backend.agent import AgentAnswer, AgentKit
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.events import Custom, Delta, Step, Thought
from agentic_backend.settings import AgentSettings

INTERRUPTS = True
MAIL = {"to": "brook", "litres": 6}
REVIEW = {
    "action_requests": [{"name": "send_mail", "args": MAIL, "description": "Mails in your name."}],
    "review_configs": [{"action_name": "send_mail", "allowed_decisions": ["approve", "edit", "reject"]}],
}


class State(TypedDict, total=False):
    message: str
    decisions: Any
    language: Any
    answer: AgentAnswer


def build(settings: AgentSettings, _kit: AgentKit) -> Graph:
    """Reason, call, ask both, then say what came back."""

    async def plan(_state: State, runtime: Runtime[AgentRun]) -> State:
        emit = runtime.context.emit
        emit(Thought("A mail is "))
        emit(Thought("what they want."))
        call = {"type": "tool_call", "call_id": "c1", "name": "send_mail", "args": MAIL}
        emit(Step("assistant", "tool_call", [call]))
        emit(Custom({"message": "Waiting for you"}))
        return {}

    async def review(_state: State) -> State:
        return {"decisions": interrupt(REVIEW)["decisions"]}

    async def language(_state: State) -> State:
        return {"language": interrupt("In which language?")}

    async def answer(state: State, runtime: Runtime[AgentRun]) -> State:
        emit = runtime.context.emit
        args = state["decisions"][0]["edited_action"]["args"]
        emit(Step("tool", "tool_result", [{"type": "tool_result", "call_id": "c1", "content": "sent", "ok": True}]))
        emit(Thought("Now I say so."))
        text = f"{args['litres']} litres, in {state['language']['text']}."
        emit(Delta(text))
        return {"answer": AgentAnswer(text)}

    graph = StateGraph(State, context_schema=AgentRun, input_schema=AgentState)
    for name, node in {"plan": plan, "review": review, "language": language, "answer": answer}.items():
        graph.add_node(name, node)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "review")
    graph.add_edge("plan", "language")
    graph.add_edge(["review", "language"], "answer")
    graph.add_edge("answer", END)
    return graph.compile(name=settings.id)
