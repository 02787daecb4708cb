"""Reads a request's JSON by hand, so that each fault names its field as OpenAI's clients know it: `messages[2].role`.

All functions raise `Refused` for a value that is not as they say; none quotes a value of the request.
"""

import math
from itertools import chain
from typing import Any, Final

from agentic_backend.surfaces.openai.errors import Refused
from backend_kit.wire import InvalidJson, loads

MAX_DEPTH: Final = 64
"""Levels of nesting in a body; JSON schemas of tools are the deepest."""

Object = dict[str, Any]


def read_object(body: bytes) -> Object:
    """The JSON object of a body. Raises Refused."""
    try:
        value = loads(body)
    except InvalidJson:
        raise Refused("The body is no JSON.") from None
    if not isinstance(value, dict):
        raise Refused("The body is no JSON object.")
    _check(value, has_nul=b"\\u0000" in body)
    return value


def _check(value: Object, *, has_nul: bool) -> None:
    """Raise Refused for what could not be stored or encoded again: NUL, too deep a nesting.

    Works level by level: a call for each value would block the loop for a fifth of a second on a body of tiny ones.
    """
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        items = [item for holder in level for item in (holder.values() if type(holder) is dict else holder)]
        if has_nul:
            keys = (key for holder in level if type(holder) is dict for key in holder)
            texts = (item for item in items if type(item) is str)
            if any("\x00" in text for text in chain(keys, texts)):
                raise Refused("A text holds NUL.")
        level = [item for item in items if type(item) is dict or type(item) is list]
        if not level:
            return
    raise Refused(f"The body is nested deeper than {MAX_DEPTH} levels.")


def path(at: str, key: str) -> str:
    """The path of a key in the object at `at`; `at` is "" for the body."""
    return f"{at}.{key}" if at else key


def wrong(at: str, expected: str) -> Refused:
    """The error for a value of the wrong kind."""
    return Refused(f"{at} must be {expected}.", at, "invalid_type")


def missing(at: str) -> Refused:
    """The error for a missing value."""
    return Refused(f"{at} is missing.", at, "missing_required_parameter")


def text(fields: Object, key: str, at: str = "", *, most: int | None = None) -> str:
    """A required, non-empty text of at most `most` characters."""
    value = optional_text(fields, key, at, most=most)
    if value is None:
        raise missing(path(at, key))
    if not value:
        raise Refused(f"{path(at, key)} is empty.", path(at, key), "invalid_value")
    return value


def optional_text(fields: Object, key: str, at: str = "", *, most: int | None = None) -> str | None:
    """A text, None where it is absent or null."""
    value = fields.get(key)
    if value is None:
        return None
    place = path(at, key)
    if not isinstance(value, str):
        raise wrong(place, "a string")
    if most is not None and len(value) > most:
        raise Refused(f"{place} has more than {most} characters.", place, "string_above_max_length")
    return value


def flag(fields: Object, key: str, at: str = "") -> bool:
    """A boolean, False where it is absent or null."""
    value = fields.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(path(at, key), "a boolean")
    return value


def number(fields: Object, key: str, at: str = "") -> float | None:
    """A number, None where it is absent or null."""
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong(path(at, key), "a number")
    return value


def whole(fields: Object, key: str, at: str = "") -> int | None:
    """A whole number, None where it is absent or null."""
    value = fields.get(key)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong(path(at, key), "an integer")
    return value


def object_at(value: Any, at: str) -> Object:
    """A value that must be an object."""
    if not isinstance(value, dict):
        raise wrong(at, "an object")
    return value


def optional_object(fields: Object, key: str, at: str = "") -> Object:
    """An object, an empty one where it is absent or null."""
    value = fields.get(key)
    return {} if value is None else object_at(value, path(at, key))


def list_at(value: Any, at: str) -> list[Any]:
    """A value that must be an array."""
    if not isinstance(value, list):
        raise wrong(at, "an array")
    return value


def optional_list(fields: Object, key: str, at: str = "") -> list[Any]:
    """An array, an empty one where it is absent or null."""
    value = fields.get(key)
    return [] if value is None else list_at(value, path(at, key))
