"""The states of a session's graph, read from its saver and told in the shape of LangGraph's API."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from agentic_backend.agent.hosted.graph_json import SnapshotNames
from agentic_backend.agent.hosted.loading import AnyGraph
from agentic_backend.agent.hosted.state import StateRef
from backend_kit.wire import dumps

_PAGE: Final = 50
"""States that are read at once of a thread."""
_PAGES: Final = 40
"""At most this many of these pages are read for one answer."""


class SessionStates:
    """The states that a graph has kept of one session. Each method may raise what the graph's saver raises."""

    def __init__(self, graph: AnyGraph, names: SnapshotNames) -> None:
        self._graph = graph
        self._names = names

    async def find(self, ref: StateRef, *, subgraphs: bool = False) -> dict[str, Any] | None:
        """A state, the newest of its thread as it is now, with `subgraphs` the states of tasks that are graphs; None
        where there is none."""
        found = await self._snapshot(ref, subgraphs=subgraphs)
        return None if found.metadata is None else self._names.snapshot(found)

    async def find_all(
        self,
        ref: StateRef,
        before: StateRef | None,
        limit: int,
        metadata: Mapping[str, Any],
        exchanges: Collection[str] | None,
        most_bytes: int,
    ) -> list[dict[str, Any]]:
        """The states of a thread, newest first, from `ref` on, or those that come before another.

        Those alone that have all of this `metadata` and are of these `exchanges` (None: of any): `limit` at most, to
        the one that passes `most_bytes` of JSON.
        """
        found: list[dict[str, Any]] = []
        left = most_bytes
        async for one in self._from(ref, before):
            told = self._names.snapshot(one)
            known = told["metadata"] or {}
            wanted = all(known.get(key) == value for key, value in metadata.items())
            if wanted and (exchanges is None or known.get("run_id") in exchanges):
                found.append(told)
                left -= len(dumps(told))
            if len(found) >= limit or left < 0:
                break
            await asyncio.sleep(0)  # each has all messages before it
        return found[:limit]

    async def _snapshot(self, ref: StateRef, *, subgraphs: bool = False) -> StateSnapshot:
        newest: RunnableConfig = {"configurable": {"thread_id": ref.thread, "checkpoint_ns": ""}}
        found = await self._graph.aget_state(newest, subgraphs=subgraphs)
        if found.config["configurable"].get("checkpoint_id") == ref.checkpoint_id:
            return found
        return await self._graph.aget_state({"configurable": ref.configurable}, subgraphs=subgraphs)

    async def _from(self, ref: StateRef, before: StateRef | None) -> AsyncIterator[StateSnapshot]:
        """A state and those before it; without it, those before another."""
        if before is None:
            yield await self._snapshot(ref)
        first = before or ref
        thread: RunnableConfig = {"configurable": {"thread_id": first.thread, "checkpoint_ns": ""}}
        behind: RunnableConfig = {"configurable": first.configurable}
        for _ in range(_PAGES):
            page = [one async for one in self._graph.aget_state_history(thread, before=behind, limit=_PAGE)]
            for one in page:
                yield one
            if len(page) < _PAGE:
                return
            behind = page[-1].config
