"""Divides a document at its headings and paragraphs into chunks that are exact slices of its canonical text."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from knowledge_flow_backend.ingest.blocks import Block, Kind, Parsed, without_title

_WHOLE = (Kind.CODE, Kind.TABLE, Kind.RECORD)
# Closing brackets and quotes belong to the sentence; the ideographic marks need no space behind them.
_SENTENCE_END = re.compile("[.!?\u2026][)\"'\\]\u2019\u201d]*\\s+|[\u3002\uff01\uff1f]")
# Where a block that is too long is divided: at the last of these that leaves a piece of some length.
_CUTS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), _SENTENCE_END, re.compile(r"[,;:]\s+"), re.compile(r"\s+"))
_LEAST_PIECE = 0.4


@dataclass(frozen=True, slots=True)
class ChunkRules:
    """Sizes in characters: `size` is the target, `overlap` is what a chunk repeats of the one before it."""

    size: int
    overlap: int


@dataclass(frozen=True, slots=True)
class TextSpan:
    """`text == content[start:end]`. `section` and `page` are those of its own text, without what it repeats; the
    path of headings goes without the document's title.
    """

    ordinal: int
    start: int
    end: int
    section: tuple[str, ...]
    page: int | None
    text: str


def chunk_uid(document_uid: str, ordinal: int, text: str) -> str:
    """The same for the same text at the same place of the same document, in every run and every version of it."""
    key = f"{document_uid}\0{ordinal}\0{text}"
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def chunks(parsed: Parsed, rules: ChunkRules) -> Iterator[TextSpan]:
    """The chunks in order of the text.

    A chunk never spans two sections, except that headings without text of their own stand before what follows them. It
    is at most `size` long; headings may add half of that. Code, tables and records are divided only where they are
    longer than `size` (tables before they come here, between their rows: see `tables`). A chunk that continues a
    section begins with the last sentences of the prose before it.
    """
    for ordinal, pack in enumerate(_packs(parsed, rules)):
        text = parsed.content[pack.start : pack.end]
        yield TextSpan(ordinal, pack.start, pack.end, without_title(pack.section, parsed.title), pack.page, text)


@dataclass(slots=True)
class _Pack:
    """Blocks collected for the next chunk; `body` says whether they are more than headings."""

    start: int
    end: int
    section: tuple[str, ...]
    page: int | None
    body: bool


def _packs(parsed: Parsed, rules: ChunkRules) -> Iterator[_Pack]:
    pack: _Pack | None = None
    before: Block | None = None
    for piece in _pieces(parsed, rules):
        heading = piece.kind is Kind.HEADING
        if pack is not None and _joins(pack, piece, rules):
            pack.end = piece.end
            pack.section = piece.section
            pack.body = pack.body or not heading
        else:
            if pack is not None:
                yield pack
            start = piece.start
            if before is not None and not heading:
                start = _overlapped(parsed.content, before, piece, rules.overlap)
            pack = _Pack(start, piece.end, piece.section, piece.page, not heading)
        before = piece
    if pack is not None:
        yield pack


def _joins(pack: _Pack, piece: Block, rules: ChunkRules) -> bool:
    if not pack.body:
        return pack.end - pack.start <= rules.size // 2
    if piece.kind is Kind.HEADING or piece.section != pack.section:
        return False
    # A page is where a citation is looked up: a chunk that has some length ends with its page.
    turned = piece.page != pack.page and pack.end - pack.start >= rules.size // 3
    return not turned and piece.end - pack.start <= rules.size


def _overlapped(content: str, before: Block, piece: Block, overlap: int) -> int:
    """Where the chunk that continues after `before` begins: at a sentence, at most `overlap` characters back."""
    if before.kind is not Kind.PROSE or piece.kind is not Kind.PROSE or before.section != piece.section:
        return piece.start
    earliest = max(before.start, before.end - overlap)
    if earliest >= before.end:
        return piece.start
    if earliest == before.start:
        return before.start
    for found in _SENTENCE_END.finditer(content, earliest, before.end):
        if found.end() < before.end:
            return found.end()
    return piece.start


def _pieces(parsed: Parsed, rules: ChunkRules) -> Iterator[Block]:
    """The blocks, those that are too long divided. Prose leaves room for what is repeated before it."""
    for block in parsed.blocks:
        limit = rules.size if block.kind in _WHOLE else rules.size - rules.overlap
        if block.kind is Kind.HEADING:
            limit = rules.size // 2
        start = block.start
        while block.end - start > limit:
            rest = block.end - start
            # Pieces of similar length: a leftover line without its context would never be found.
            cut = _cut(parsed.content, start, start + min(limit, rest // -(-rest // limit) + limit // 8))
            yield Block(block.kind, start, _trimmed(parsed.content, start, cut), block.section, block.page)
            start = cut
            while start < block.end and parsed.content[start].isspace() and block.kind is not Kind.CODE:
                start += 1
        if start < block.end:
            yield Block(block.kind, start, block.end, block.section, block.page)


def _cut(content: str, start: int, limit: int) -> int:
    """Where to divide `content[start:limit]`; `limit` itself where it holds no better place."""
    least = start + int((limit - start) * _LEAST_PIECE)
    for pattern in _CUTS:
        last = 0
        for found in pattern.finditer(content, least, limit):
            last = found.end()
        if last:
            return last
    return limit


def _trimmed(content: str, start: int, end: int) -> int:
    """`end` without the white space before it."""
    return start + len(content[start:end].rstrip()) or end
