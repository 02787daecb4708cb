"""The store of LangGraph's Agent Server API: what hosted graphs remember about the caller, read and written over
REST."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, Field

from agentic_backend.chat.frames import CleanText
from agentic_backend.errors import TooLarge
from agentic_backend.surfaces.langgraph.bodies import (
    JsonObject,
    Offset,
    RequestBody,
    checked_body,
    json_response,
    read_body,
)
from agentic_backend.surfaces.services import DoorServices
from backend_kit.wire import dumps

MAX_VALUE_BYTES: Final = 64 * 1024
"""Of one item's value as JSON."""
MAX_ITEMS: Final = 100
"""Items of one search."""
_MAX_NAMESPACES: Final = 1000
_MAX_LABELS: Final = 10
_RESERVED: Final = "langgraph"
_CONDITIONS: Final = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"})


def _without_dot(label: str) -> str:
    if "." in label:
        raise ValueError("a label has no dot")
    return label


def _not_reserved(namespace: list[str]) -> list[str]:
    if namespace and namespace[0] == _RESERVED:
        raise ValueError(f"the first label may not be {_RESERVED}")
    return namespace


def _of_conditions(values: dict[str, Any]) -> dict[str, Any]:
    for value in values.values():
        if isinstance(value, dict) and not _CONDITIONS.issuperset(value):
            raise ValueError("a condition that is unknown")
    return values


_Label = Annotated[CleanText, Field(min_length=1, max_length=128), AfterValidator(_without_dot)]
_Labels = Annotated[list[_Label], Field(max_length=_MAX_LABELS)]
_Namespace = Annotated[list[_Label], Field(min_length=1, max_length=_MAX_LABELS), AfterValidator(_not_reserved)]
_Key = Annotated[CleanText, Field(min_length=1, max_length=512)]


class _Named(RequestBody):
    namespace: _Namespace
    key: _Key


class _Put(_Named):
    value: JsonObject
    index: bool | list[CleanText] | None = None
    """Fields for semantic search: none, since there is no semantic search."""
    ttl: None = None


class _Search(RequestBody):
    namespace_prefix: _Labels
    filter: Annotated[JsonObject, AfterValidator(_of_conditions)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 10
    offset: Offset = 0
    query: None = None


class _Namespaces(RequestBody):
    prefix: _Labels | None = None
    suffix: _Labels | None = None
    max_depth: Annotated[int | None, Field(ge=1, le=_MAX_LABELS)] = None
    limit: Annotated[int, Field(ge=1, le=_MAX_NAMESPACES)] = 100
    offset: Offset = 0


def add_store(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """Add the routes. `services()` is called at each request."""

    @router.put("/store/items", status_code=204)
    async def put_item(request: Request, identity: caller) -> Response:
        """Store a value of the caller under a namespace and a key."""
        read = await read_body(request, _Put)
        if len(dumps(read.value)) > MAX_VALUE_BYTES:
            raise TooLarge(field="value")
        await services().memory.put(identity.uid, read.namespace, read.key, read.value)
        return Response(status_code=204)

    @router.get("/store/items")
    async def get_item(request: Request, identity: caller) -> Response:
        """The caller's item under a namespace, its labels joined by dots, and a key; else null."""
        given = request.query_params
        named = {"namespace": given.get("namespace", "").split("."), "key": given.get("key", "")}
        read = checked_body(named, _Named)
        return json_response(dumps(await services().memory.get(identity.uid, read.namespace, read.key)))

    @router.delete("/store/items", status_code=204)
    async def delete_item(request: Request, identity: caller) -> Response:
        """Delete an item of the caller."""
        read = await read_body(request, _Named)
        await services().memory.delete(identity.uid, read.namespace, read.key)
        return Response(status_code=204)

    @router.post("/store/items/search")
    async def search_items(request: Request, identity: caller) -> Response:
        """Items of the caller below a namespace, filtered by their values. There is no semantic search."""
        read = await read_body(request, _Search)
        found = await services().memory.search(
            identity.uid, read.namespace_prefix, read.filter, read.limit, read.offset
        )
        return json_response(dumps({"items": found}))

    @router.post("/store/namespaces")
    async def list_namespaces(request: Request, identity: caller) -> Response:
        """The namespaces that the caller has items in."""
        read = await read_body(request, _Namespaces)
        found = await services().memory.namespaces(
            identity.uid, read.prefix or (), read.suffix or (), read.max_depth, read.limit, read.offset
        )
        return json_response(dumps({"namespaces": found}))
