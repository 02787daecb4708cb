"""Tries the code of others that the configuration names, before anything else starts: agents, callback handlers."""

import asyncio
import logging
import os
import sys
from collections.abc import Iterable, MutableMapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig

from agentic_backend.agent.hosted.loading import GraphFailed, GraphUnusable, LoadedGraph, import_agent, load_graph
from agentic_backend.langgraph_json import read_langgraph_json
from agentic_backend.settings import AgentSettings, Ai

logger = logging.getLogger(__name__)

TRY_S: Final = 60.0
_NO_RUN: Final[RunnableConfig] = {"configurable": {"thread_id": "check"}}


def prepare_imports(ai: Ai, environ: MutableMapping[str, str] = os.environ) -> None:
    """Put the directories of the configuration on the import path, last, and set the variables of its `langgraph.json`
    that are not set. A second call changes nothing."""
    places = [Path(ai.agents_path).absolute()]
    if ai.langgraph_json is not None:
        listed = read_langgraph_json(Path(ai.langgraph_json))
        places += listed.paths
        for name, value in listed.env.items():
            environ.setdefault(name, value)
    sys.path.extend(str(place) for place in dict.fromkeys(places) if place.is_dir() and str(place) not in sys.path)


def load_agents(agents: Iterable[AgentSettings]) -> dict[str, LoadedGraph]:
    """Import what the enabled agents name; the graphs by agent id. Raises `GraphUnusable`, which names the agent."""
    graphs = {}
    for agent in agents:
        if not agent.enabled or agent.is_own:
            continue
        try:
            if agent.graph is not None:
                graphs[agent.id] = load_graph(agent.graph, base=agent.graph_base)
            elif agent.class_path is not None:
                _check_module(agent, agent.class_path)
        except GraphUnusable as failure:
            raise GraphUnusable(f"agent {agent.id}: {failure}") from failure
    return graphs


async def try_graphs(graphs: dict[str, LoadedGraph], try_s: float = TRY_S) -> None:
    """Make each graph once and close it again. Raises `GraphUnusable`, also for one that takes over `try_s` seconds.

    A builder that takes a run's configuration may fail without one: that is only logged.
    """
    for agent_id, graph in graphs.items():
        try:
            async with asyncio.timeout(try_s):
                await _try(agent_id, graph)
        except TimeoutError:
            raise GraphUnusable(f"agent {agent_id}: {graph.spec}: is not made within {try_s:g} s") from None
        except GraphUnusable as failure:
            raise GraphUnusable(f"agent {agent_id}: {failure}") from failure


async def _try(agent_id: str, graph: LoadedGraph) -> None:
    try:
        async with graph.for_run(_NO_RUN):
            pass
    except GraphFailed as failure:
        if not graph.per_run:
            raise
        logger.warning("agent %s: its graph is only known once there is a run: %s", agent_id, failure)
    finally:
        await graph.aclose()


def _check_module(agent: AgentSettings, path: str) -> None:
    check = getattr(import_agent(path), "check", None)
    if check is not None:
        try:
            check(agent)
        except ValueError as failure:
            raise GraphUnusable(str(failure)) from failure


class HandlerUnusable(ValueError):
    """A callback handler of the configuration cannot be made. The text names it."""


def load_handlers(paths: Sequence[str]) -> list[BaseCallbackHandler]:
    """A callback handler of LangChain's of each class, `package.module:Class`, made without arguments. Every run of
    every agent has it. Raises `HandlerUnusable`."""
    return [_build_handler(path) for path in paths]


def _build_handler(path: str) -> BaseCallbackHandler:
    module, colon, name = path.partition(":")
    if not colon:
        raise HandlerUnusable(f"tracing.callbacks: {path} must be package.module:Class")
    try:
        handler = getattr(import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as failure:
        raise HandlerUnusable(f"tracing.callbacks: {path} cannot be made: {type(failure).__name__}") from failure
    if not isinstance(handler, BaseCallbackHandler):
        raise HandlerUnusable(f"tracing.callbacks: {path} makes no BaseCallbackHandler")
    return handler
