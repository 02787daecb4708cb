"""What a parser returns: the canonical text of a document and the blocks it consists of, by offsets into that text."""

from dataclasses import dataclass
from enum import StrEnum

MAX_TITLE_CHARS = 300
"""Bound of a document's title, and of a heading as the name of its section, which every passage below it repeats."""


class Kind(StrEnum):
    """What a block is; code, tables and records are kept whole where they fit in a chunk."""

    HEADING = "heading"
    PROSE = "prose"
    CODE = "code"
    TABLE = "table"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class Block:
    """`content[start:end]`, counted in code points; blocks ascend and do not overlap.

    `section` is the path of headings it stands under, outermost first, a heading's own title included. `page` counts
    from 1, None where the format has no pages.
    """

    kind: Kind
    start: int
    end: int
    section: tuple[str, ...] = ()
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document as it is shown and cited. `title` is "" where the document names none.

    `cut` is a sentence about what of the file is not in `content`, "" where everything is.
    """

    content: str
    title: str
    blocks: tuple[Block, ...]
    pages: int | None = None
    cut: str = ""


class Sections:
    """The headings above the place that a parser has reached."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def path(self) -> tuple[str, ...]:
        """The titles, outermost first; headings without text are left out."""
        return tuple(title for _, title in self._open if title)

    def enter(self, level: int, title: str) -> tuple[str, ...]:
        """Begin the section of a heading (level 1 is the outermost) and give its path; a long title is cut there."""
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        self._open.append((level, title[:MAX_TITLE_CHARS]))
        return self.path


class Writer:
    """For formats whose source is not the canonical text: builds it block by block, an empty line between two."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._blocks: list[Block] = []
        self.sections = Sections()

    @property
    def length(self) -> int:
        """Code points written so far."""
        return self._length

    def heading(self, level: int, title: str, page: int | None = None) -> None:
        """Append a heading of one line; `level` is 1 to 6."""
        self.sections.enter(level, title)
        self.add(Kind.HEADING, f"{'#' * level} {title}", page)

    def add(self, kind: Kind, text: str, page: int | None = None) -> None:
        """Append a block; one without visible text is left out."""
        if not text.strip():
            return
        if self._parts:
            self._parts.append("\n\n")
            self._length += 2
        start = self._length
        self._parts.append(text)
        self._length += len(text)
        self._blocks.append(Block(kind, start, self._length, self.sections.path, page))

    def parsed(self, title: str, pages: int | None = None, cut: str = "") -> Parsed:
        """The document. A note about what was cut is also at its end, where a reader misses it."""
        if cut:
            self.sections = Sections()
            self.add(Kind.PROSE, f"*{cut}*")
        return Parsed("".join(self._parts), title, tuple(self._blocks), pages, cut)


def without_title(path: tuple[str, ...], title: str) -> tuple[str, ...]:
    """A section path without the document's own title, which is shown beside it anyway."""
    return path[1:] if path and path[0] == title[:MAX_TITLE_CHARS] else path
