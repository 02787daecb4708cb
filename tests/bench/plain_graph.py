"""The graph of tests/bench/comparators/naive.py as its author would hand it to us: one model node, ChatOpenAI as it
comes. Its model is named by the environment."""

import os
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

model = ChatOpenAI(
    model=os.environ["PLAIN_GRAPH_MODEL"],
    base_url=os.environ["PLAIN_GRAPH_MODEL_URL"],
    api_key=SecretStr("none"),
    stream_usage=True,
)


async def call_model(state: MessagesState) -> dict[str, Any]:
    """Answer."""
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node("model", call_model).add_edge(START, "model").compile()
