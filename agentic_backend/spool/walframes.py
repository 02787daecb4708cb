"""A log of SQLite frame by frame, also behind a damaged one, where SQLite stops.

The checksum of a frame continues that of the frame before it (https://www.sqlite.org/fileformat2.html). Only reads.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final

PAGE: Final = 4096
"""Bytes of a page. A log of other pages is taken for a damaged one."""
HEADER: Final = 32
FRAME: Final = 24 + PAGE
_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """A page as a commit wrote it, its number, and whether the commit ends with it."""

    number: int
    commits: bool
    intact: bool
    page: bytes


def frames_of(file: BinaryIO) -> Iterator[Frame]:
    """Each whole frame, and a damaged header as one more. A frame is intact if its checksum follows from the one stored
    in the frame before, damaged or not: so one frame after damage cannot be told from it.

    Frames of an earlier use of the file follow its end: they have other salts. Without a header the salts are those of
    the first two frames that follow from each other.
    """
    order, salts, seed = _start_of(file.read(HEADER))
    if seed is None:
        yield Frame(0, commits=False, intact=False, page=b"")
    before: Pair | None = None
    while len(frame := file.read(FRAME)) == FRAME:
        number, size, salt1, salt2, sum1, sum2 = struct.unpack_from(">6I", frame)
        here = (salt1, salt2)
        # There is no page 0, and the checksum of zeros behind zeros is right.
        follows = number > 0 and here == (salts or before)
        intact = follows and seed is not None and _sum(order, frame, seed) == (sum1, sum2)
        if intact:
            salts = here
        before, seed = here, (sum1, sum2)
        yield Frame(number, commits=size > 0, intact=intact, page=frame[24:])


def has_commit(log: Path) -> bool:
    """Whether SQLite reads anything of a log: a commit in front of the first damaged frame. If not it removes the log
    when it closes the file, even one that is open for reading only."""
    try:
        with log.open("rb") as file:
            return any(frame.commits for frame in takewhile(lambda frame: frame.intact, frames_of(file)))
    except FileNotFoundError:
        return False


def _start_of(header: bytes) -> tuple[str, Pair | None, Pair | None]:
    """Byte order of the checksums, salts, and the checksum that the first frame's continues; none if damaged."""
    if len(header) == HEADER:
        magic, _, page, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", header)
        order = _MAGIC.get(magic)
        if order is not None and page == PAGE and _sum_of(order, header[:24], (0, 0)) == (sum1, sum2):
            return order, (salt1, salt2), (sum1, sum2)
    return _NATIVE, None, None


def _sum(order: str, frame: bytes, seed: Pair) -> Pair:
    """A frame's checksum: of its page, and of the first eight bytes in front of that."""
    return _sum_of(order, frame[24:], _sum_of(order, frame[:8], seed))


def _sum_of(order: str, content: bytes, seed: Pair) -> Pair:
    one, two = seed
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
