"""Markdown: the source itself is the canonical text, and markdown-it says where its blocks are."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from markdown_it import MarkdownIt
from markdown_it.token import Token

from knowledge_flow_backend.ingest.blocks import MAX_TITLE_CHARS, Block, Kind, Parsed, Sections
from knowledge_flow_backend.ingest.parsers.decode import decode

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_KINDS = {"fence": Kind.CODE, "code_block": Kind.CODE, "table_open": Kind.TABLE, "heading_open": Kind.HEADING}
_MAX_HEADING_CHARS = 4 * MAX_TITLE_CHARS
"""Of a heading's source, its marks included."""
_TEXT = ("text", "code_inline", "html_inline")


def parse(data: bytes) -> Parsed:
    """Parse one file. Front matter gives the title and is no block. Raises `Refused`."""
    content = decode(data)
    front = _FRONT_MATTER.match(content)
    body = front.end() if front else 0
    # Marks within a line take up to 12 s a megabyte to read, and only those of headings say something here.
    reader = MarkdownIt("commonmark").enable("table").disable("inline")
    tokens = reader.parse(content[body:])
    blocks = tuple(_blocks(content, body, tokens, reader))
    return Parsed(content, _front_title(front) or _first_heading(tokens, reader), blocks)


def _blocks(content: str, body: int, tokens: Sequence[Token], reader: MarkdownIt) -> Iterator[Block]:
    starts = list(accumulate((len(line) + 1 for line in content[body:].split("\n")), initial=body))
    sections = Sections()
    for at, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        first, after = token.map
        start = starts[first]
        end = start + len(content[start : starts[after]].rstrip())
        if token.type == "heading_open":
            sections.enter(int(token.tag[1:]), _plain(reader, tokens[at + 1]))
        if end > start:
            yield Block(_KINDS.get(token.type, Kind.PROSE), start, end, sections.path)


def _plain(reader: MarkdownIt, inline: Token) -> str:
    """The text of a heading without its marks; of one that is far too long, its beginning."""
    children: list[Token] = []
    reader.inline.parse(inline.content[:_MAX_HEADING_CHARS], reader, {}, children)
    parts = (child.content if child.type in _TEXT else " " if child.type == "softbreak" else "" for child in children)
    return " ".join("".join(parts).split())


def _front_title(front: re.Match[str] | None) -> str:
    for line in (front[1] or "").split("\n") if front else ():
        if line.startswith("title:"):
            title = line.removeprefix("title:").strip(" \t")
            quoted = len(title) > 1 and title[0] in "\"'" and title[-1] == title[0]
            return (title[1:-1] if quoted else title).strip()
    return ""


def _first_heading(tokens: Sequence[Token], reader: MarkdownIt) -> str:
    """The title of a document is its first top heading, wherever it stands."""
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h1" and not token.level:
            return _plain(reader, tokens[at + 1])
    return ""
