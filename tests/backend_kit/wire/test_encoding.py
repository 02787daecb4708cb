"""What an encoded value takes."""

import tracemalloc

import pytest

from backend_kit.wire import dumps


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
