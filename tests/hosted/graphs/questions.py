"""Graphs that ask a person: two nodes at once, a tool, and a graph within a graph."""

import sys
from operator import add
from typing import Annotated

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from tests.hosted.graphs.models import model


class Trip(MessagesState):
    wishes: Annotated[list[str], add]


def where(_state: Trip) -> dict[str, object]:
    return {"wishes": ["to " + str(interrupt("Where to?"))]}


def when(_state: Trip) -> dict[str, object]:
    return {"wishes": ["on " + str(interrupt({"ask": "when", "days": ["Monday", "Friday"]}))]}


def book(state: Trip) -> dict[str, object]:
    return {"messages": [AIMessage("Booked " + ", ".join(sorted(state["wishes"])) + ".")]}


trip = (
    StateGraph(Trip)
    .add_node("where", where)
    .add_node("when", when)
    .add_node("book", book)
    .add_edge(START, "where")
    .add_edge(START, "when")
    .add_edge(["where", "when"], "book")
)
graph = trip.compile()

nested = (
    StateGraph(MessagesState).add_node("trip", trip.compile()).add_edge(START, "trip")  # a graph within this one
).compile()


@tool
def pay(amount: int) -> str:
    """Pay so much."""
    if interrupt(f"Pay {amount}?") != "yes":
        return "not paid"
    sys.stdout.write(f"paid {amount}\n")
    sys.stdout.flush()
    return "paid"


async def chat(state: MessagesState) -> MessagesState:
    return {"messages": [await model.bind_tools([pay]).ainvoke(state["messages"])]}


paying = (
    StateGraph(MessagesState)
    .add_node("chat", chat)
    .add_node("tools", ToolNode([pay]))
    .add_edge(START, "chat")
    .add_conditional_edges("chat", tools_condition)
    .add_edge("tools", "chat")
    .compile()
)
