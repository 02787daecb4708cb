"""How CPU grows with the length of a text: thread time at 4n by that at n, whatever else the machine does."""

import gc
import time
from collections.abc import Callable

ROUNDS = 5
LIMIT = 6.0
"""Of the ratio: 4 is linear, 16 quadratic."""
_ENOUGH_S = 0.001
"""Of CPU at n: below it what does not depend on n is most of it."""

Work = Callable[[int], Callable[[], object]]
"""`work(n)` makes a text of n units, and returns what is to be measured on it."""


def ratio(work: Work, start: int, most: int, *, enough: float = 0.0) -> float:
    """The least time at 4n by the least at n, of five each; of two, where these are no further apart than `enough`.

    n grows from `start` until a run at n takes long enough, or 4n is `most`: beyond that nothing comes from outside. A
    text that is refused sooner the longer it is has a small ratio.
    """
    n = start
    while 8 * n <= most and _seconds(work(n)) < _ENOUGH_S:
        n *= 2
    short, long = work(n), work(4 * n)
    # In turns: a slow moment of the machine meets both.
    # Without the collector, which looks at everything that tests have left behind; its share of the work is constant.
    gc.disable()
    try:
        at_n, at_4n = _seconds(short), _seconds(long)
        for _ in range(ROUNDS - 1):
            at_n, at_4n = min(at_n, _seconds(short)), min(at_4n, _seconds(long))
            if at_4n <= enough * at_n:
                break
    finally:
        gc.enable()
    return at_4n / max(at_n, 1e-5)


def within(work: Work, start: int, most: int) -> float:
    """`ratio`, measured up to three times where it is above `LIMIT`: a crowded cache makes it larger, nothing less."""
    seen = ratio(work, start, most, enough=LIMIT)
    for _ in range(2):
        if seen > LIMIT:
            seen = min(seen, ratio(work, start, most))
    return seen


def _seconds(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began
