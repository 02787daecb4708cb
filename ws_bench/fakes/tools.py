"""Tool calls of the fake model: the tool that a message asks for, and arguments that fit its schema."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from backend_kit.wire import dumps
from ws_bench.fakes.answers import Turn
from ws_bench.fakes.text import terms, words

_PIECE = re.compile(r".{1,8}", re.DOTALL)
_MAX_DEPTH = 5
_MOST_TOOLS: Final = 64
_MOST_CHARS: Final = 2_000
_LEAST_OF_NAME, _LEAST_OF_DESCRIPTION = 0.5, 2
_NAME_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,9})?(?![\w.]*\w)")
_QUOTED: Final = re.compile(r"[\"“„«]([^\"“”„«»\n]{1,500})[\"”“»]")
_LEADING: Final = ("that", "to", "saying", "about", "with", "dass", "mit")
_ORDINALS: Final = {"first": "1", "second": "2", "third": "3", "fourth": "4", "fifth": "5"}
_AFTER_COLON: Final = re.compile(r"^[^:\n]{1,80}:\s+(\S.*)$", re.DOTALL)


def offered_tool(request: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The offered function with this name (`*`: any), None if there is none.

    Right after a tool's result it is None, so that the model answers.
    """
    return next((function for function in _offered(request) if name in ("*", function["name"])), None)


def requested_tool(request: Mapping[str, Any], turns: Sequence[Turn]) -> dict[str, Any] | None:
    """The function that the last user message asks for, None if none fits.

    The message must contain half of the words of the tool's name, or two words of its description. Among equally good
    ones the one with the fewest required arguments is chosen.
    """
    asked = terms(_asked(turns)[:_MOST_CHARS])
    offered = list(_offered(request)) if asked else []
    names = [terms(" ".join(_NAME_PART.findall(function["name"]))) for function in offered]
    described = [_described(function) - name for function, name in zip(offered, names, strict=True)]
    frequency = Counter(term for name, words_of in zip(names, described, strict=True) for term in name | words_of)
    best: tuple[float, int, int] | None = None
    for place, (name, words_of) in enumerate(zip(names, described, strict=True)):
        weight = {term: math.log(1 + len(offered) / frequency[term]) for term in (name | words_of) & asked}
        part = len(name & asked) / max(len(name), 1)
        if part < _LEAST_OF_NAME and len(words_of & asked) < _LEAST_OF_DESCRIPTION:
            continue
        fits = sum(weight[term] * (1 + part if term in name else 1.0) for term in weight)
        entry = (fits, -len(_required(offered[place])), -place)
        best = max(best, entry) if best else entry
    return offered[-best[2]] if best else None


def arguments_for(function: Mapping[str, Any], turns: Sequence[Turn]) -> str:
    """JSON arguments: every property that the schema requires, and optional ones whose value the message names.

    A text is what the last user message has in quotes or after a colon, else what follows the tool's own words, else
    all of it. Numbers are taken from the message in order; of an enumeration the value named in it.
    """
    asked = _asked(turns)
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {"type": "object"}
    filling = _Filling(asked, str(function.get("name", "")))
    return dumps(filling.value(schema, 0)).decode()


def pieces_of(text: str) -> list[str]:
    """A text in pieces such as a model streams as arguments."""
    return _PIECE.findall(text)


def _asked(turns: Sequence[Turn]) -> str:
    return next((turn.text for turn in reversed(turns) if turn.role == "user"), "")


def _offered(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The functions that may be called now: none right after a tool's result."""
    if request["messages"][-1].get("role") == "tool":
        return
    tools = request.get("tools")
    for tool in tools[:_MOST_TOOLS] if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function


def _required(function: Mapping[str, Any]) -> Sequence[str]:
    parameters = function.get("parameters")
    required = parameters.get("required") if isinstance(parameters, dict) else None
    return required if isinstance(required, list) else ()


def _described(function: Mapping[str, Any]) -> set[str]:
    """Words of a tool's description, and of the names and values of its arguments."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    arguments = properties if isinstance(properties, dict) else {}
    values = [value for one in arguments.values() if isinstance(one, dict) for value in one.get("enum") or ()]
    texts = [str(function.get("description") or "")[:_MOST_CHARS], *arguments, *map(str, values)]
    return terms(" ".join(texts)[: 2 * _MOST_CHARS])


class _Filling:
    """Chooses the values of one call from one message."""

    def __init__(self, asked: str, name: str) -> None:
        self._asked = asked
        self._words = frozenset(words(asked[:_MOST_CHARS]))
        ordinals = [_ORDINALS[word] for word in words(asked[:_MOST_CHARS]) if word in _ORDINALS]
        self._numbers = iter([*_NUMBER.findall(asked[:_MOST_CHARS]), *ordinals])
        self._text = _text_argument(asked, name)

    def value(self, schema: Mapping[str, Any], depth: int) -> object:
        """A value that fits a JSON schema."""
        if schema.get("enum"):
            return self._named(schema["enum"], schema.get("default", schema["enum"][0]))
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            return self._object(schema, depth) if depth < _MAX_DEPTH else {}
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        if "default" in schema:
            return schema["default"]
        simple: dict[str, object] = {"boolean": True, "array": [], "null": None}
        return simple.get(str(kind), self._text)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, object]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        return {
            name: self.value(one, depth + 1)
            for name, one in properties.items()
            if isinstance(one, dict) and (name in required or self._named(one.get("enum") or (), None) is not None)
        }

    def _named(self, values: Sequence[object], otherwise: object) -> object:
        return next((value for value in values if str(value).lower() in self._words), otherwise)

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> object:
        fallback = schema.get("default", schema.get("minimum", 1 if whole else 1.0))
        for text in self._numbers:
            if not whole:
                return float(text)
            if "." not in text:
                return int(text)
        return fallback


def _text_argument(asked: str, name: str) -> str:
    """The part of a message to pass to a tool as a text argument."""
    text = asked[:_MOST_CHARS] if len(asked) > _MOST_CHARS else asked
    if found := _QUOTED.search(text) or _AFTER_COLON.match(text):
        return found[1].strip()
    own = terms(" ".join(_NAME_PART.findall(name)))
    pieces = text.split()
    begin = 0
    for place, piece in enumerate(pieces):
        # "Add a note that the milk is sour": the tool's own words come first, with small ones between them.
        meant = terms(piece)
        if not meant <= own:
            break
        begin = place + 1 if meant else begin
    if begin == 0:
        return asked
    rest = pieces[begin + 1 :] if pieces[begin:] and pieces[begin].lower() in _LEADING else pieces[begin:]
    return " ".join(rest) or asked
