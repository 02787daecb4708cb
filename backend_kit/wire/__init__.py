"""Wire formats of both services: error codes, the root of errors, JSON bytes, normalized text."""

from backend_kit.wire.codes import CODES, Code, ServiceError, field_of, message_for
from backend_kit.wire.encoding import InvalidJson, dumps, loads, normalized, storable

__all__ = [
    "CODES",
    "Code",
    "InvalidJson",
    "ServiceError",
    "dumps",
    "field_of",
    "loads",
    "message_for",
    "normalized",
    "storable",
]
