"""Seeded chance for tests."""

from random import Random


def dice(seed: int = 0) -> Random:
    """A generator whose values are the same in every run."""
    return Random(seed)  # noqa: S311 - repeatable, not secret
