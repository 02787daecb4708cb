"""How good an order of hits is, and how sure that is: nDCG, recall, reciprocal rank, paired bootstrap."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DEPTH: Final = 10
"""Hits that nDCG looks at."""
DEEP: Final = 50
"""Hits that recall and reciprocal rank look at."""
CONTEXT: Final = 10_000
"""Characters of passages that an answer is made of; what divisions into chunks of different sizes are compared by."""
RESAMPLES: Final = 2000

Found = Sequence[frozenset[int]]
"""Which targets each hit covers, best hit first."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one query, 0 to 1 each."""

    ndcg: float
    recall: float
    reciprocal: float
    in_context: float


def scores(found: Found, lengths: Sequence[int], chunks: Sequence[frozenset[int]], targets: int) -> Scores:
    """`lengths` are those of the hits, in characters; `chunks` the target sets of all chunks of the corpus that cover
    one, in any order."""
    ideal = _gained(_best_order(chunks))
    return Scores(
        ndcg=min(1.0, _gained(found) / ideal) if ideal else 0.0,
        recall=len(frozenset().union(*found[:DEEP])) / targets,
        in_context=len(frozenset().union(*_fitting(found, lengths))) / targets,
        reciprocal=next((1 / rank for rank, covers in enumerate(found[:DEEP], start=1) if covers), 0.0),
    )


def _fitting(found: Found, lengths: Sequence[int]) -> Found:
    """The first hits, as many as a context takes."""
    taken = bisect_right(list(accumulate(lengths)), CONTEXT)
    return found[:taken]


def _gained(found: Found) -> float:
    """DCG of the first 10. A hit gains the targets that none before it covered: a second chunk of the same place
    tells nothing new (Clarke et al., "Novelty and diversity in information retrieval evaluation", 2008; alpha = 1).
    """
    seen: set[int] = set()
    gained = 0.0
    for rank, covers in enumerate(found[:DEPTH], start=1):
        gained += len(covers - seen) / log2(rank + 1)
        seen |= covers
    return gained


def _best_order(chunks: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Greedy: the next chunk is one that covers the most targets not yet covered."""
    order: list[frozenset[int]] = []
    seen: frozenset[int] = frozenset()
    while len(order) < DEPTH:
        best = max(chunks, key=lambda covers: len(covers - seen), default=frozenset[int]())
        if not best - seen:
            break
        order.append(best)
        seen |= best
    return order


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and where it lies with 95 % probability."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(values: Sequence[float], seed: int = 1) -> Interval:
    """The mean of these values, one per query, with its percentile interval. For a difference: the differences."""
    if not values:
        return Interval(0.0, 0.0, 0.0)
    numbers: NDArray[Any] = np.asarray(values, dtype=np.float64)
    chance = np.random.default_rng(seed)
    # How often each value is drawn, for each resample: the same as drawing them one by one.
    drawn = chance.multinomial(len(numbers), np.full(len(numbers), 1 / len(numbers)), size=RESAMPLES)
    means = drawn @ numbers / len(numbers)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(numbers.mean()), float(low), float(high))


def difference(one: Mapping[str, float], other: Mapping[str, float]) -> Interval:
    """The paired difference `one - other`, by query."""
    return bootstrap([value - other[query] for query, value in one.items()])
