"""Children of labelled metrics: bound once, and limited in number per label."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

Bound = TypeVar("Bound")
MAX_VALUES: Final = 20
OTHER: Final = "other"


class Labelled(Generic[Bound]):
    """`labelled("georges", "ok")` returns the object bound to these label values, created at the first call.

    Each label takes its first 20 values; later ones count as `other`, so what a client or a configuration names
    cannot grow the exposition without bound.
    """

    __slots__ = ("_bind", "_bound", "_seen")

    def __init__(self, labels: int, bind: Callable[[tuple[str, ...]], Bound]) -> None:
        """`bind` makes the object of a tuple of `labels` values."""
        self._bind = bind
        self._bound: dict[tuple[str, ...], Bound] = {}
        self._seen: list[set[str]] = [set() for _ in range(labels)]

    def __call__(self, *values: str) -> Bound:
        """The object of these label values, given in the metric's order."""
        found = self._bound.get(values)
        return self._bind_new(values) if found is None else found

    def _bind_new(self, values: tuple[str, ...]) -> Bound:
        admitted = tuple(self._admit(seen, value) for seen, value in zip(self._seen, values, strict=True))
        found = self._bound.get(admitted)
        if found is None:
            found = self._bound[admitted] = self._bind(admitted)
        return found

    @staticmethod
    def _admit(seen: set[str], value: str) -> str:
        if value not in seen:
            if len(seen) >= MAX_VALUES:
                return OTHER
            seen.add(value)
        return value
