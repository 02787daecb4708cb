"""What a graph remembers of a user, over all sessions."""

import json

from langchain_core.messages import AIMessage
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime


async def write(state: MessagesState, runtime: Runtime[None]) -> dict[str, object]:
    text = str(state["messages"][-1].content)
    if text.startswith("I like "):
        assert runtime.store is not None
        await runtime.store.aput(("likes", "food"), text.removeprefix("I like "), {"since": "today"})
    return {}


def read(_state: MessagesState) -> dict[str, object]:
    store = get_store()
    found = {
        "items": sorted(item.key for item in store.search(("likes",))),
        "all": sorted(item.key for item in store.search(())),
        "namespaces": store.list_namespaces(),
        "short": store.list_namespaces(max_depth=1),
        "any user": store.list_namespaces(suffix=["food"]),
        "got": (item := store.get(("likes", "food"), "cheese")) and [item.namespace, item.value],
    }
    return {"messages": [AIMessage(json.dumps(found))]}


graph = (
    StateGraph(MessagesState)
    .add_node("write", write)
    .add_node("read", read)
    .add_edge(START, "write")
    .add_edge("write", "read")
    .compile()
)


async def forgetful_of_await(_state: MessagesState) -> dict[str, object]:
    get_store().get(("likes", "food"), "cheese")  # of an asynchronous node this must not wait
    return {}


blocking = StateGraph(MessagesState).add_node("read", forgetful_of_await).add_edge(START, "read").compile()
