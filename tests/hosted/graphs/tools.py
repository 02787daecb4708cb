"""A model with two tools, as LangGraph's own tutorials write it."""

from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from tests.hosted.graphs.models import model


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


async def chat(state: MessagesState) -> MessagesState:
    return {"messages": [await model.bind_tools([add, shout]).ainvoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("chat", chat)
    .add_node("tools", ToolNode([add, shout]))
    .add_edge(START, "chat")
    .add_conditional_edges("chat", tools_condition)
    .add_edge("tools", "chat")
    .compile()
)
