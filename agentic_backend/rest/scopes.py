"""Which API keys each route takes (docs/keys.md#scopes). A test holds every route to have its row."""

from typing import Final

from backend_kit.auth import ANY, PUBLIC, KeyScope
from backend_kit.auth.grant import Needs

_ASK: Final = frozenset({KeyScope.ASK})
_READ: Final = frozenset({KeyScope.READ})
_INGEST: Final = frozenset({KeyScope.INGEST})
_ADMIN: Final = frozenset({KeyScope.ADMIN})
_ASK_OR_READ: Final = frozenset({KeyScope.ASK, KeyScope.READ})

SCOPES: Final[dict[str, Needs]] = {
    "GET /healthz": PUBLIC,
    "GET /ready": PUBLIC,
    "GET //": PUBLIC,
    "GET //documents/{uid}": PUBLIC,
    "GET //docs": PUBLIC,
    "GET //docs/{name}": PUBLIC,
    "GET //openapi.json": ANY,
    "WS /chatbot/query/ws": _ASK,
    "WS /chatbot/query/ws-baseline": _ASK,
    "POST /chatbot/query/stream": _ASK,
    "POST /chatbot/session": _ASK,
    "GET /chatbot/sessions": _READ,
    "DELETE /chatbot/session/{session_id}": _ASK,
    "GET /chatbot/session/{session_id}/history": _READ,
    "GET /chatbot/session/{session_id}/message/{rank}": _READ,
    "GET /chatbot/session/{session_id}/export": _READ,
    "GET /chatbot/session/{session_id}/preferences": _READ,
    "PUT /chatbot/session/{session_id}/preferences": _ASK,
    "POST /chatbot/feedback": _ASK,
    "GET /chatbot/feedback": _READ,
    "DELETE /chatbot/feedback/{feedback_id}": _ASK,
    "POST /chatbot/upload": _INGEST,
    "GET /chatbot/upload/{attachment_id}/summary": _READ,
    "DELETE /chatbot/upload/{attachment_id}": _INGEST,
    "POST /chatbot/keys": _ADMIN,
    "GET /chatbot/keys": _ADMIN,
    "DELETE /chatbot/keys/{key_id}": _ADMIN,
    "GET /metrics/chatbot/summary": _READ,
    "GET /metrics/chatbot/numerical": _READ,
    "GET /agents": _ASK_OR_READ,
    "POST /agents/create": _ADMIN,
    "PUT /agents/update": _ADMIN,
    "DELETE /agents/{agent_id}": _ADMIN,
    "GET /documents/{uid}/chunks/{chunk_uid}": _READ,
    "GET /documents/{uid}/markdown": _READ,
    "GET /kpi/verdict": _ADMIN,
    "GET /kpi/live": _ADMIN,
    "GET /kpi/stalls": _ADMIN,
    "GET /config/frontend_settings": PUBLIC,
    "GET /config/permissions": ANY,
    # Takes the token of the instance, which no client has.
    "GET /fleet/turns": PUBLIC,
    "GET //v1/models": _ASK_OR_READ,
    "GET //v1/models/{model:path}": _ASK_OR_READ,
    "POST //v1/chat/completions": _ASK,
    "POST //v1/responses": _ASK,
    "GET //v1/responses/{response_id}": _ASK_OR_READ,
    "POST //v1/responses/{response_id}/cancel": _ASK,
    "DELETE //v1/responses/{response_id}": _ASK,
    "GET //v1/responses/{response_id}/input_items": _ASK_OR_READ,
    "POST //agui/{agent_id}": _ASK,
    "DELETE //agui/{agent_id}/runs/{exchange_id:path}": _ASK,
    "GET //mcp": _ASK,
    "POST //mcp": _ASK,
    "DELETE //mcp": _ASK,
    "GET //.well-known/oauth-protected-resource/mcp": PUBLIC,
}
