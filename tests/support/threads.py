"""A machine that has no thread left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_more_threads() -> Iterator[None]:
    """No thread can be started in the block: each would need a stack larger than the address space."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)
