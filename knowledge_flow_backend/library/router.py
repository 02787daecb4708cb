"""REST of libraries and documents: list, describe, share, move, cite, open, delete."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Body, Depends, HTTPException, Query, Response

from backend_kit.auth import Identity
from backend_kit.http import Download, refusals
from backend_kit.wire import dumps
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.library.bodies import (
    MAX_INT,
    AccessBody,
    Browse,
    ChangeTag,
    CreateTag,
    Id,
    Placement,
)
from knowledge_flow_backend.library.store import Library, UnknownLibrary
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

T = TypeVar("T")

_JSON = "application/json"
_LIBRARIES = "libraries"
_DOCUMENTS = "documents"

_TAGS: dict[int | str, dict[str, Any]] = {200: {"model": list[dict[str, Any]], "description": "By path and name."}}
_CHUNKS: dict[int | str, dict[str, Any]] = {200: {"model": list[dict[str, Any]], "description": "In order."}}

RAW_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # A page that somebody uploaded must do nothing in our origin, however it is opened.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class LibraryServices:
    """What the routes need, built in the lifespan."""

    library: Library
    metrics: KnowledgeFlowMetrics


def build_router(services: Callable[[], LibraryServices], identify: Callable[..., Any], base: str) -> APIRouter:
    """The routes below the base path. `services()` is called at each request."""
    router = APIRouter(prefix=base, responses=refusals())
    caller = Annotated[Identity, Depends(identify)]
    _add_tags(router, services, caller)
    _add_access(router, services, caller)
    _add_documents(router, services, caller)
    _add_content(router, services, caller)
    return router


def _add_tags(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.get("/tags", tags=[_LIBRARIES], responses=_TAGS)
    async def tags(identity: caller) -> Response:
        """The libraries that the caller may read: their own, and those shared with them."""
        with _call(services, "tags") as library:
            found = await library.tags(_reader(identity))
        # Not through the framework's encoder: others decide how many libraries they share with this caller.
        return Response(dumps(found), media_type=_JSON)

    @router.post("/tags", status_code=201, tags=[_LIBRARIES])
    async def create_tag(identity: caller, body: CreateTag) -> dict[str, Any]:
        """Create a library that nobody but the caller reads. 409 where they have one of that name at that path,
        or `limits.max_libraries_per_user`."""
        with _call(services, "tags") as library:
            return await library.add_tag(_reader(identity), body.tag())

    @router.put("/tags/{tag_id}", tags=[_LIBRARIES])
    async def change_tag(tag_id: Id, identity: caller, body: ChangeTag) -> dict[str, Any]:
        """Rename a library, move it to another path, describe it: its owner only. What is left out stays as it is. 409
        where the owner has one of that name at that path."""
        with _call(services, "tags") as library:
            return _found(await library.change_tag(_reader(identity), tag_id, **body.fields()), "Library")

    @router.delete("/tags/{tag_id}", status_code=204, tags=[_LIBRARIES])
    async def delete_tag(tag_id: Id, identity: caller) -> None:
        """Delete a library: its owner only. Their documents that stand in no other go with it."""
        with _call(services, "tags") as library:
            _found(await library.delete_tag(_reader(identity), tag_id) or None, "Library")


def _add_access(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.get("/tags/{tag_id}/access", tags=[_LIBRARIES])
    async def access(tag_id: Id, identity: caller) -> AccessBody:
        """Who reads a library beside its owner; shown to its owner only."""
        with _call(services, "tags") as library:
            return AccessBody.of(_found(await library.access(_reader(identity), tag_id), "Library"))

    @router.put("/tags/{tag_id}/access", tags=[_LIBRARIES])
    async def set_access(tag_id: Id, identity: caller, body: AccessBody) -> AccessBody:
        """Replace the readers of a library: its owner only. It applies from the next query on."""
        with _call(services, "tags") as library:
            return AccessBody.of(_found(await library.set_access(_reader(identity), tag_id, body.access()), "Library"))

    @router.put("/documents/{uid}/tags", tags=[_LIBRARIES])
    async def place(uid: Id, identity: caller, body: Placement) -> dict[str, Any]:
        """Put the caller's document into exactly these libraries of theirs; in none, only they find it. 409 where one
        of them holds another document of that path, while it is written, and for an attachment."""
        with _call(services, "documents") as library:
            try:
                return _found(await library.place(_reader(identity), uid, body.tag_ids), "Document")
            except UnknownLibrary:
                raise _not_found("Library") from None


def _add_documents(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.post("/documents/browse", tags=[_DOCUMENTS])
    async def browse(identity: caller, body: Annotated[Browse | None, Body()] = None) -> dict[str, Any]:
        """The documents that the caller may read and the filters choose; attachments are not listed."""
        wanted = body or Browse()
        with _call(services, "documents") as library:
            total, documents = await library.browse(_reader(identity), wanted.filters.chosen(), wanted.window())
            return {"total": total, "documents": documents}

    @router.get("/documents/metadata/{uid}", tags=[_DOCUMENTS])
    async def metadata(uid: Id, identity: caller) -> dict[str, Any]:
        """What is known of one document. Of its libraries, those that the caller may read."""
        with _call(services, "documents") as library:
            return _found(await library.document(_reader(identity), uid), "Document")

    @router.put("/document/metadata/{uid}", tags=[_DOCUMENTS])
    async def set_retrievable(uid: Id, identity: caller, retrievable: Annotated[bool, Query()]) -> dict[str, Any]:
        """Keep a document out of searches, or let it in again: its owner only."""
        with _call(services, "documents") as library:
            return _found(await library.set_retrievable(_reader(identity), uid, retrievable), "Document")

    @router.delete("/documents/{uid}", status_code=204, tags=[_DOCUMENTS])
    async def delete_document(uid: Id, identity: caller) -> None:
        """Delete a document with its content and its passages: its owner only."""
        with _call(services, "documents") as library:
            _found(await library.delete_document(_reader(identity), uid) or None, "Document")


def _add_content(router: APIRouter, services: Callable[[], LibraryServices], caller: Any) -> None:
    @router.get("/documents/{uid}/chunks", tags=[_DOCUMENTS], responses=_CHUNKS)
    async def chunks(
        uid: Id,
        identity: caller,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        offset: Annotated[int, Query(ge=0, le=MAX_INT)] = 0,
    ) -> Response:
        """The passages of a document, in order of its text."""
        with _call(services, "documents") as library:
            chunks = _found(await library.chunks(_reader(identity), uid, limit, offset), "Document")
        # Not through the framework's encoder, which holds the loop for 10 µs a passage.
        return Response(dumps(chunks), media_type=_JSON)

    @router.get("/documents/{uid}/chunks/{chunk_uid}", tags=[_DOCUMENTS])
    async def chunk(uid: Id, chunk_uid: Id, identity: caller) -> dict[str, Any]:
        """One passage with its document: what a citation opens."""
        with _call(services, "documents") as library:
            return _found(await library.chunk(_reader(identity), uid, chunk_uid), "Passage")

    @router.get("/markdown/{uid}", tags=[_DOCUMENTS])
    async def markdown(uid: Id, identity: caller) -> Response:
        """`{content}`: the text in which passages count their offsets."""
        with _call(services, "documents") as library:
            return Response(_found(await library.markdown(_reader(identity), uid), "Document"), media_type=_JSON)

    @router.get("/raw_content/{uid}", tags=[_DOCUMENTS])
    async def raw_content(uid: Id, identity: caller) -> Response:
        """The file as it was uploaded, as a download that can run nothing in a browser."""
        with _call(services, "documents") as library:
            file = _found(await library.raw(_reader(identity), uid), "Document")
        headers = {**RAW_HEADERS, "Content-Disposition": attachment(file.file_name), "Content-Length": str(file.size)}
        return Download(file.pieces, media_type=file.mime_type, headers=headers)


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
        raise _not_found(what)
    return value


def _not_found(what: str) -> HTTPException:
    # The same for what is another's: a caller who may not read it does not learn that it exists.
    return HTTPException(404, f"{what} not found.")


def _reader(identity: Identity) -> Reader:
    return Reader.of(identity)
