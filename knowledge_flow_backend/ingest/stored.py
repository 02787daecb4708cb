"""Chunks and vectors of one document on disk: of a large file only a piece of them is in memory at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from backend_kit.wire import loads
from knowledge_flow_backend.index import Chunk, Vector
from knowledge_flow_backend.ingest.chunks import chunk_uid
from knowledge_flow_backend.ingest.work import CHUNKS_A_LINE

_CHARS_A_TOKEN = 4
"""Of English prose; good enough to say how long a chunk is. What is cut is counted by the model itself."""
_FLOAT_BYTES = 4


class StoredChunks(Sequence[Chunk]):
    """The chunks that a parsing child wrote. The constructor reads the whole file once: call it in a thread."""

    def __init__(self, path: Path, document_uid: str) -> None:
        self._path = path
        self._document_uid = document_uid
        self._starts = [0]
        self._last: tuple[int, list[Chunk]] = (-1, [])
        length = 0
        with path.open("rb") as lines:
            for line in lines:
                self._starts.append(self._starts[-1] + len(line))
                length = len(loads(line))
        self._length = CHUNKS_A_LINE * (len(self._starts) - 2) + length if length else 0

    def __len__(self) -> int:
        """How many there are."""
        return self._length

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> list[Chunk]: ...
    def __getitem__(self, at: int | slice) -> Chunk | list[Chunk]:
        """One chunk, or some of them as a list. OSError where the file is gone."""
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        line, place = divmod(range(len(self))[at], CHUNKS_A_LINE)
        return self._batch(line)[place]

    def batches(self) -> Iterator[list[Chunk]]:
        """All of them in order, as the child wrote them together."""
        for line in range(len(self._starts) - 1):
            yield self._batch(line)

    def __iter__(self) -> Iterator[Chunk]:
        """All of them in order."""
        for batch in self.batches():
            yield from batch

    def _batch(self, line: int) -> list[Chunk]:
        known, batch = self._last
        if known != line:
            with self._path.open("rb") as file:
                file.seek(self._starts[line])
                read = loads(file.read(self._starts[line + 1] - self._starts[line]))
            batch = [
                Chunk(
                    uid=chunk_uid(self._document_uid, ordinal, text),
                    ordinal=ordinal,
                    content=text,
                    start=start,
                    end=end,
                    section=" > ".join(section),
                    page=page,
                    token_count=-(-len(text) // _CHARS_A_TOKEN),
                )
                for ordinal, start, end, section, page, text in read
            ]
            self._last = (line, batch)
        return batch


class StoredVectors(Sequence[Vector]):
    """Vectors of one length, written in order and read back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._dimension = 0
        self._length = 0
        self._last: tuple[int, Sequence[Vector]] = (-1, ())

    def extend(self, vectors: Sequence[Vector]) -> None:
        """Add some; blocks. Raises ValueError where their length is not that of the others."""
        if not vectors:
            return
        rows = np.stack(vectors).astype(np.float32, copy=False)
        if self._length and rows.shape[1] != self._dimension:
            raise ValueError("vectors of different lengths")
        with self._path.open("ab") as file:
            file.write(rows.tobytes())
        self._dimension = rows.shape[1]
        self._length += len(rows)

    def __len__(self) -> int:
        """How many there are."""
        return self._length

    @overload
    def __getitem__(self, at: int) -> Vector: ...
    @overload
    def __getitem__(self, at: slice) -> list[Vector]: ...
    def __getitem__(self, at: int | slice) -> Vector | list[Vector]:
        """One vector, or some of them as a list. OSError where the file is gone."""
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        block, place = divmod(range(len(self))[at], CHUNKS_A_LINE)
        known, vectors = self._last
        if known != block:
            row = self._dimension * _FLOAT_BYTES
            with self._path.open("rb") as file:
                file.seek(block * CHUNKS_A_LINE * row)
                numbers = np.frombuffer(file.read(CHUNKS_A_LINE * row), dtype=np.float32)
            vectors = list(numbers.reshape(-1, self._dimension))
            self._last = (block, vectors)
        return vectors[place]
