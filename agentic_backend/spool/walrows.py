"""The rows of a spool that are in its log after a damaged frame.

They are read from the leaf pages of tables as the frames have them, by SQLite's published file format
(https://www.sqlite.org/fileformat2.html): a row is written with its leaf, and with the pages into which it runs over,
in one commit, and again with its leaf whenever a later commit changes that.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from agentic_backend.spool.spoolrows import Kind, Row, is_row
from agentic_backend.spool.walframes import PAGE, frames_of

_LEAF: Final = 0x0D
_MOST_LOCAL: Final = PAGE - 35
_LEAST_LOCAL: Final = (PAGE - 12) * 32 // 255 - 23
_INTEGERS: Final = (0, 1, 2, 3, 4, 6, 8)
_KINDS: Final = get_args(Kind)
_UNREADABLE: Final = (IndexError, KeyError, ValueError, struct.error)


@dataclass(slots=True)
class Behind:
    """The rows behind the first damaged frame, by id, each as its newest intact page has it; and how many frames were
    damaged in front of one that is not."""

    rows: dict[int, Row] = field(default_factory=dict)
    damaged: int = 0


def read_behind(log: Path) -> Behind:
    """What SQLite does not read of a log. Nothing of an intact one, and of a torn end, which has no intact frame behind
    it. Rows are those of whole commits, and each has its own checksum, too. Raises OSError."""
    behind = Behind()
    pages: dict[int, bytes] = {}
    changed: list[int] = []
    broken, damaged = False, 0
    with log.open("rb") as file:
        for frame in frames_of(file):
            if not frame.intact:
                broken, damaged = True, damaged + 1
                continue
            behind.damaged, damaged = behind.damaged + damaged, 0
            pages[frame.number] = frame.page
            changed.append(frame.number)
            if not frame.commits:
                continue
            if broken:
                for number in changed:
                    behind.rows.update((row.id, row) for row in _rows_of(pages[number], pages))
            else:
                pages.clear()  # SQLite reads these
            changed.clear()
    return behind


def _rows_of(page: bytes, pages: dict[int, bytes]) -> Iterator[Row]:
    """The sound rows of records in a page; `pages` has those into which they run over."""
    if page[0] != _LEAF:
        return
    for place in range(int.from_bytes(page[3:5], "big")):
        try:
            (start,) = struct.unpack_from(">H", page, 8 + 2 * place)
            row = _row_at(page, start, pages)
        except _UNREADABLE:
            continue  # of another table, or in a page that SQLite has read
        if row is not None and row.sound and row.kind in _KINDS:
            yield row


def _row_at(page: bytes, start: int, pages: dict[int, bytes]) -> Row | None:
    size, start = _varint(page, start)
    id_, start = _varint(page, start)
    local = size
    if size > _MOST_LOCAL:
        local = _LEAST_LOCAL + (size - _LEAST_LOCAL) % (PAGE - 4)
        local = local if local <= _MOST_LOCAL else _LEAST_LOCAL
    parts = [page[start : start + local]]
    left, link = size - local, start + local
    while left > 0:
        (number,) = struct.unpack_from(">I", page, link)
        page, link = pages[number], 0
        parts.append(page[4 : 4 + left])
        left -= len(parts[-1])
    values = (id_, *_values(b"".join(parts))[1:])
    return Row(*values) if is_row(values) else None


def _values(record: bytes) -> list[Any]:
    """The columns of a record; a REAL may be stored as an integer. Raises one of `_UNREADABLE`."""
    end, place = _varint(record, 0)
    start, values = end, list[Any]()
    while place < end:
        kind, place = _varint(record, place)
        if kind <= 6:
            size = _INTEGERS[kind]
            values.append(int.from_bytes(record[start : start + size], "big", signed=True) if kind else None)
        elif kind == 7:
            size = 8
            values.append(struct.unpack_from(">d", record, start)[0])
        elif kind < 12:
            size = 0
            values.append(kind - 8)
        else:
            size = (kind - 12) // 2
            content = record[start : start + size]
            values.append(content.decode() if kind % 2 else content)
        start += size
    if len(values) == 8 and isinstance(values[5], int):
        values[5] = float(values[5])
    return values


def _varint(content: bytes, start: int) -> tuple[int, int]:
    """A number in SQLite's form, and where it ends."""
    value = 0
    for place in range(start, start + 8):
        byte = content[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | content[start + 8], start + 9
