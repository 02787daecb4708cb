"""Graphs that do not end well."""

import logging
import sys

from langgraph.graph import START, MessagesState, StateGraph

from tests.hosted.graphs.models import hasty

logger = logging.getLogger(__name__)


async def fails(_state: MessagesState) -> dict[str, object]:
    raise ZeroDivisionError("the secret of the node")


graph = StateGraph(MessagesState).add_node("fails", fails).add_edge(START, "fails").compile()


async def exits(state: MessagesState) -> dict[str, object]:
    if state["messages"][-1].text == "interrupt":
        raise KeyboardInterrupt
    sys.exit(5)


def exits_in_a_thread(_state: MessagesState) -> dict[str, object]:
    sys.exit(5)


exiting = StateGraph(MessagesState).add_node("exits", exits).add_edge(START, "exits").compile()
exiting_thread = StateGraph(MessagesState).add_node("exits", exits_in_a_thread).add_edge(START, "exits").compile()


async def again(_state: MessagesState) -> dict[str, object]:
    return {}


endless = (
    StateGraph(MessagesState).add_node("again", again).add_edge(START, "again").add_edge("again", "again")
).compile()


async def chat(state: MessagesState) -> dict[str, object]:
    try:
        return {"messages": [await hasty.ainvoke(state["messages"])]}
    finally:
        logger.warning("the node is left: %s", state["messages"][-1].content)


async def prepare(_state: MessagesState) -> dict[str, object]:
    return {"messages": []}


chatting = (
    StateGraph(MessagesState)
    .add_node("prepare", prepare)
    .add_node("chat", chat)
    .add_edge(START, "prepare")
    .add_edge("prepare", "chat")
    .compile()
)
