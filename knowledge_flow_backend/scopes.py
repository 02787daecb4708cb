"""Which API keys each route takes (docs/keys.md#scopes), and what it costs those beside it. A test holds every route
to have its rows."""

from typing import Final

from backend_kit.auth import ANY, PUBLIC, KeyScope
from backend_kit.auth.grant import Needs
from backend_kit.http import Cost

_READ: Final = frozenset({KeyScope.READ})
_SEARCH: Final = frozenset({KeyScope.SEARCH})
_SEARCH_OR_READ: Final = frozenset({KeyScope.SEARCH, KeyScope.READ})
_INGEST: Final = frozenset({KeyScope.INGEST})
_ADMIN: Final = frozenset({KeyScope.ADMIN})

SCOPES: Final[dict[str, Needs]] = {
    "GET /healthz": PUBLIC,
    "GET /ready": PUBLIC,
    "GET /audit/events": _ADMIN,
    "GET //docs": PUBLIC,
    "GET //docs/{name}": PUBLIC,
    "GET //openapi.json": ANY,
    "POST /vector/search": _SEARCH,
    "POST /vector/rerank": _SEARCH,
    "POST /upload-process-documents": _INGEST,
    "POST /fast/text": _INGEST,
    "POST /fast/image": _INGEST,
    "POST /fast/ingest": _INGEST,
    "DELETE /fast/ingest/{document_uid}": _INGEST,
    "DELETE /fast/ingest": _INGEST,
    "GET /tags": _READ,
    "POST /tags": _INGEST,
    "PUT /tags/{tag_id}": _INGEST,
    "DELETE /tags/{tag_id}": _INGEST,
    "GET /tags/{tag_id}/access": _READ,
    "PUT /tags/{tag_id}/access": _INGEST,
    "PUT /documents/{uid}/tags": _INGEST,
    "POST /documents/{uid}/ingest": _INGEST,
    "POST /documents/browse": _READ,
    "GET /documents/metadata/{uid}": _READ,
    "PUT /document/metadata/{uid}": _INGEST,
    "DELETE /documents/{uid}": _INGEST,
    "GET /documents/{uid}/chunks": _READ,
    "GET /documents/{uid}/chunks/{chunk_uid}": _READ,
    "GET /markdown/{uid}": _READ,
    "GET /raw_content/{uid}": _READ,
    "GET //mcp": _SEARCH_OR_READ,
    "POST //mcp": _SEARCH_OR_READ,
    "DELETE //mcp": _SEARCH_OR_READ,
    "GET //.well-known/oauth-protected-resource/mcp": PUBLIC,
}

ROUTE_COSTS: Final[dict[str, Cost]] = {
    "GET /healthz": Cost.HEALTH,
    "GET /ready": Cost.HEALTH,
    "GET /audit/events": Cost.EXPORT,
    "GET //docs": Cost.PAGE,
    "GET //docs/{name}": Cost.PAGE,
    "GET //openapi.json": Cost.READ,
    "POST /vector/search": Cost.SEARCH,
    # Reading what it brings, 4 MiB at most, is the loop's own work: two at a time of a user, not sixteen.
    "POST /vector/rerank": Cost.READ,
    "POST /upload-process-documents": Cost.UPLOAD,
    "POST /fast/text": Cost.UPLOAD,
    "POST /fast/image": Cost.UPLOAD,
    "POST /fast/ingest": Cost.UPLOAD,
    "DELETE /fast/ingest/{document_uid}": Cost.READ,
    "DELETE /fast/ingest": Cost.READ,
    "GET /tags": Cost.READ,
    "POST /tags": Cost.READ,
    "PUT /tags/{tag_id}": Cost.READ,
    "DELETE /tags/{tag_id}": Cost.READ,
    "GET /tags/{tag_id}/access": Cost.READ,
    "PUT /tags/{tag_id}/access": Cost.READ,
    "PUT /documents/{uid}/tags": Cost.READ,
    "POST /documents/{uid}/ingest": Cost.UPLOAD,
    "POST /documents/browse": Cost.READ,
    "GET /documents/metadata/{uid}": Cost.READ,
    "PUT /document/metadata/{uid}": Cost.READ,
    "DELETE /documents/{uid}": Cost.READ,
    "GET /documents/{uid}/chunks": Cost.READ,
    "GET /documents/{uid}/chunks/{chunk_uid}": Cost.READ,
    "GET /markdown/{uid}": Cost.READ,
    "GET /raw_content/{uid}": Cost.EXPORT,
    "GET //mcp": Cost.TURN,
    "POST //mcp": Cost.TURN,
    "DELETE //mcp": Cost.CHEAP,
    "GET //.well-known/oauth-protected-resource/mcp": Cost.PAGE,
}
