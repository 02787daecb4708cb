"""By when a call must have its first token, where others have been asked before it or will be after it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_BY: ContextVar[float | None] = ContextVar("turnwise_first_token_by", default=None)
_LEAST_S = 0.001


@contextmanager
def first_token_by(moment: float) -> Iterator[None]:
    """Calls that begin in here must have their first token by that moment, on the loop's clock, if not before."""
    _BY.set(moment)
    try:
        yield
    finally:
        # Not by a token: a generator may be closed in another context than the one that it began in.
        _BY.set(None)


def first_token_within(own_s: float) -> float:
    """Seconds that a call which begins now may take to its first token; `own_s` is its own deadline."""
    moment = _BY.get()
    if moment is None:
        return own_s
    return min(own_s, max(moment - asyncio.get_running_loop().time(), _LEAST_S))
