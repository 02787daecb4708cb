"""Reciprocal rank fusion, as pure lists."""

from collections.abc import Sequence

Ranked = list[tuple[str, float]]
"""Keys of chunks with their scores, best first."""


def ordered(found: Sequence[tuple[str, float]]) -> Ranked:
    """Best first; equal scores in the order of their keys, so that the same search gives the same list."""
    return sorted(found, key=lambda one: (-one[1], one[0]))


def fused(halves: Sequence[Ranked], rrf_k: int) -> Ranked:
    """The halves as one list: a key scores 1 / (rrf_k + rank) for each of them that holds it; ranks count from 1."""
    scores: dict[str, float] = {}
    for half in halves:
        for rank, (key, _) in enumerate(half, start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (rrf_k + rank)
    return ordered(list(scores.items()))
