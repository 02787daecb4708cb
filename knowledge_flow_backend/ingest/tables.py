"""Tables as Markdown: how they are written, and how one that is longer than a chunk is divided between its rows.

A chunk is an exact slice of the canonical text. So a table that is divided has its header repeated in the canonical
text itself: what a citation shows is what was found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from knowledge_flow_backend.ingest.blocks import Block, Kind, Parsed

_RULE = frozenset("|:- \t")
_HEADER_WITHIN = 8
"""Lines in which a header is looked for: at most a caption precedes it."""


def table_row(cells: Iterable[str]) -> str:
    """One line of a table. Cells are of one line, their bars escaped."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the first of which is the header, as one table; "" where no cell holds text."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    if not filled:
        return ""
    width = max(len(row) for row in filled)
    lines = [table_row([*row, *[""] * (width - len(row))]) for row in filled]
    lines.insert(1, header_rule(width))
    return "\n".join(lines)


def header_rule(width: int) -> str:
    """The line below a header."""
    return f"|{'---|' * width}"


def with_headers(parsed: Parsed, size: int) -> Parsed:
    """The document with each table that is longer than `size` divided between rows, its header above every part.

    A row that is longer than `size` with its header is a part of its own, and is divided as long text is. A header
    that is longer than half of `size` is not repeated, since it would leave no room.
    """
    parts: list[str] = []
    blocks: list[Block] = []
    copied = shift = 0
    for block in parsed.blocks:
        divided = _divided(parsed.content[block.start : block.end], size) if _is_long(block, size) else []
        start = block.start + shift
        if not divided:
            blocks.append(replace(block, start=start, end=block.end + shift) if shift else block)
            continue
        parts += (parsed.content[copied : block.start], "\n\n".join(divided))
        for part in divided:
            blocks.append(replace(block, start=start, end=start + len(part)))
            start += len(part) + 2
        copied, shift = block.end, start - 2 - block.end
    if not parts:
        return parsed
    parts.append(parsed.content[copied:])
    return replace(parsed, content="".join(parts), blocks=tuple(blocks))


def _is_long(block: Block, size: int) -> bool:
    return block.kind is Kind.TABLE and block.end - block.start > size


def _divided(text: str, size: int) -> list[str]:
    """The parts of a table, [] where no header is found that could be repeated."""
    lines = text.split("\n")
    rule = next((at for at, line in enumerate(lines[:_HEADER_WITHIN]) if at and _is_rule(line)), 0)
    header = "\n".join(lines[rule - 1 : rule + 1])
    if not rule or len(header) > size // 2:
        return []
    parts: list[str] = []
    part, length = lines[: rule + 1], len("\n".join(lines[: rule + 1]))
    bare = True
    for line in lines[rule + 1 :]:
        if not bare and length + 1 + len(line) > size:
            parts.append("\n".join(part))
            part, length = [header], len(header)
        part.append(line)
        length += 1 + len(line)
        bare = False
    parts.append("\n".join(part))
    return parts


def _is_rule(line: str) -> bool:
    return "-" in line and _RULE.issuperset(line)
