"""What both services need of the web: server, hardened sockets, health, errors, caller, request metrics."""

from backend_kit.http.bearer import bearer
from backend_kit.http.context import REQUEST_ID_HEADER, BodyLimit, HttpMetrics, RequestId, RequestMetrics, request_id
from backend_kit.http.errors import error_response, install_error_handlers
from backend_kit.http.head import HandshakeTimeoutHttp
from backend_kit.http.health import Readiness, health_router
from backend_kit.http.redact import RedactTokens, install_redaction, redact
from backend_kit.http.server import CannotListen, Drain, DrainServer, ServeSettings, build_server, listen, serve
from backend_kit.http.ws import HardenedWS

__all__ = [
    "REQUEST_ID_HEADER",
    "BodyLimit",
    "CannotListen",
    "Drain",
    "DrainServer",
    "HandshakeTimeoutHttp",
    "HardenedWS",
    "HttpMetrics",
    "Readiness",
    "RedactTokens",
    "RequestId",
    "RequestMetrics",
    "ServeSettings",
    "bearer",
    "build_server",
    "error_response",
    "health_router",
    "install_error_handlers",
    "install_redaction",
    "listen",
    "redact",
    "request_id",
    "serve",
]
