"""The lines of a PDF's pages: extracted with the size of their letters, rid of running heads and divided words."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pypdf import PageObject

from knowledge_flow_backend.ingest.parsers.decode import clean

_MARGIN_LINES = 2
_REPEATED_FROM_PAGES = 4
# From the beginning of the word on: at each letter the rest of a long one would be read again.
_DIVIDED = re.compile(r"(?<![^\W\d_])([^\W\d_]+)-$")
_FIRST_WORD = re.compile(r"[^\W\d_]+")
# Typesetters' signs for letter pairs; nobody searches for them.
_LIGATURES = dict(zip(range(0xFB00, 0xFB07), ("ff", "fi", "fl", "ffi", "ffl", "st", "st"), strict=True))


@dataclass(slots=True)
class Line:
    """One line as it is printed, "" for an empty one; `size` is that of most of its letters, in points."""

    text: str
    size: float


def plain(text: str) -> str:
    """Text of a PDF on one line, as people would type it."""
    return " ".join(clean(text).translate(_LIGATURES).split())


def page_lines(page: PageObject) -> list[Line]:
    """The lines of a page in reading order."""
    pieces: list[tuple[str, float]] = []

    def take(text: str, matrix: list[float], text_matrix: list[float], _font: Any, size: float) -> None:
        if text:
            pieces.append((text, abs(size * _scale(text_matrix) * _scale(matrix))))

    page.extract_text(visitor_text=take)
    return list(_lines(pieces))


def drop_margins(pages: Sequence[list[Line]]) -> None:
    """Take out running heads and page numbers: first or last lines that, digits aside, most pages have."""
    if len(pages) < _REPEATED_FROM_PAGES:
        return
    seen: Counter[str] = Counter()
    for lines in pages:
        seen.update({_pattern(lines[at]) for at in _margin(lines)})
    repeated = {pattern for pattern, count in seen.items() if count > len(pages) / 2}
    for lines in pages:
        for at in sorted(_margin(lines), reverse=True):
            if _pattern(lines[at]) in repeated:
                del lines[at]


def join_divided(pages: Sequence[list[Line]]) -> None:
    """Join words divided at a line's end: without the hyphen where the document has the whole word elsewhere."""
    words = {word.casefold() for lines in pages for line in lines for word in _FIRST_WORD.findall(line.text)}
    for lines in pages:
        for at in range(len(lines) - 1, 0, -1):
            before, line = lines[at - 1], lines[at]
            left, right = _DIVIDED.search(before.text), _FIRST_WORD.match(line.text)
            if left is None or right is None or not right[0][0].islower():
                continue
            whole = (left[1] + right[0]).casefold() in words
            before.text = (before.text[:-1] if whole else before.text) + line.text
            del lines[at]


def _scale(matrix: Sequence[float]) -> float:
    """How a transformation stretches heights."""
    return (matrix[1] ** 2 + matrix[3] ** 2) ** 0.5 or 1.0


def _lines(pieces: Sequence[tuple[str, float]]) -> Iterator[Line]:
    text = ""
    sizes: Counter[float] = Counter()
    for piece, size in [*pieces, ("\n", 0.0)]:
        parts = clean(piece).translate(_LIGATURES).split("\n")
        for at, part in enumerate(parts):
            if at:
                yield Line(" ".join(text.split()), sizes.most_common(1)[0][0] if sizes else 0.0)
                text = ""
                sizes.clear()
            text += part
            if letters := len(part.strip()):
                sizes[round(size, 1)] += letters


def _margin(lines: Sequence[Line]) -> set[int]:
    filled = [at for at, line in enumerate(lines) if line.text]
    return {*filled[:_MARGIN_LINES], *filled[-_MARGIN_LINES:]}


def _pattern(line: Line) -> str:
    return re.sub(r"\d+", "#", line.text)
