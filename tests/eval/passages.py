"""Where the targets of links lie in the canonical text that the product's HTML parser makes of a page.

The parser keeps no ids, and it should not: so the places are marked in the page's source before it is parsed, and the
marks are taken out of the text again. What is left must be the text of the unmarked page, letter by letter.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

from knowledge_flow_backend.ingest.parsers import html

_MARK: Final = re.compile("\ue000([0-9]+)\ue001")
_VOID: Final = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
_UNSEEN: Final = frozenset({"script", "style", "nav", "aside", "form", "button", "head"})
_HOLDS: Final = frozenset({"section", "dd", "body"})


class NotTheSameText(Exception):
    """The marks changed what the parser reads."""


@dataclass(frozen=True, slots=True, order=True)
class Passage:
    """`content[start:end]` of a page: what an anchor names."""

    page: str
    start: int
    end: int


def passages(page: str, data: bytes, anchors: Collection[str]) -> dict[str, Passage]:
    """The passage of each of these ids that the page has and that some text follows.

    A section's is its heading and its own text, up to its first part with an id. A term's (`dt`: functions, classes,
    options, glossary) is itself and its description, up to the first term or section within. Any other anchor's goes
    on to the next beginning of either kind, to the next anchor asked for, or to the end of the section. Raises
    `NotTheSameText`.
    """
    source = data.decode()
    outline = _Outline(source)
    outline.feed(source)
    outline.close()
    ranges = {anchor: outline.range_of(anchor, anchors) for anchor in sorted(anchors) if anchor in outline.places}
    found = {anchor: span for anchor, span in ranges.items() if span is not None}
    marks: list[tuple[int, str]] = []
    for number, (start, end) in enumerate(found.values()):
        marks += [(start, f"\ue000{2 * number}\ue001"), (end, f"\ue000{2 * number + 1}\ue001")]
    parsed = html.parse(_inserted(source, marks).encode())
    places, text = _taken_out(parsed.content)
    if text != html.parse(data).content:
        raise NotTheSameText(page)
    return {
        anchor: Passage(page, places[2 * number], places[2 * number + 1])
        for number, anchor in enumerate(found)
        if 2 * number in places and 2 * number + 1 in places
    }


def _inserted(source: str, marks: list[tuple[int, str]]) -> str:
    parts, last = [], 0
    for place, mark in sorted(marks):
        parts += [source[last:place], mark]
        last = place
    return "".join([*parts, source[last:]])


def _taken_out(marked: str) -> tuple[dict[int, int], str]:
    places: dict[int, int] = {}
    parts, last, length = [], 0, 0
    for mark in _MARK.finditer(marked):
        parts.append(marked[last : mark.start()])
        length += len(parts[-1])
        places[int(mark[1])] = length
        last = mark.end()
    return places, "".join([*parts, marked[last:]])


@dataclass(slots=True)
class _Place:
    """Where an element with an id stands in the source, by offsets. `end` is where what it names ends at the latest."""

    tag: str
    start: int
    inner: int
    end: int = 0


@dataclass(slots=True)
class _Open:
    """An element that is not closed yet. `ends` are the places that end with it."""

    tag: str
    seen: bool
    terms: list[_Place] = field(default_factory=list)
    ends: list[_Place] = field(default_factory=list)


class _Outline(HTMLParser):
    """The ids of a page, the beginnings of sections and terms, and the visible text, all by offsets into its source."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=False)
        self.places: dict[str, _Place] = {}
        self._lines = [0, *(found.end() for found in re.finditer("\n", source))]
        self._open: list[_Open] = [_Open("", seen=True)]
        self._begins: list[int] = []
        self._text_starts: list[int] = []
        self._text_ends: list[int] = []

    def range_of(self, anchor: str, asked: Collection[str]) -> tuple[int, int] | None:
        """From the first letter of what an anchor names to the last one, None where nothing follows it."""
        place = self.places[anchor]
        first = bisect_left(self._text_starts, place.start)
        if first == len(self._text_starts):
            return None
        start = self._text_starts[first]
        end = place.end
        # A term's other signatures belong to it: what begins within its description does not.
        begins = bisect_right(self._begins, max(start, place.inner))
        if begins < len(self._begins):
            end = min(end, self._begins[begins])
        if place.tag not in ("section", "dt"):
            others = (self.places[other] for other in asked if other in self.places)
            end = min([end, *(other.start for other in others if other.start > start)])
        last = bisect_right(self._text_starts, end) - 1
        return start, self._text_ends[max(first, last)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        values = dict(attrs)
        start = self._offset()
        if tag == "dd":
            for term in self._open[-1].terms:
                term.inner = start
        if values.get("id"):
            self._enter(values["id"] or "", tag, start)
        elif tag == "section":
            self._begins.append(start)
        if tag in _VOID:
            return
        above = self._open[-1]
        unseen = tag in _UNSEEN or "headerlink" in (values.get("class") or "") or values.get("role") == "navigation"
        opened = _Open(tag, above.seen and not unseen)
        if tag == "dd":
            opened.ends, above.terms = above.terms, []
        if tag == "section" and values.get("id"):
            opened.ends = [self.places[values["id"] or ""]]
        self._open.append(opened)

    def handle_endtag(self, tag: str) -> None:
        """See `HTMLParser`."""
        if not any(element.tag == tag for element in self._open[1:]):
            return
        while True:
            closed = self._open.pop()
            for place in closed.ends:
                place.end = self._offset()
            if closed.tag == tag:
                return

    def handle_data(self, data: str) -> None:
        """See `HTMLParser`."""
        text = data.strip()
        if text and self._open[-1].seen:
            start = self._offset() + data.index(text)
            self._text_starts.append(start)
            self._text_ends.append(start + len(text))

    def handle_entityref(self, name: str) -> None:
        """See `HTMLParser`."""
        self._reference(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """See `HTMLParser`."""
        self._reference(f"&#{name};")

    def _reference(self, text: str) -> None:
        if self._open[-1].seen:
            self._text_starts.append(self._offset())
            self._text_ends.append(self._offset() + len(text))

    def _enter(self, name: str, tag: str, start: int) -> None:
        place = _Place(tag, start, start)
        self.places.setdefault(name, place)
        if tag == "section":
            self._begins.append(start)
        elif tag == "dt":
            self._begins.append(start)
            self._open[-1].terms.append(place)
        else:
            holder = next(element for element in reversed(self._open) if element.tag in (*_HOLDS, ""))
            holder.ends.append(place)

    def _offset(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column
