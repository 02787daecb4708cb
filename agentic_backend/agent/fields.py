"""Checks tunable values against what their fields allow. Pure functions."""

import re
from collections.abc import Sequence
from typing import Any, Final

from agentic_backend.settings import AgentSettings, FieldSpec

_TEXTS: Final = frozenset({"string", "text", "text-multiline", "prompt", "select", "url"})


def checked(spec: FieldSpec, value: Any) -> Any:
    """The value, if the field allows it; else raises ValueError, whose text names the field and what it accepts.

    None means no value, which is allowed if the field is not required.
    """
    if value is None:
        if spec.required:
            raise ValueError(f"{spec.key} is required")
        return None
    if not _fits(spec, value):
        raise ValueError(f"{spec.key} is not {_wanted(spec)}")
    return value


def value_of(settings: AgentSettings, specs: Sequence[FieldSpec], key: str) -> Any:
    """The value of an agent's field, else its default among the module's `specs`. Raises as `checked`."""
    spec = next(spec for spec in specs if spec.key == key)
    return checked(spec, settings.tuned(key, spec.default))


def _fits(spec: FieldSpec, value: Any) -> bool:
    if spec.type in ("integer", "number"):
        return _is_number(spec, value)
    if spec.type in _TEXTS:
        return _is_text(spec, value)
    if spec.type == "array":
        item = FieldSpec(key=spec.key, type=spec.item_type or "string", enum=spec.enum)
        return isinstance(value, list) and all(_fits(item, one) for one in value)
    return isinstance(value, bool if spec.type == "boolean" else dict)


def _is_number(spec: FieldSpec, value: Any) -> bool:
    right = isinstance(value, int if spec.type == "integer" else int | float) and not isinstance(value, bool)
    return right and (spec.min is None or value >= spec.min) and (spec.max is None or value <= spec.max)


def _is_text(spec: FieldSpec, value: Any) -> bool:
    if not isinstance(value, str) or (spec.enum is not None and value not in spec.enum):
        return False
    return spec.pattern is None or re.fullmatch(spec.pattern, value) is not None


def _wanted(spec: FieldSpec) -> str:
    if spec.enum is not None:
        return f"one of {', '.join(spec.enum)}"
    if spec.type in ("integer", "number"):
        kind = "a whole number" if spec.type == "integer" else "a number"
        return kind + _range(spec)
    if spec.type in _TEXTS:
        return "a text" if spec.pattern is None else f"a text of the form {spec.pattern}"
    return {"array": "a list", "boolean": "true or false"}.get(spec.type, "an object")


def _range(spec: FieldSpec) -> str:
    low = "" if spec.min is None else f" from {spec.min:.15g}"
    return low if spec.max is None else f"{low} to {spec.max:.15g}"
