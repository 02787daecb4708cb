"""How CPU grows with the length of a text, by the time of the thread: whatever else the machine does."""

import gc
import time
from collections.abc import Callable

_ROUNDS = 5
_LIMITS = {4: 6.0, 16: 48.0}
"""Of the time at so many times n by that at n: linear is 4 and 16, quadratic 16 and 256."""
_ENOUGH_S = 0.001
"""Of CPU at n: below it what does not depend on n is most of it."""

Work = Callable[[int], Callable[[], object]]
"""`work(n)` makes a text of n units, and returns what is to be measured on it."""


def superlinear(work: Work, start: int, most: int) -> str:
    """How its time grows, where that is with more than the length of the text; empty where it is not.

    A text four times as long decides where it is quick once in three measurements. What then takes too long may have
    outgrown a cache that others crowd, which makes each part of it two or three times as dear: one sixteen times as
    long tells that from what takes ever longer.

    n grows from `start` until a run at n takes long enough, or the longer text has `most` units: beyond that nothing
    comes from outside. A text that is refused sooner the longer it is has a small ratio.
    """
    seen = []
    for times, limit in _LIMITS.items():
        least = _ratio(work, start, most, times, limit)
        for _ in range(2):
            if limit < least < 2 * limit:  # more than that is no neighbour's doing
                least = min(least, _ratio(work, start, most, times, limit))
        if least <= limit:
            return ""
        seen.append(f"{least:.1f} times as long at {times} times the length")
    return ", ".join(seen)


def _ratio(work: Work, start: int, most: int, times: int, limit: float) -> float:
    """The least time at `times` n by the least at n, of five each; of two, where these are far from doubt."""
    n = min(start, max(most // times, 1))
    short = work(n)
    at_n = _seconds(short)
    while 2 * times * n <= most and at_n < _ENOUGH_S:
        n *= 2
        short = work(n)
        at_n = _seconds(short)
    long = work(times * n)
    # In turns: a slow moment of the machine meets both.
    # Without the collector, which looks at everything that tests have left behind; its share of the work is constant.
    gc.disable()
    try:
        at_more = _seconds(long)
        for _ in range(_ROUNDS - 1):
            at_n, at_more = min(at_n, _seconds(short)), min(at_more, _seconds(long))
            if not limit * at_n < at_more < 2 * limit * at_n:
                break
    finally:
        gc.enable()
    return at_more / max(at_n, 1e-5)


def _seconds(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began
