"""Shapes that both services put on the wire: error codes, the error root, JSON bytes, text in a normal form."""

from backend_kit.wire.codes import CODES, Code, message_for
from backend_kit.wire.errors import ServiceError
from backend_kit.wire.json import InvalidJson, dumps, loads
from backend_kit.wire.text import normalized

__all__ = ["CODES", "Code", "InvalidJson", "ServiceError", "dumps", "loads", "message_for", "normalized"]
