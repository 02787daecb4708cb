"""Calls to other services over HTTP: connections with limits, and JSON with deadlines, retries and a breaker."""

from backend_kit.client.connections import Connections, open_session
from backend_kit.client.json_client import (
    CallFailed,
    CallTimedOut,
    FailureKind,
    HttpAnswer,
    HttpRequest,
    JsonClient,
    guarded,
)

__all__ = [
    "CallFailed",
    "CallTimedOut",
    "Connections",
    "FailureKind",
    "HttpAnswer",
    "HttpRequest",
    "JsonClient",
    "guarded",
    "open_session",
]
