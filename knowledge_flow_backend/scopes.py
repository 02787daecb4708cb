"""Which API keys each route takes (docs/keys.md#scopes). A test holds every route to have its row."""

from typing import Final

from backend_kit.auth import ANY, PUBLIC, KeyScope
from backend_kit.auth.grant import Needs

_READ: Final = frozenset({KeyScope.READ})
_SEARCH: Final = frozenset({KeyScope.SEARCH})
_SEARCH_OR_READ: Final = frozenset({KeyScope.SEARCH, KeyScope.READ})
_INGEST: Final = frozenset({KeyScope.INGEST})

SCOPES: Final[dict[str, Needs]] = {
    "GET /healthz": PUBLIC,
    "GET /ready": PUBLIC,
    "GET //docs": PUBLIC,
    "GET //docs/{name}": PUBLIC,
    "GET //openapi.json": ANY,
    "POST /vector/search": _SEARCH,
    "POST /vector/rerank": _SEARCH,
    "POST /upload-process-documents": _INGEST,
    "POST /fast/text": _INGEST,
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
