"""What an encoded value takes; normal forms as Unicode has them, but for rows of marks that no language writes."""

import sys
import tracemalloc
import unicodedata

import pytest

from backend_kit.wire import dumps, normalized
from backend_kit.wire.encoding import _BLOCKS, MAX_MARKS


@pytest.mark.parametrize("size", [0, 100, 1100, 5000])
def test_an_encoded_value_keeps_no_more_memory_than_it_needs(size: int) -> None:
    """Messages are kept encoded, thousands of them; orjson returns its buffer as it has grown."""
    value = {"text": "x" * size}
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [dumps(value) for _ in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(kept) < len(kept[0]) + 100


@pytest.mark.parametrize("text", ["", "plain", "e\u0301", "\u1ebf", "a\u0316\u0300b", "\ud55c", "\ufb01", "\u0f73"])
def test_text_that_people_write_is_as_the_standard_says(text: str) -> None:
    assert normalized("NFC", text) == unicodedata.normalize("NFC", text)
    assert normalized("NFKD", text) == unicodedata.normalize("NFKD", text)


@pytest.mark.parametrize("mark", ["\u0300", "\u0316", "\u0f73", "\U0001e944"])
def test_of_a_row_of_marks_the_first_are_kept(mark: str) -> None:
    kept = normalized("NFC", f"b{mark * 100}c{mark * MAX_MARKS}d")
    assert kept == unicodedata.normalize("NFC", f"b{mark * MAX_MARKS}c{mark * MAX_MARKS}d")


def test_no_mark_that_is_sorted_stands_elsewhere() -> None:
    letters = (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    sorted_ = [code for code in letters if unicodedata.combining(unicodedata.normalize("NFKD", chr(code))[0])]
    assert [hex(code) for code in sorted_ if not any(first <= code < end for first, end in _BLOCKS)] == []
