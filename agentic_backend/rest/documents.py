"""REST routes by which the page opens a citation: a passage and its document, read from knowledge flow for the caller.

The page may connect only to the service that it comes from, so these documents pass through here.
"""

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi import Path as PathParam
from pydantic import AfterValidator

from agentic_backend.knowledge import Caller
from backend_kit.auth import Identity
from backend_kit.http import request_id
from backend_kit.wire import storable

_ID = r"^[A-Za-z0-9_~-][A-Za-z0-9_.:~-]*$"
"""No leading dot: a segment `..` would climb in the requested path."""
Uid = Annotated[str, PathParam(min_length=1, max_length=128, pattern=_ID)]
Link = Annotated[str, Query(min_length=1, max_length=1000), AfterValidator(storable)]

HEADERS = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}


class ReadableDocuments(Protocol):
    """Reads documents. All methods return JSON to be passed on, None for what the caller cannot read, and may raise
    `KfUnavailable`."""

    async def passage(self, document_uid: str, chunk_uid: str, caller: Caller) -> bytes | None:
        """A chunk: text, offsets into the document in code points, section, page, document."""

    async def markdown(self, document_uid: str, caller: Caller) -> bytes | None:
        """`{"content": …}`, the text of the whole document."""

    async def linked(self, document_uid: str, link: str, caller: Caller) -> bytes | None:
        """`{document_uid, title, file_name, mime_type}` of what a relative link in a document leads to."""


def add_documents(router: APIRouter, documents: Callable[[], ReadableDocuments], caller: Any) -> None:
    """Add the three routes. `documents()` is called at each request: its result exists once the app runs."""

    @router.get("/documents/{uid}/chunks/{chunk_uid}")
    async def passage(uid: Uid, chunk_uid: Uid, request: Request, identity: caller) -> Response:
        """The passage that a citation opens, with its document."""
        return _answer(await documents().passage(uid, chunk_uid, _caller(request, identity)))

    @router.get("/documents/{uid}/markdown")
    async def markdown(uid: Uid, request: Request, identity: caller) -> Response:
        """The whole text of a document, to which the offsets of passages refer."""
        return _answer(await documents().markdown(uid, _caller(request, identity)))

    @router.get("/documents/{uid}/linked")
    async def linked(uid: Uid, path: Link, request: Request, identity: caller) -> Response:
        """The document that a relative link in this one leads to, in a library of this one."""
        return _answer(await documents().linked(uid, path, _caller(request, identity)))


def _answer(found: bytes | None) -> Response:
    if found is None:
        raise HTTPException(404, "This document is not there, or not for you.")
    return Response(found, media_type="application/json", headers=HEADERS)


def _caller(request: Request, identity: Identity) -> Caller:
    return Caller(request.state.credentials, request_id(request.scope), user_id=identity.uid)
