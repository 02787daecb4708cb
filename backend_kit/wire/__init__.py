"""Wire formats of both services: error codes, the root of errors, JSON bytes, normalized text."""

from backend_kit.wire.codes import CODES, Code, message_for
from backend_kit.wire.errors import ServiceError
from backend_kit.wire.json import InvalidJson, dumps, loads
from backend_kit.wire.text import normalized

__all__ = ["CODES", "Code", "InvalidJson", "ServiceError", "dumps", "loads", "message_for", "normalized"]
