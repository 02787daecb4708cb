"""The labelled set: index entries as a person would type them, each with the passages that the index names for it."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from tests.eval.genindex import Entry
from tests.eval.passages import Passage

SEED: Final = "turnwise-eval-1"
MOST_TARGETS: Final = 10
"""An entry with more links ("close()", "module") says too little to be asked."""

Split = Literal["tune", "test"]

_QUALIFIED: Final = re.compile(r"^(?P<name>.*?)\s*\((?P<kind>[^()]*)\)$")
_OWNED: Final = re.compile(r"(?P<owner>[\w.]+) (?:class |static |abstract )?(?:method|attribute|property)$")
_HOMED: Final = re.compile(r"(?:in module|class in) (?P<module>[\w.]+)$")
_UNSPOKEN: Final = re.compile(
    r"C \w+|built-in \w+|module"
    r"|(?:object|function|module|instance|class|method|exception)(?: object)? (?:method|attribute)"
)
"""Remarks of the index that nobody adds to a name: `PyList_New() (C function)`, `__abs__() (object method)`."""
_HEADS_UNSPOKEN: Final = ("Python Enhancement Proposals", "RFC")
"""Main entries whose lines say the same again: `RFC; RFC 822`."""

_CODE: Final = re.compile(
    r"""^[("'`]*(?:
        [\w.]*[A-Za-z_]\w*\(.*\)            # a call
        | \w*_\w*                           # an underscore
        | \w+(?:\.\w+)+                     # a dotted name
        | [A-Za-z]*\d[\w.]*                 # digits
        | [A-Z]{2,} | \w*[a-z]\w*[A-Z]\w*   # capitals throughout, or within
        | [-@%&!=<>*+/|^~:.$#\\]+\w*         # an operator, an option
    )[)"'`,.]*$""",
    re.VERBOSE,
)


class Kind(StrEnum):
    """What a query looks like."""

    IDENTIFIER = "identifier"
    PROSE = "prose"


@dataclass(frozen=True, slots=True)
class Query:
    """A question and what answers it: passages of different places."""

    text: str
    targets: tuple[Passage, ...]

    @property
    def kind(self) -> Kind:
        """See `kind_of`."""
        return kind_of(self.text)


def kind_of(text: str) -> Kind:
    """Identifier-like where every word looks like code, as `asyncio.gather()`, `__enter__`, `PYTHONPATH`, `-O` do.

    A plain word (`generator`, `print`) is prose, and so is a mixture (`EXTENDED_ARG opcode`).
    """
    return Kind.IDENTIFIER if all(_CODE.match(word) for word in text.split()) else Kind.PROSE


def typed(entry: Entry) -> str:
    """An entry as it would be typed into a search.

    Names take their home with them: `gather() (in module asyncio)` is `asyncio.gather()`, `close() (mailbox.MH method)`
    is `MH.close()`. Other remarks are dropped where nobody would type them (`C function`), else they are words:
    `NOP (opcode)` is `NOP opcode`. A line below a main entry follows it: `generator; expression`.
    """
    main, qualifier = _parted(entry.main)
    if entry.below.startswith("("):
        return _named(main, _parted(entry.below)[1])
    if entry.below:
        head = entry.main if main in ("", entry.main) else main
        return entry.below if head in _HEADS_UNSPOKEN else f"{head} {entry.below}"
    return _named(main, qualifier)


def _parted(text: str) -> tuple[str, str]:
    found = _QUALIFIED.match(text)
    # `print()` ends with brackets that hold no remark.
    return (found["name"], found["kind"]) if found and found["kind"] else (text, "")


def _named(name: str, kind: str) -> str:
    if owned := _OWNED.match(kind):
        owner = owned["owner"].rpartition(".")[2]
        return name if owner in ("object", "function", "module", "instance", "class", "method") else f"{owner}.{name}"
    if homed := _HOMED.match(kind):
        return f"{homed['module']}.{name}"
    return name if not kind or _UNSPOKEN.fullmatch(kind) else f"{name} {kind}"


def queries(index: Iterable[Entry], places: Mapping[str, Passage]) -> list[Query]:
    """The labelled queries, in the order of their texts.

    `places` gives the passage of each link; links to what is no document are not in it. Each entry is one query. Each
    name that the index gives a home is another one as it stands, bare (`gather()`), with the passages of all its homes;
    not a plain word, which by itself would not mean the name (`called`, an attribute). Of the two lines that the manual
    makes of a pair (`module; gc`, `gc; module`) the one stays whose main entry has fewer lines. Queries without a
    letter or digit, or with more than 10 passages, are left out.
    """
    lines = list(index)
    beneath = Counter(line.main for line in lines)
    answers: dict[str, dict[Passage, None]] = defaultdict(dict)
    pairs: dict[tuple[frozenset[str], tuple[Passage, ...]], str] = {}
    for line in sorted(lines, key=lambda line: beneath[line.main]):
        found = tuple(dict.fromkeys(places[target] for target in line.targets if target in places))
        text = typed(line)
        pair = (frozenset(text.split()), found)
        if not found or pairs.setdefault(pair, text) != text:
            continue
        for asked in {text, _bare(line)} - {""}:
            answers[asked] |= dict.fromkeys(found)
    made = (Query(text, _apart(found)) for text, found in sorted(answers.items()) if re.search(r"[A-Za-z0-9]", text))
    return [query for query in made if len(query.targets) <= MOST_TARGETS]


def _bare(line: Entry) -> str:
    name, kind = _parted(line.main)
    if line.below.startswith("("):
        kind = _parted(line.below)[1]
    elif line.below:
        return ""
    at_home = _OWNED.match(kind) or _HOMED.match(kind)
    return name if at_home and kind_of(name) is Kind.IDENTIFIER else ""


def _apart(found: Iterable[Passage]) -> tuple[Passage, ...]:
    """Passages without those that lie in another one: two anchors of one place are one answer."""
    kept: list[Passage] = []
    for passage in sorted(found, key=lambda passage: (passage.page, passage.start, -passage.end)):
        if not kept or kept[-1].page != passage.page or kept[-1].end < passage.end:
            kept.append(passage)
    return tuple(kept)


def split(asked: Sequence[Query]) -> dict[Split, list[Query]]:
    """Tune and test, half each, by a hash of what is to be found: no passage, nor one that overlaps it, is in both.

    Queries that share a passage stay together, and so do those whose passages overlap.
    """
    root: dict[Passage, Passage] = {}

    def find(passage: Passage) -> Passage:
        root.setdefault(passage, passage)
        while root[passage] != passage:
            root[passage] = root[root[passage]]
            passage = root[passage]
        return passage

    def join(one: Passage, other: Passage) -> None:
        low, high = sorted((find(one), find(other)))
        root[high] = low

    for query in asked:
        for target in query.targets:
            join(query.targets[0], target)
    furthest: Passage | None = None
    for passage in sorted(root):
        if furthest is not None and furthest.page == passage.page and passage.start < furthest.end:
            join(furthest, passage)
            furthest = max(furthest, passage, key=lambda one: one.end)
        else:
            furthest = passage
    halves: dict[Split, list[Query]] = {"tune": [], "test": []}
    for query in asked:
        halves["tune" if _chance(repr(find(query.targets[0]))) < 0.5 else "test"].append(query)
    return halves


def sample(asked: Sequence[Query], most: int) -> list[Query]:
    """At most so many of each kind, chosen by a hash of their texts; in the order given."""
    kept: set[str] = set()
    for kind in Kind:
        texts = sorted((query.text for query in asked if query.kind is kind), key=_chance)
        kept.update(texts[:most])
    return [query for query in asked if query.text in kept]


def _chance(key: str) -> float:
    """A number from 0 to 1 that the key alone decides."""
    return int.from_bytes(hashlib.sha256(f"{SEED}\0{key}".encode()).digest()[:8]) / 2**64
