"""PDF: the text of each page in paragraphs; sections come from the outline, else from lines in larger letters."""

import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pypdf import Configuration, PdfReader, apply_configuration
from pypdf.errors import FileNotDecryptedError, LimitReachedError, PyPdfError, WrongPasswordError
from pypdf.generic import Destination

from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.pdf_lines import Line, drop_margins, join_divided, page_lines, plain
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_PAGES = 5_000
MAX_CHARS = 50_000_000
_MAX_STREAM_BYTES = 24_000_000
"""Unpacked, of one stream, such as the text of a page: twice as much is held while it is unpacked."""
_LIMITS = Configuration(
    zlib_maximum_output_length=_MAX_STREAM_BYTES,
    lzw_maximum_output_length=_MAX_STREAM_BYTES,
    run_length_maximum_output_length=_MAX_STREAM_BYTES,
    brotli_maximum_output_length=_MAX_STREAM_BYTES,
    array_based_stream_maximum_output_length=_MAX_STREAM_BYTES,
)
_MAX_OUTLINE = 20_000
_ENDS_SENTENCE = (".", "!", "?", ":", ";", "\u2026", "\u3002")
_SHORT_LINE = 0.8
"""A line that ends a sentence before this share of the page's width ends a paragraph."""
_LARGER = 1.15
"""Letters of this many times the usual size make a heading, where there is no outline."""
_HEADING_CHARS = 150
_MAX_LARGER_SHARE = 0.3
"""Where more lines than this are large, size says nothing about headings."""
_LEVELS = 6
# Titles that a program left: an address, the name of the source file.
_NO_TITLE = re.compile(
    r"\w+://|data:|about:|untitled\b|.*\.(?:docx?|odt|tex|dvi|html?|md|pdf|indd|qxd|pptx?)$", re.IGNORECASE
)
# What pypdf raises for damaged parts of a file whose rest is worth reading.
_DAMAGED = (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

Heading = tuple[int, str, int]
"""Level from 1, title, page from 1."""


def parse(data: bytes) -> Parsed:
    """Parse one file. Raises `Refused`, or one of pypdf's errors for a file that is no PDF."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each flaw it could read past
    try:
        with apply_configuration(_LIMITS):
            return _parse(data)
    except LimitReachedError:
        raise Refused(Reason.UNPACKS_TOO_LARGE) from None


def _parse(data: bytes) -> Parsed:
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        _open(reader)
    if len(reader.pages) > MAX_PAGES:
        raise Refused(Reason.TOO_COMPLEX)
    pages = list(_pages(reader))
    drop_margins(pages)
    join_divided(pages)
    headings = _outline(reader) or list(_large_lines(pages))
    writer = Writer()
    for number, lines in enumerate(pages, 1):
        _write_page(writer, number, lines, [heading for heading in headings if heading[2] == number])
    return writer.parsed(_title(reader, headings), len(pages))


def _open(reader: PdfReader) -> None:
    """Many files are encrypted with an empty password, only to forbid printing."""
    try:
        opened = reader.decrypt("")
    except (FileNotDecryptedError, WrongPasswordError, NotImplementedError):
        raise Refused(Reason.ENCRYPTED) from None
    if not opened:
        raise Refused(Reason.ENCRYPTED)


def _pages(reader: PdfReader) -> Iterator[list[Line]]:
    total = 0
    for page in reader.pages:
        lines = page_lines(page)
        total += sum(len(line.text) for line in lines)
        if total > MAX_CHARS:
            raise Refused(Reason.TOO_COMPLEX)
        yield lines


def _outline(reader: PdfReader) -> list[Heading]:
    """The bookmarks in order; those that lead nowhere are left out."""
    try:
        found = list(_walk(reader, reader.outline, 1))
    except _DAMAGED:
        return []
    return found[:_MAX_OUTLINE]


def _walk(reader: PdfReader, entries: Sequence[object], level: int) -> Iterator[Heading]:
    for entry in entries:
        if isinstance(entry, list):
            yield from _walk(reader, entry, level + 1)
        elif isinstance(entry, Destination):
            title = plain(str(entry.title or ""))
            page = reader.get_destination_page_number(entry)
            if title and page is not None and page >= 0:
                yield level, title, page + 1


def _large_lines(pages: Sequence[Sequence[Line]]) -> Iterator[Heading]:
    """Headings by the size of their letters: the largest is the outermost; lines of one size in a row are one."""
    sizes: Counter[float] = Counter()
    for lines in pages:
        for line in lines:
            sizes[line.size] += len(line.text)
    usual = sizes.most_common(1)[0][0] if sizes else 0.0
    filled = [line for lines in pages for line in lines if line.text]
    large = sorted({line.size for line in filled if _is_large(line, usual)}, reverse=True)
    if not usual or sum(_is_large(line, usual) for line in filled) > len(filled) * _MAX_LARGER_SHARE:
        return
    for number, lines in enumerate(pages, 1):
        title, size = "", 0.0
        for line in [*lines, Line("", 0.0)]:
            if title and (line.size != size or not line.text):
                yield min(large.index(size) + 1, _LEVELS), title, number
                title = ""
            if _is_large(line, usual):
                title, size = f"{title} {line.text}".strip(), line.size


def _is_large(line: Line, usual: float) -> bool:
    wordy = any(char.isalpha() for char in line.text)
    return line.size >= usual * _LARGER and len(line.text) <= _HEADING_CHARS and wordy


def _title(reader: PdfReader, headings: Sequence[Heading]) -> str:
    """The file's own title; else the only heading of the first level, as printed pages have it."""
    try:
        named = str((reader.metadata.title if reader.metadata else None) or "")
    except _DAMAGED:
        named = ""
    title = plain(named).removeprefix("Microsoft Word - ")
    if title and not _NO_TITLE.match(title):
        return title
    top = [name for level, name, _ in headings if level == 1]
    return top[0] if len(top) == 1 else ""


def _write_page(writer: Writer, number: int, lines: Sequence[Line], headings: Sequence[Heading]) -> None:
    """Write paragraphs; a heading is looked for as lines of its own, in order."""
    width = sorted(len(line.text) for line in lines if line.text)
    usual = width[int(len(width) * 0.9)] if width else 0
    waiting = list(headings)
    paragraph: list[str] = []
    at = 0
    while at < len(lines):
        used = _heading_at(lines, at, waiting[0][1]) if waiting else 0
        if used:
            _end(writer, paragraph, number)
            level, title, _ = waiting.pop(0)
            writer.heading(min(level, _LEVELS), title, number)
            at += used
            continue
        line = lines[at].text
        if line:
            paragraph.append(line)
        if not line or (line.endswith(_ENDS_SENTENCE) and len(line) < usual * _SHORT_LINE):
            _end(writer, paragraph, number)
        at += 1
    _end(writer, paragraph, number)
    for level, title, _ in waiting:  # its words are not on the page as they stand in the outline
        writer.sections.enter(min(level, _LEVELS), title)


def _heading_at(lines: Sequence[Line], at: int, title: str) -> int:
    """How many lines from `at` on are the title, 0 where they are something else."""
    wanted = _letters(title)
    found = ""
    for used, line in enumerate(lines[at : at + 4], 1):
        found += _letters(line.text)
        if found == wanted and line.text:
            return used
        if not line.text or not wanted.startswith(found):
            return 0
    return 0


def _letters(text: str) -> str:
    return "".join(text.split()).casefold()


def _end(writer: Writer, paragraph: list[str], page: int) -> None:
    writer.add(Kind.PROSE, "\n".join(paragraph), page)
    paragraph.clear()
