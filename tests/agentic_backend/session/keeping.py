"""A graph that says which questions its state has, and asks a person at `ask`."""

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import interrupt


def keep(state: MessagesState) -> dict[str, Any]:
    """Answer with the questions before this one."""
    *before, question = [message.text for message in state["messages"] if message.type == "human"]
    if question == "ask":
        interrupt("Sure?")
    return {"messages": [AIMessage(f"Known: {', '.join(before) or 'nothing'}.")]}


graph = StateGraph(MessagesState).add_node("keep", keep).set_entry_point("keep").compile()
