"""Plain text: paragraphs are what empty lines divide; it has no sections."""

import re
from collections.abc import Iterator

from knowledge_flow_backend.ingest.blocks import Block, Kind, Parsed
from knowledge_flow_backend.ingest.parsers.decode import decode

_BETWEEN = re.compile(r"\n(?:[ \t]*+\n)++")


def parse(data: bytes) -> Parsed:
    """Parse one file; its title is its name, which the caller knows. Raises `Refused`."""
    content = decode(data)
    return Parsed(content, "", tuple(_paragraphs(content)))


def _paragraphs(content: str) -> Iterator[Block]:
    start = 0
    for gap in [*_BETWEEN.finditer(content), None]:
        end = gap.start() if gap else len(content)
        text = content[start:end]
        trimmed = len(text) - len(text.lstrip("\n"))
        first, last = start + trimmed, start + len(text.rstrip())
        if last > first and content[first:last].strip():
            yield Block(Kind.PROSE, first, last)
        start = gap.end() if gap else end
