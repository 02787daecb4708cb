"""REST of libraries and documents: list, describe, cite, open, delete."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Body, Depends, HTTPException, Query, Response
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from backend_kit.auth import Identity
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.library.store import SORTS, DocumentFilter, Library, NewTag, Window
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

T = TypeVar("T")

_JSON = "application/json"
_INT = 2**31 - 1

RAW_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # A page that somebody uploaded must do nothing in our origin, however it is opened.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("text holds NUL")
    return text


Id = Annotated[str, PathParam(min_length=1, max_length=128), AfterValidator(_storable)]
Storable = Annotated[str, AfterValidator(_storable)]
Name = Annotated[Storable, Field(min_length=1, max_length=200)]
Ids = Annotated[list[Annotated[Storable, Field(max_length=128)]], Field(max_length=1000)]


class _Model(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)


class CreateTag(_Model):
    """Body of `POST /tags`."""

    name: Name
    type: Literal["document"] = "document"
    path: Annotated[Storable, Field(max_length=400)] | None = None
    description: Annotated[Storable, Field(max_length=2000)] | None = None


class ChangeTag(_Model):
    """Body of `PUT /tags/{id}`; what is left out stays as it is."""

    name: Name | None = None
    path: Annotated[Storable, Field(max_length=400)] | None = None
    description: Annotated[Storable, Field(max_length=2000)] | None = None


class Filters(_Model):
    """`filters` of a listing; a key that is not here is refused."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    tag_ids: Ids | None = None
    document_uids: Ids | None = None
    status: Literal["processing", "ready", "failed"] | None = None
    retrievable: bool | None = None
    name: Annotated[Storable, Field(max_length=200)] | None = None


class Sort(_Model):
    """One key of a listing's order."""

    field: str
    direction: Literal["asc", "desc"] = "asc"


class Browse(_Model):
    """Body of `POST /documents/browse`. `sort_by`: one key, as `title`, `-title` or `[{field, direction}]`."""

    filters: Filters = Filters()
    offset: Annotated[int, Field(ge=0, le=_INT)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    sort_by: str | Annotated[list[Sort], Field(max_length=1)] | None = None

    def window(self) -> Window:
        """The part and order that is asked for; 422 for an order that there is not."""
        if not self.sort_by:
            return Window(self.limit, self.offset)
        if isinstance(self.sort_by, str):
            chosen = Sort(field=self.sort_by.lstrip("-"), direction="desc" if self.sort_by[0] == "-" else "asc")
        else:
            chosen = self.sort_by[0]
        if chosen.field not in SORTS:
            raise HTTPException(422, f"sort_by is one of {', '.join(SORTS)}")
        return Window(self.limit, self.offset, chosen.field, chosen.direction == "desc")


@dataclass(frozen=True, slots=True)
class LibraryServices:
    """What the routes need, built in the lifespan."""

    library: Library
    metrics: KnowledgeFlowMetrics


def build_router(services: Callable[[], LibraryServices], identify: Callable[..., Any]) -> APIRouter:
    """The routes below the service's base path. `services()` is asked at each request."""
    router = APIRouter()
    caller = Annotated[Identity, Depends(identify)]
    _add_tags(router, services, caller)
    _add_documents(router, services, caller)
    _add_content(router, services, caller)
    return router


def _add_tags(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.get("/tags")
    async def tags(identity: caller) -> list[dict[str, Any]]:
        with _call(services, "tags") as library:
            return await library.tags(_reader(identity))

    @router.post("/tags", status_code=201)
    async def create_tag(identity: caller, body: CreateTag) -> dict[str, Any]:
        tag = NewTag(body.name.strip() or body.name, (body.path or "").strip("/ "), body.type, body.description)
        with _call(services, "tags") as library:
            return await library.add_tag(_reader(identity), tag)

    @router.put("/tags/{tag_id}")
    async def change_tag(tag_id: Id, identity: caller, body: ChangeTag) -> dict[str, Any]:
        path = None if body.path is None else body.path.strip("/ ")
        with _call(services, "tags") as library:
            changed = await library.change_tag(
                _reader(identity), tag_id, name=body.name, path=path, description=body.description
            )
            return _found(changed, "Library")

    @router.delete("/tags/{tag_id}", status_code=204)
    async def delete_tag(tag_id: Id, identity: caller) -> None:
        with _call(services, "tags") as library:
            _found(await library.delete_tag(_reader(identity), tag_id) or None, "Library")


def _add_documents(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.post("/documents/browse")
    async def browse(identity: caller, body: Annotated[Browse | None, Body()] = None) -> dict[str, Any]:
        wanted = body or Browse()
        filters = wanted.filters
        chosen = DocumentFilter(
            uids=None if filters.document_uids is None else tuple(filters.document_uids),
            tags=None if filters.tag_ids is None else tuple(filters.tag_ids),
            status=filters.status,
            retrievable=filters.retrievable,
            words=filters.name or None,
        )
        with _call(services, "documents") as library:
            total, documents = await library.browse(_reader(identity), chosen, wanted.window())
            return {"total": total, "documents": documents}

    @router.get("/documents/metadata/{uid}")
    async def metadata(uid: Id, identity: caller) -> dict[str, Any]:
        with _call(services, "documents") as library:
            return _found(await library.document(_reader(identity), uid), "Document")

    @router.put("/document/metadata/{uid}")
    async def set_retrievable(uid: Id, identity: caller, retrievable: Annotated[bool, Query()]) -> dict[str, Any]:
        with _call(services, "documents") as library:
            return _found(await library.set_retrievable(_reader(identity), uid, retrievable), "Document")

    @router.delete("/documents/{uid}", status_code=204)
    async def delete_document(uid: Id, identity: caller) -> None:
        with _call(services, "documents") as library:
            _found(await library.delete_document(_reader(identity), uid) or None, "Document")


def _add_content(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.get("/documents/{uid}/chunks")
    async def chunks(
        uid: Id,
        identity: caller,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        offset: Annotated[int, Query(ge=0, le=_INT)] = 0,
    ) -> list[dict[str, Any]]:
        with _call(services, "documents") as library:
            return _found(await library.chunks(_reader(identity), uid, limit, offset), "Document")

    @router.get("/documents/{uid}/chunks/{chunk_uid}")
    async def chunk(uid: Id, chunk_uid: Id, identity: caller) -> dict[str, Any]:
        with _call(services, "documents") as library:
            return _found(await library.chunk(_reader(identity), uid, chunk_uid), "Passage")

    @router.get("/markdown/{uid}")
    async def markdown(uid: Id, identity: caller) -> Response:
        with _call(services, "documents") as library:
            return Response(_found(await library.markdown(_reader(identity), uid), "Document"), media_type=_JSON)

    @router.get("/raw_content/{uid}")
    async def raw_content(uid: Id, identity: caller) -> Response:
        with _call(services, "documents") as library:
            file = _found(await library.raw(_reader(identity), uid), "Document")
        headers = {**RAW_HEADERS, "Content-Disposition": attachment(file.file_name)}
        return Response(file.data, media_type=file.mime_type, headers=headers)


def attachment(name: str) -> str:
    """A Content-Disposition that makes a browser save the file: RFC 6266, with a plain name for old clients."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%' else "_" for char in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


@contextmanager
def _call(services: Callable[[], LibraryServices], route: Literal["documents", "tags"]) -> Iterator[Library]:
    """Time a call, refused and failed ones too."""
    state = services()
    began = perf_counter()
    status = "error"
    try:
        yield state.library
        status = "ok"
    except HTTPException:
        status = "rejected"
        raise
    finally:
        state.metrics.request(route, status).observe(perf_counter() - began)


def _found(value: T | None, what: str) -> T:
    if value is None:
        raise HTTPException(404, f"{what} not found.")
    return value


def _reader(identity: Identity) -> Reader:
    return Reader(identity.uid, identity.groups)
