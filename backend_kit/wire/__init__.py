"""Wire formats of both services: error codes, the root of errors, JSON bytes, normalized text."""

from backend_kit.wire.codes import CODES, Code, ServiceError, message_for
from backend_kit.wire.encoding import InvalidJson, dumps, loads, normalized

__all__ = ["CODES", "Code", "InvalidJson", "ServiceError", "dumps", "loads", "message_for", "normalized"]
