"""The two halves of a hybrid search as one list, as pure lists."""

from collections.abc import Sequence

Ranked = list[tuple[str, float]]
"""Keys of chunks with their scores, best first."""


def ordered(found: Sequence[tuple[str, float]]) -> Ranked:
    """Best first; equal scores in the order of their keys, so that the same search gives the same list."""
    return sorted(found, key=lambda one: (-one[1], one[0]))


def fused(words: Ranked, nearest: Ranked, word_share: float) -> Ranked:
    """What words found and what is nearest, as one list.

    A score is `word_share` of what the best passage by words scored, and for the rest the cosine. A passage that is
    not among the nearest is at most as near as the last of them, and counts as that one does.
    """
    best = max((score for _, score in words), default=0.0) or 1.0
    shares = {key: score / best for key, score in words}
    cosines = dict(nearest)
    furthest = min(cosines.values(), default=0.0)
    return ordered(
        [
            (key, word_share * shares.get(key, 0.0) + (1.0 - word_share) * cosines.get(key, furthest))
            for key in {**shares, **cosines}
        ]
    )
