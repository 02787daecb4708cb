"""What a parsing child does with one file: parse, divide, write the canonical text, and report what it found."""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from pypdf.errors import PyPdfError

from backend_kit.wire import dumps
from knowledge_flow_backend.ingest.blocks import MAX_TITLE_CHARS, Parsed
from knowledge_flow_backend.ingest.chunks import ChunkRules, TextSpan, chunks
from knowledge_flow_backend.ingest.names import stem
from knowledge_flow_backend.ingest.parsers import csv, html, jsonl, markdown, pdf, text
from knowledge_flow_backend.ingest.tables import with_headers
from knowledge_flow_backend.library.reasons import Reason, Refused

CHUNKS_A_LINE = 64
IMAGE = "image"
"""The format of a job that makes an image of an image, and no text."""
MAX_IMAGE_BYTES = 10 * 1024 * 1024
"""Of an image as it comes, and as it is made."""

# What parsers raise for files that break their format; anything else ends the child and counts as its death.
BROKEN_INPUT = (
    PyPdfError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)

Parse = Callable[[bytes], Parsed]


def _when_needed(name: str) -> Parse:
    """A parser whose libraries take half a second and 40 MB to load: a child loads them with its first such file."""

    def parse(data: bytes) -> Parsed:
        parser: Parse = import_module(f"knowledge_flow_backend.ingest.parsers.{name}").parse
        return parser(data)

    return parse


PARSERS: dict[str, Parse] = {
    "markdown": markdown.parse,
    "text": text.parse,
    "html": html.parse,
    "pdf": pdf.parse,
    "csv": csv.parse,
    "jsonl": jsonl.parse,
    **{name: _when_needed(name) for name in ("docx", "pptx", "xlsx")},
}


@dataclass(frozen=True, slots=True)
class Job:
    """One file: where its bytes are, which parser reads them, the name people know it by, and how it is divided.

    `content` and `chunks` are the two files to write: the canonical text in UTF-8, and a line of JSON for each batch
    of chunks, `[[ordinal, start, end, [section…], page, text]…]`. Of a longer text than `max_chars` its beginning is
    written, and the chunks that lie in it. For an image (`format` is `IMAGE`) `content` becomes the re-encoded image;
    the other fields then have no meaning.
    """

    source: str
    format: str
    name: str
    content: str
    chunks: str
    size: int
    overlap: int
    max_chars: int | None = None


def run(job: Job, parsers: Mapping[str, Parse] = PARSERS) -> dict[str, Any]:
    """Do the job. `{"title", "chars", "pages", "chunks", "cut"}` once both files are written, or `{"refused": reason}`.

    `chars` is the length of the whole text, `cut` the sentence that says what of the file is not in it. Of an image:
    `{"mime", "width", "height"}`.
    """
    try:
        if job.format == IMAGE:
            drawn: dict[str, Any] = import_module("knowledge_flow_backend.ingest.images").redraw(job)
            return drawn
        parsed = with_headers(_parse(job, parsers), job.size)
    except Refused as refused:
        return {"refused": refused.reason}
    count = 0
    with Path(job.chunks).open("wb") as file:
        divided = _kept(chunks(parsed, ChunkRules(job.size, job.overlap)), job.max_chars)
        while batch := [[c.ordinal, c.start, c.end, c.section, c.page, c.text] for c in islice(divided, CHUNKS_A_LINE)]:
            file.write(dumps(batch) + b"\n")
            count += len(batch)
    Path(job.content).write_text(parsed.content[: job.max_chars], encoding="utf-8", newline="")
    title = parsed.title[:MAX_TITLE_CHARS] or stem(job.name)
    return {
        "title": title,
        "chars": len(parsed.content),
        "pages": parsed.pages,
        "chunks": count,
        "cut": parsed.cut,
    }


def _kept(divided: Iterator[TextSpan], max_chars: int | None) -> Iterator[TextSpan]:
    return divided if max_chars is None else takewhile(lambda chunk: chunk.end <= max_chars, divided)


def _parse(job: Job, parsers: Mapping[str, Parse]) -> Parsed:
    data = Path(job.source).read_bytes()
    if not data.strip():
        raise Refused(Reason.EMPTY)
    try:
        parsed = parsers[job.format](data)
    except RecursionError:
        raise Refused(Reason.TOO_COMPLEX) from None
    except BROKEN_INPUT:
        raise Refused(Reason.UNREADABLE) from None
    if not parsed.blocks:
        raise Refused(Reason.NO_TEXT)
    return parsed
