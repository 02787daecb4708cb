"""The HTTP parts of every service: server, hardened sockets, health, errors, caller, request metrics."""

from backend_kit.http.admission import (
    Admitted,
    Cost,
    NotThere,
    RequestLimits,
    RequestsTooMany,
    RouteAdmission,
    admit_routes,
)
from backend_kit.http.connections import ConnectionMetrics
from backend_kit.http.context import BodyLimit, HttpMetrics, RequestId, RequestMetrics, bearer, request_id
from backend_kit.http.direct import DirectRoute
from backend_kit.http.download import Download, audit_router
from backend_kit.http.errors import error_response, install_error_handlers, refusals, retry_after
from backend_kit.http.origins import Cors, page_allowed
from backend_kit.http.routes import add_api_docs, health_paths, health_router
from backend_kit.http.server import CannotListen, ServeSettings, build_server, hold_back_unsent, listen, serve

__all__ = [
    "Admitted",
    "BodyLimit",
    "CannotListen",
    "ConnectionMetrics",
    "Cors",
    "Cost",
    "DirectRoute",
    "Download",
    "HttpMetrics",
    "NotThere",
    "RequestId",
    "RequestLimits",
    "RequestMetrics",
    "RequestsTooMany",
    "RouteAdmission",
    "ServeSettings",
    "add_api_docs",
    "admit_routes",
    "audit_router",
    "bearer",
    "build_server",
    "error_response",
    "health_paths",
    "health_router",
    "hold_back_unsent",
    "install_error_handlers",
    "listen",
    "page_allowed",
    "refusals",
    "request_id",
    "retry_after",
    "serve",
]
