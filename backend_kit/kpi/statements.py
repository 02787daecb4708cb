"""What each statement of a process took since its start, as pg_stat_statements counts it where that is installed."""

import re
from typing import Final, TypedDict

MAX_STATEMENTS: Final = 500
OTHER_STATEMENTS: Final = "other"

_PIECE: Final = re.compile(
    r"""
    (?P<gap>(?:\s|--[^\n]*|/\*.*?\*/)+)
    | "(?:[^"]|"")*"
    | (?P<parameter>(?<![:\w]):[a-z_]\w*|%\(\w+\)s|%s|\$\d+)
    | (?P<literal>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
        | (?<![\w.$])\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!\w))
    """,
    re.VERBOSE | re.DOTALL,
)


class StatementSeen(TypedDict):
    """One statement since the start. `total_ms` is from its dispatch to its answer, `wait_ms` the waits for the
    connections on which it came first."""

    query: str
    calls: int
    rows: int
    total_ms: float
    wait_ms: float


class _Count:
    __slots__ = ("calls", "rows", "seconds", "waited_s")

    def __init__(self) -> None:
        self.calls = 0
        self.rows = 0
        self.seconds = 0.0
        self.waited_s = 0.0


class StatementCounts:
    """Counts by normalized text. `add` is for the event loop's thread and costs half a microsecond; `seen` for any."""

    def __init__(self, most: int = MAX_STATEMENTS) -> None:
        """The first `most` texts have counts of their own, further ones are `other` together."""
        self._most = most
        self._by_text: dict[str, _Count] = {}
        self._counts: dict[str, _Count] = {}

    def add(self, text: str, seconds: float, rows: int, waited_s: float = 0.0) -> None:
        """Count one execution of the statement `text`, whose values are parameters or are left out."""
        count = self._by_text.get(text)
        if count is None:
            count = self._admit(text)
        count.calls += 1
        count.rows += rows
        count.seconds += seconds
        count.waited_s += waited_s

    def seen(self) -> list[StatementSeen]:
        """All statements that ran, the longest total first."""
        found = [
            StatementSeen(
                query=query,
                calls=count.calls,
                rows=count.rows,
                total_ms=count.seconds * 1e3,
                wait_ms=count.waited_s * 1e3,
            )
            for query, count in self._counts.copy().items()
        ]
        return sorted(found, key=lambda one: -one["total_ms"])

    def _admit(self, text: str) -> _Count:
        if len(self._by_text) >= self._most:
            return self._counts.setdefault(OTHER_STATEMENTS, _Count())
        count = self._by_text[text] = self._counts.setdefault(normalized(text), _Count())
        return count


def normalized(text: str) -> str:
    """A statement on one line, without comments, its parameters and then its literals numbered `$1`, `$2`, …

    A parameter of one name has one number, as Postgres gets it.
    """
    places: dict[str, str] = {}
    pieces = list(_PIECE.finditer(text))
    for number, piece in enumerate(pieces):
        if piece["parameter"]:
            places.setdefault(_name(piece, number), f"${len(places) + 1}")
    for number, piece in enumerate(pieces):
        if piece["literal"]:
            places[f"literal {number}"] = f"${len(places) + 1}"
    numbers = iter(range(len(pieces)))

    def replaced(piece: re.Match[str]) -> str:
        number = next(numbers)
        if piece["gap"]:
            return " "
        if piece["parameter"]:
            return places[_name(piece, number)]
        return places[f"literal {number}"] if piece["literal"] else piece[0]

    return _PIECE.sub(replaced, text).strip(" ;")


def _name(piece: re.Match[str], number: int) -> str:
    """What distinguishes a parameter: `%s` has no name, so each one is different."""
    return f"%s {number}" if piece[0] == "%s" else piece[0]
