"""What clients are shown of an agent's graph: its nodes and edges, what it takes and gives, the graphs in it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from inspect import isclass
from typing import Any, Final

from langgraph.graph import MessagesState
from langgraph.graph.state import StateGraph
from langgraph.pregel import Pregel
from pydantic import BaseModel, PydanticUserError, TypeAdapter

from agentic_backend.agent.hosted.loading import AnyGraph, GraphUnusable
from agentic_backend.errors import TurnFailed
from agentic_backend.settings import FieldSpec
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

Json = dict[str, Any]
_UNDESCRIBED: Final = (PydanticUserError, ValueError, TypeError, NameError, AttributeError, KeyError)
"""What pydantic raises for types of an author's that no JSON schema describes."""
_TYPES: Final = {"integer": "integer", "number": "number", "boolean": "boolean", "array": "array", "object": "object"}


class Drawing:
    """One agent's graph, opened for each look. Methods raise `TurnFailed` where the graph's author's code fails."""

    def __init__(
        self,
        open_graph: Callable[[], AbstractAsyncContextManager[AnyGraph]],
        *,
        taken: Sequence[FieldSpec] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """`taken` are the tunable fields of an agent of ours, and `values` theirs; None for a hosted graph."""
        self._open_graph = open_graph
        self._taken = taken
        self._values = values or {}

    async def nodes(self, xray: bool | int = False) -> Json:
        """Nodes and edges; with `xray` also those of nested graphs, down to that depth where it is a number."""
        async with self._opened() as graph:
            drawn = (await graph.aget_graph(xray=xray)).to_json()
        for node in drawn["nodes"]:
            if isinstance(data := node.get("data"), dict):
                data.pop("id", None)  # the module of the node's own code
            if not _is_json(node.get("metadata")):
                del node["metadata"]
        return drawn

    async def schemas(self) -> Json:
        """JSON schemas of input, output, state, config and context; None for what no schema describes.

        Every client of an agent of ours sends messages and gets messages, whatever state it keeps within a turn.
        """
        if self._taken is not None:
            fields = _fields_schema(self._taken, self._values)
            return {**await asyncio.to_thread(_of_messages), "config_schema": fields, "context_schema": fields}
        async with self._opened() as graph:
            return await asyncio.to_thread(_schemas_of, graph)

    async def subgraphs(self, namespace: str | None, *, recurse: bool) -> dict[str, Json]:
        """The graphs within it by their nodes' names, each as in `schemas`; of one node with `namespace`."""
        async with self._opened() as graph:
            found = [one async for one in graph.aget_subgraphs(namespace=namespace, recurse=recurse)]
            here = [(name, each) for name, each in found if isinstance(each, Pregel)]  # not those of another server
            return {name: await asyncio.to_thread(_schemas_of, each) for name, each in here}

    async def takes(self) -> frozenset[str] | None:
        """The names that a hosted graph's context has; None where its author declares none."""
        async with self._opened() as graph:
            schema = await asyncio.to_thread(_described, graph.get_context_jsonschema)
        return None if schema is None else frozenset(schema.get("properties", ()))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[AnyGraph]:
        try:
            async with self._open_graph() as graph:
                yield graph
        except GraphUnusable as failure:
            logger.warning("no graph to look at: %s", failure)
            raise TurnFailed("the graph could not be made") from failure


def _schemas_of(graph: AnyGraph) -> Json:
    context = _described(graph.get_context_jsonschema)
    return {
        "input_schema": _described(graph.get_input_jsonschema),
        "output_schema": _described(graph.get_output_jsonschema),
        "state_schema": _described(lambda: _state_schema(graph)),
        "config_schema": context or {},
        "context_schema": context,
    }


def _described(schema: Callable[[], Json | None]) -> Json | None:
    try:
        found = schema()
    except _UNDESCRIBED:
        return None
    return found if _is_json(found) else None


def _state_schema(graph: AnyGraph) -> Json | None:
    builder = getattr(graph, "builder", None)
    if not isinstance(builder, StateGraph):
        return graph.get_output_jsonschema()
    state: Any = builder.state_schema
    if isclass(state) and issubclass(state, BaseModel):
        return state.model_json_schema()
    return TypeAdapter(state).json_schema()


@cache
def _of_messages() -> Json:
    schema = TypeAdapter(MessagesState).json_schema()
    return {"input_schema": schema, "output_schema": schema, "state_schema": schema}


def _fields_schema(fields: Sequence[FieldSpec], values: Mapping[str, Any]) -> Json:
    return {"type": "object", "properties": {spec.key: _field_schema(spec, values.get(spec.key)) for spec in fields}}


def _field_schema(spec: FieldSpec, value: Any) -> Json:
    schema: Json = {"type": _TYPES.get(spec.type, "string")}
    told = {
        "title": spec.title or None,
        "description": spec.description,
        "minimum": spec.min,
        "maximum": spec.max,
        "pattern": spec.pattern,
        "default": value,
    }
    schema |= {key: one for key, one in told.items() if one is not None}
    if spec.type == "array":
        schema["items"] = {"type": _TYPES.get(spec.item_type or "", "string")}
        if spec.enum is not None:
            schema["items"]["enum"] = list(spec.enum)
    elif spec.enum is not None:
        schema["enum"] = list(spec.enum)
    return schema


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except TypeError:
        return False
    return True
