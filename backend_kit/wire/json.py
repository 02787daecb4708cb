"""JSON as bytes. One codec for sockets, storage and logs, strict in what it emits."""

from typing import Any

import orjson

InvalidJson = orjson.JSONDecodeError


def dumps(value: Any) -> bytes:
    """Encode to compact UTF-8 JSON. NaN and infinities become null; a lone surrogate is replaced by U+FFFD.

    An integer of more than 64 bits, which a model may write into the arguments of a tool, becomes a string.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_scrub(value))


def loads(data: bytes | str) -> Any:
    """Decode JSON. Raises `InvalidJson` (a ValueError) on anything that RFC 8259 does not allow."""
    return orjson.loads(data)


def _scrub(value: Any) -> Any:
    """Replace what UTF-8 and 64 bits cannot represent. Only called if the first attempt to encode failed."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, dict):
        return {_scrub(str(key)): _scrub(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value
