"""A graph of a project with a `langgraph.json`."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from greeter.words import GREETING


def greet(state: MessagesState) -> dict[str, object]:
    return {"messages": [AIMessage(f"{GREETING}, {state['messages'][-1].content}!")]}


graph = StateGraph(MessagesState).add_node("greet", greet).add_edge(START, "greet").compile()
