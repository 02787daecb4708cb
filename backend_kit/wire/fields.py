"""Where in a request a fault is, by names of the protocol alone."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TYPES: Final = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})
"""What pydantic calls the members of a union in a place."""
_BY_CLIENT: Final = "extra_forbidden"


def field_of(problems: Iterable[Mapping[str, Any]], *, skip: int = 0) -> str | None:
    """The field of the first of pydantic's problems that has one, such as `runtime_context.model` or `tags[2]`.

    `skip` leading parts of a place are no fields: a union's tag, or whether it is in the body. An unknown key is the
    client's own, and is never repeated: its place is the object that has it. None where nothing is known.
    """
    places = (_named(problem["loc"][skip:], problem["type"]) for problem in problems)
    return next((place for place in places if place), None)


def _named(place: tuple[int | str, ...], kind: str) -> str:
    """The place as text, as far as it consists of names and indices."""
    if kind == "json_invalid":
        return ""  # then it is a position in the text
    named = ""
    for part in place[:-1] if kind == _BY_CLIENT else place:
        if isinstance(part, int):
            named += f"[{part}]"
        elif not _NAME.fullmatch(part) or (named and part in _TYPES):
            break
        else:
            named += f".{part}" if named else part
    return named
