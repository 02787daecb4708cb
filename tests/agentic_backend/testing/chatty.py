"""A graph of two tools and a memory of its user, around whatever model the test gives it."""

from typing import Any

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime

from agentic_backend.testing import FakeModel, says, wants


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


SEARCH = {"name": "search", "description": "Search.", "parameters": {"type": "object", "properties": {}}}
script = (
    wants(("add", {"a": 2, "b": 3}), ("note", {"text": "five"}), text="Let me see.", usage=(10, 5)),
    says("It is ", "5.", usage=(30, 4)),
    says("You asked for a sum.", usage=(40, 6)),
)
models: list[FakeModel] = []


def graph() -> Any:
    """Built anew by each bench, with a model of its own."""
    model = FakeModel(*script)
    models.append(model)

    async def answer(state: MessagesState, runtime: Runtime[None]) -> MessagesState:
        assert runtime.store is not None
        seen = await runtime.store.aget(("seen",), "times")
        times = 1 + (seen.value["times"] if seen is not None else 0)
        await runtime.store.aput(("seen",), "times", {"times": times})
        bound = model.bind_tools([add, note, SEARCH], tool_choice="auto")
        return {"messages": [await bound.ainvoke([SystemMessage(f"Call {times}"), *state["messages"]])]}

    flow = StateGraph(MessagesState)
    flow.add_node("answer", answer)
    flow.add_node("tools", ToolNode([add, note]))
    flow.add_edge(START, "answer")
    flow.add_conditional_edges("answer", tools_condition)
    flow.add_edge("tools", "answer")
    return flow
