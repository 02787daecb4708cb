"""Reads the states of a graph from its saver."""

from collections.abc import AsyncIterator
from typing import Final

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from agentic_backend.agent.hosted.loading import AnyGraph
from agentic_backend.agent.hosted.state import StateRef

_PAGE: Final = 50
"""States that are read at once of a thread."""
_PAGES: Final = 40
"""Of these, at most so many for one answer."""


async def snapshot_of(graph: AnyGraph, ref: StateRef, *, subgraphs: bool = False) -> StateSnapshot:
    """A state; the newest of its thread as it is now."""
    newest: RunnableConfig = {"configurable": {"thread_id": ref.thread, "checkpoint_ns": ""}}
    found = await graph.aget_state(newest, subgraphs=subgraphs)
    if found.config["configurable"].get("checkpoint_id") == ref.checkpoint_id:
        return found
    return await graph.aget_state({"configurable": ref.configurable}, subgraphs=subgraphs)


async def earlier_states(graph: AnyGraph, ref: StateRef) -> AsyncIterator[StateSnapshot]:
    """The states of a thread before one, newest first."""
    thread: RunnableConfig = {"configurable": {"thread_id": ref.thread, "checkpoint_ns": ""}}
    before: RunnableConfig = {"configurable": ref.configurable}
    for _ in range(_PAGES):
        page = [one async for one in graph.aget_state_history(thread, before=before, limit=_PAGE)]
        for one in page:
            yield one
        if len(page) < _PAGE:
            return
        before = page[-1].config
