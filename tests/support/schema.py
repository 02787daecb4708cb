"""The published schemas of both protocols (docs/schema), compiled once: every frame of every test can be held to them.

A frame is checked against the definitions of its own `type`, not against the union of all, so that a failure names
the field that is wrong instead of every alternative that the frame is not. The validators are compiled: a hundred turns
that end at once are checked on the loop that hears them, which pure Python would hold for a second.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, ValidationError

DIRECTORY: Final = Path(__file__).parents[2] / "docs/schema"
NAMES: Final = ("native-client", "native-server", "compatible-client", "compatible-server")
_ABSENT: Final = "ask"
"""What a frame without `type` is: only the compatible ask may leave it out."""


def validate_native(frame: Any) -> None:
    """Fail unless this is a frame that the server may send in turnwise.v1."""
    _check("native-server", frame)


def validate_compatible(frame: Any) -> None:
    """Fail unless this is a frame that the server may send in the compatible protocol."""
    _check("compatible-server", frame)


def accepts(name: str, frame: Any) -> bool:
    """Whether the schema of that name takes the frame, as any other validator would say."""
    return whole(name).is_valid(frame)


@cache
def schema(name: str) -> dict[str, Any]:
    """One of NAMES as it is published."""
    loaded: dict[str, Any] = json.loads((DIRECTORY / f"{name}.schema.json").read_text())
    return loaded


@cache
def whole(name: str) -> Draft202012Validator:
    """The validator of a whole schema."""
    return Draft202012Validator(schema(name))


@cache
def by_type(name: str) -> dict[str, tuple[Draft202012Validator, ...]]:
    """The validators of one schema by the `type` of the frames they take; an error has more than one shape."""
    root = schema(name)
    found: dict[str, list[Draft202012Validator]] = {}
    for alternative in root["oneOf"]:
        definition = root["$defs"][alternative["$ref"].rpartition("/")[2]]
        validator = Draft202012Validator({"$defs": root["$defs"], **alternative})
        found.setdefault(definition["properties"]["type"]["const"], []).append(validator)
    return {kind: tuple(validators) for kind, validators in found.items()}


def _check(name: str, frame: Any) -> None:
    kind = frame.get("type", _ABSENT) if isinstance(frame, dict) else None
    shapes = by_type(name).get(kind, ()) if isinstance(kind, str) else ()
    if not shapes:
        raise AssertionError(f"{name}: no frame of type {kind!r}: {str(frame)[:500]}")
    failures: list[ValidationError] = []
    for shape in shapes:
        if shape.is_valid(frame):
            return
        failures.extend(shape.iter_errors(frame))
    # The shape that was meant is the one that the frame breaks deepest inside.
    worst = max(failures, key=lambda failure: len(failure.instance_path))
    where = "".join(f"[{step!r}]" for step in worst.instance_path)
    raise AssertionError(f"{name}: {kind}: frame{where}: {worst.message[:500]}: {str(frame)[:500]}")
