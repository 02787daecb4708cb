"""Graphs of anybody, without a model."""

import json
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from typing_extensions import TypedDict


def _of_one_node(name: str, node: Any, context: Any = None) -> Any:
    return StateGraph(MessagesState, context_schema=context).add_node(name, node).add_edge(START, name)


def inner(_state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("Inside.")]}


nested = _of_one_node("outer", _of_one_node("inner", inner).compile()).compile()


class Style(TypedDict, total=False):
    tone: str
    length: int


async def tells_context(_state: MessagesState, runtime: Runtime[Style]) -> dict[str, Any]:
    return {"messages": [AIMessage(json.dumps(runtime.context, sort_keys=True))]}


declared = _of_one_node("tells", tells_context, Style).compile()


async def tells_configurable(_state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    found = {key: config["configurable"].get(key) for key in ("tone", "tenant", "user_id")}
    return {"messages": [AIMessage(json.dumps(found))]}


free = _of_one_node("tells", tells_configurable).compile()


def per_run(config: RunnableConfig) -> Any:
    """Made for each run: its node is called after the user."""
    return _of_one_node(f"for_{config['configurable']['user_id']}", inner)


def fails(config: RunnableConfig) -> Any:
    """No graph can be made."""
    raise RuntimeError("no graph")
