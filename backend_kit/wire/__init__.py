"""Shapes that both services put on the wire: error codes, the error root, JSON bytes."""

from backend_kit.wire.codes import CODES, Code, message_for
from backend_kit.wire.errors import ServiceError
from backend_kit.wire.json import InvalidJson, dumps, loads

__all__ = ["CODES", "Code", "InvalidJson", "ServiceError", "dumps", "loads", "message_for"]
