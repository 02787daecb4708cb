"""PDF: the text of each page in reading order, in paragraphs; sections come from the outline, where there is one."""

import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError, PyPdfError, WrongPasswordError
from pypdf.generic import Destination

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import clean
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_PAGES = 5_000
MAX_CHARS = 50_000_000
_MAX_OUTLINE = 20_000
_MARGIN_LINES = 2
_REPEATED_FROM_PAGES = 4
_ENDS_SENTENCE = (".", "!", "?", ":", ";", "…", "。")
_SHORT_LINE = 0.8
"""A line that ends a sentence before this share of the page's width ends a paragraph."""
_DIVIDED = re.compile(r"([^\W\d_]+)-$")
_FIRST_WORD = re.compile(r"[^\W\d_]+")

Heading = tuple[int, str, int]
"""Level from 1, title, page from 1."""


def parse(data: bytes) -> Parsed:
    """Parse one file. Raises `Refused`, or one of pypdf's errors for a file that is no PDF."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each flaw it could read past
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        _open(reader)
    if len(reader.pages) > MAX_PAGES:
        raise Refused(Reason.TOO_COMPLEX)
    pages = [_lines(text) for text in _texts(reader)]
    _drop_margins(pages)
    headings = _outline(reader)
    _join_divided(pages)
    writer = Writer()
    for number, lines in enumerate(pages, 1):
        _write_page(writer, number, lines, [heading for heading in headings if heading[2] == number])
    title = clean(str((reader.metadata.title if reader.metadata else None) or "")).strip()
    return writer.parsed(title or _likely_title(headings), len(pages))


def _open(reader: PdfReader) -> None:
    """Many files are encrypted with an empty password, only to forbid printing."""
    try:
        opened = reader.decrypt("")
    except (FileNotDecryptedError, WrongPasswordError, NotImplementedError):
        raise Refused(Reason.ENCRYPTED) from None
    if not opened:
        raise Refused(Reason.ENCRYPTED)


def _texts(reader: PdfReader) -> Iterator[str]:
    total = 0
    for page in reader.pages:
        text = clean(page.extract_text())
        total += len(text)
        if total > MAX_CHARS:
            raise Refused(Reason.TOO_COMPLEX)
        yield text


def _lines(text: str) -> list[str]:
    """The lines of a page, white space made plain, empty ones kept as they part paragraphs."""
    return [" ".join(line.split()) for line in text.split("\n")]


def _drop_margins(pages: Sequence[list[str]]) -> None:
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


def _margin(lines: Sequence[str]) -> set[int]:
    filled = [at for at, line in enumerate(lines) if line]
    return {*filled[:_MARGIN_LINES], *filled[-_MARGIN_LINES:]}


def _pattern(line: str) -> str:
    return re.sub(r"\d+", "#", line)


def _outline(reader: PdfReader) -> list[Heading]:
    """The bookmarks in order; those that lead nowhere are left out."""
    try:
        found = list(_walk(reader, reader.outline, 1))
    except (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return []  # damaged bookmarks do not spoil a readable text
    return found[:_MAX_OUTLINE]


def _walk(reader: PdfReader, entries: Sequence[object], level: int) -> Iterator[Heading]:
    for entry in entries:
        if isinstance(entry, list):
            yield from _walk(reader, entry, level + 1)
        elif isinstance(entry, Destination):
            title = " ".join(clean(str(entry.title or "")).split())
            page = reader.get_destination_page_number(entry)
            if title and page is not None and page >= 0:
                yield level, title, page + 1


def _likely_title(headings: Sequence[Heading]) -> str:
    """The outline of a printed page has its title as the only entry of the first level."""
    top = [title for level, title, _ in headings if level == 1]
    return top[0] if len(top) == 1 else ""


def _write_page(writer: Writer, number: int, lines: Sequence[str], headings: Sequence[Heading]) -> None:
    """Write paragraphs; a heading of the outline is looked for as lines of its own, in order."""
    width = sorted(len(line) for line in lines if line)
    usual = width[int(len(width) * 0.9)] if width else 0
    waiting = list(headings)
    paragraph: list[str] = []
    at = 0
    while at < len(lines):
        used = _heading_at(lines, at, waiting[0][1]) if waiting else 0
        if used:
            _end(writer, paragraph, number)
            level, title, _ = waiting.pop(0)
            writer.heading(min(level, 6), title, number)
            at += used
            continue
        line = lines[at]
        if line:
            paragraph.append(line)
        if not line or (line.endswith(_ENDS_SENTENCE) and len(line) < usual * _SHORT_LINE):
            _end(writer, paragraph, number)
        at += 1
    _end(writer, paragraph, number)
    for level, title, _ in waiting:  # its words are not on the page as they stand in the outline
        writer.sections.enter(min(level, 6), title)


def _heading_at(lines: Sequence[str], at: int, title: str) -> int:
    """How many lines from `at` on are the title, 0 where they are something else."""
    wanted = _letters(title)
    found = ""
    for used, line in enumerate(lines[at : at + 4], 1):
        found += _letters(line)
        if found == wanted and line:
            return used
        if not line or not wanted.startswith(found):
            return 0
    return 0


def _letters(text: str) -> str:
    return "".join(text.split()).casefold()


def _join_divided(pages: Sequence[list[str]]) -> None:
    """Join words divided at a line's end: without the hyphen where the document has the whole word elsewhere."""
    words = {word.casefold() for lines in pages for line in lines for word in _FIRST_WORD.findall(line)}
    for lines in pages:
        for at in range(len(lines) - 1, 0, -1):
            left, right = _DIVIDED.search(lines[at - 1]), _FIRST_WORD.match(lines[at])
            if left is None or right is None or not right[0][0].islower():
                continue
            whole = (left[1] + right[0]).casefold() in words
            lines[at - 1] = (lines[at - 1][:-1] if whole else lines[at - 1]) + lines[at]
            del lines[at]


def _end(writer: Writer, paragraph: list[str], page: int) -> None:
    writer.add(Kind.PROSE, "\n".join(paragraph), page)
    paragraph.clear()
