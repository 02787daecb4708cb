"""Runs a compiled LangGraph in which one node follows the other, in a hundredth of the time of LangGraph's engine.

`StateGraph` stays how an agent is written. LangGraph's engine prepares every step for parallel nodes, checkpoints,
streams and tracers, in 0.4 ms for a graph of one node; an agent of ours that uses none of them is run here, with the
same result (`tests/agentic_backend/agent/test_straight.py` runs both on generated graphs). What this cannot run is
refused when the graph is compiled, and never run differently.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Final, is_typeddict

from langchain_core.runnables import Runnable
from langgraph._internal._runnable import RunnableCallable
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.last_value import LastValue
from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.graph import END, START
from langgraph.graph._branch import BranchSpec
from langgraph.graph._node import StateNodeSpec
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Overwrite, Send

State = dict[str, Any]
_Reducer = Callable[[Any, Any], Any]
_AGAIN: Final = frozenset({"defer", "is_error_handler", "error_handler_node", "timeout", "trace_policy"})
"""What a node may have that makes it more than one call; like its policies, none of ours does."""
_PARALLEL: Final = "one node leads to several"


class NotStraight(ValueError):
    """A graph needs LangGraph's own engine. The text names the node and what it has."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of a graph: a node, or what decides where to go. `reads` are the keys that it is given."""

    function: Callable[..., Any]
    awaited: bool
    with_runtime: bool
    reads: frozenset[str]

    def reading(self, state: State) -> State:
        """The part of the state that it is given, a new dict."""
        return {key: value for key, value in state.items() if key in self.reads}

    async def run(self, given: State, runtime: Runtime[Any]) -> Any:
        """Call it."""
        result = self.function(given, runtime=runtime) if self.with_runtime else self.function(given)
        return await result if self.awaited else result


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where a node leads to by what a function says. `ends` are the nodes by its answers. With `adds_update` the
    function is also given what the node returned beyond the state."""

    call: _Call
    ends: Mapping[Hashable, str]
    adds_update: bool

    async def run(self, state: State, update: Any, runtime: Runtime[Any]) -> str:
        """The next node. Raises as LangGraph does for an answer that names none."""
        given = self.call.reading(state)
        if self.adds_update and isinstance(update, dict):
            given = {**update, **given}
        said = await self.call.run(given, runtime)
        if isinstance(said, list | tuple):
            if len(said) != 1:
                raise InvalidUpdateError(_PARALLEL)
            said = said[0]
        if isinstance(said, Send):
            raise InvalidUpdateError(_PARALLEL)
        following = self.ends[said]
        if following == START:
            raise ValueError("Branch did not return a valid destination")
        return following


@dataclass(frozen=True, slots=True)
class _Node:
    """One node and what follows it."""

    call: _Call
    following: str | _Choice


class StraightGraph:
    """A graph of which one node is active at a time. Shared by all runs; holds nothing of any of them."""

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        """Raises `NotStraight`."""
        builder = graph.builder
        _check_engine(graph)
        self._inputs = _keys_of(builder, builder.input_schema)
        self._outputs = _keys_of(builder, builder.output_schema)
        self._keys = frozenset(builder.channels)
        self._begun: dict[str, BinaryOperatorAggregate[Any]] = {}
        self._reducers: dict[str, _Reducer] = {}
        for key, channel in builder.channels.items():
            if type(channel) is BinaryOperatorAggregate:
                self._begun[key] = channel
                self._reducers[key] = channel.operator
            elif type(channel) is not LastValue:
                raise NotStraight(f"{key} is kept by {type(channel).__name__}")
        self._first = _following(builder, START)
        self._nodes = {
            name: _Node(_call_of(builder, name, spec), _following(builder, name))
            for name, spec in builder.nodes.items()
        }

    async def run(self, begin: State, *, context: Any, recursion_limit: int) -> State:
        """Run it from its input to its end; the values of its output's keys.

        Raises what a node raises, with a note that names the node, `GraphRecursionError` after `recursion_limit` nodes,
        and `InvalidUpdateError` for a node whose result is not a dict. Where it is cancelled, the active node is.
        """
        runtime: Runtime[Any] = Runtime(context=context)
        state = {key: value for key, channel in self._begun.items() if (value := _begun(channel)) is not _NOTHING}
        self._update(state, begin, self._inputs)
        first = self._first
        name = first if isinstance(first, str) else await first.run(begin, begin, runtime)
        left = recursion_limit
        while name != END:
            node = self._nodes[name]
            try:
                update = await node.call.run(node.call.reading(state), runtime)
                self._update(state, update, self._keys)
                following = node.following
                name = following if isinstance(following, str) else await following.run(state, update, runtime)
            except Exception as failure:
                failure.add_note(f"in node {name!r}")
                raise
            left -= 1
            if left <= 0:
                raise GraphRecursionError(f"recursion limit of {recursion_limit} reached")
        return {key: value for key, value in state.items() if key in self._outputs}

    def _update(self, state: State, update: Any, keys: frozenset[str]) -> None:
        if update is None:
            return
        if not isinstance(update, dict):
            raise InvalidUpdateError(f"Expected dict, got {update}")
        for key, value in update.items():
            if key not in keys:
                continue
            if isinstance(value, Overwrite):
                raise InvalidUpdateError(f"{key} is overwritten")
            reducer = self._reducers.get(key)
            state[key] = value if reducer is None or key not in state else reducer(state[key], value)


_NOTHING: Final = object()


def _begun(channel: BinaryOperatorAggregate[Any]) -> Any:
    """The value with which a reduced key begins, a new one for each run: an empty list, say."""
    begun = channel.from_checkpoint(channel.checkpoint())
    return begun.get() if begun.is_available() else _NOTHING


def _check_engine(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Raise for what only LangGraph's engine does: checkpoints, interrupts, stores, caches, managed values, joins."""
    builder = graph.builder
    has = {
        "a checkpointer": graph.checkpointer,
        "a store": graph.store,
        "a cache": graph.cache,
        "interrupts": graph.interrupt_before_nodes or graph.interrupt_after_nodes,
        "a retry policy": graph.retry_policy,
        "a step timeout": graph.step_timeout,
        "managed values": builder.managed,
        "a node that waits for several": builder.waiting_edges,
    }
    for what, value in has.items():
        if value:
            raise NotStraight(f"the graph has {what}")


def _keys_of(builder: StateGraph[Any, Any, Any, Any], schema: type[Any]) -> frozenset[str]:
    if not is_typeddict(schema):
        raise NotStraight(f"{schema.__name__} is not a TypedDict")
    return frozenset(builder.schemas[schema])


def _call_of(builder: StateGraph[Any, Any, Any, Any], name: str, spec: StateNodeSpec[Any, Any]) -> _Call:
    extras = [key for key in sorted(_AGAIN) if getattr(spec, key)]
    extras += [key for key in ("retry_policy", "cache_policy", "ends") if getattr(spec, key)]
    if extras:
        raise NotStraight(f"node {name} has {', '.join(extras)}")
    runnable = spec.runnable
    # A blocking function has both, the async one being a thread.
    if not isinstance(runnable, RunnableCallable) or runnable.func is not None or runnable.afunc is None:
        raise NotStraight(f"node {name} is no async function")
    return _call(name, runnable, runnable.afunc, _keys_of(builder, spec.input_schema))


def _call(name: str, runnable: Any, function: Callable[..., Any], reads: frozenset[str]) -> _Call:
    wanted = runnable.func_accepts.keys()
    if wanted - {"runtime"} or runnable.kwargs:
        raise NotStraight(f"{name} wants {', '.join(sorted(wanted - {'runtime'}))}")
    return _Call(function, iscoroutinefunction(function), bool(wanted), reads)


def _following(builder: StateGraph[Any, Any, Any, Any], name: str) -> str | _Choice:
    """What follows a node: another one, a choice, or the end."""
    ends = [end for start, end in builder.edges if start == name]
    branches = list(builder.branches.get(name, {}).values())
    if len(ends) + len(branches) > 1:
        raise NotStraight(f"{name}: {_PARALLEL}")
    if branches:
        return _choice(builder, name, branches[0])
    return ends[0] if ends else END


def _choice(builder: StateGraph[Any, Any, Any, Any], name: str, branch: BranchSpec) -> _Choice:
    path: Runnable[Any, Any] = branch.path
    if not isinstance(path, RunnableCallable):
        raise NotStraight(f"{name}: what follows is decided by a {type(path).__name__}")
    if not branch.ends:
        raise NotStraight(f"{name}: where it may lead is not declared")
    # A choice that is not async is called here, where LangGraph would ask a thread for it.
    function = path.func or path.afunc
    assert function is not None, "one of them makes a RunnableCallable"
    schema = branch.input_schema
    if name == START:
        reads: frozenset[str] = frozenset()  # LangGraph hands on the input as it came
    else:
        reads = _keys_of(builder, schema or builder.nodes[name].input_schema)
    return _Choice(
        _call(f"the choice after {name}", path, function, reads), branch.ends, name == START or schema is None
    )
