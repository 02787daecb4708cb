"""Which chunks count as answers."""

import pytest

from knowledge_flow_backend.index import Chunk
from tests.eval.labels import covers
from tests.eval.passages import Passage


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 101, True),  # its beginning is in the chunk
        (100, 1000, True),
        (0, 100, False),  # the chunk ends before it
        (150, 250, True),  # all of the chunk lies in it
        (250, 350, True),  # half of it
        (251, 351, False),
        (300, 400, False),
    ],
)
def test_a_chunk_answers_with_the_beginning_or_half_of_itself(start: int, end: int, *, expected: bool) -> None:
    chunk = Chunk("uid", 0, "x" * (end - start), start, end)
    assert covers(chunk, Passage("page.html", 100, 300)) is expected
