"""A graph that asks a person before it answers."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


async def answer(state: MessagesState) -> MessagesState:
    return {"messages": [AIMessage(f"You said {interrupt('Sure?')}.")]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
