"""The rows of the table and who carries them out, in the order in which they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import kills
from tests.chaos.rows import Row
from tests.chaos.world import Size, World


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rows that are found together. `short_s` and `full_s` bound its time."""

    ids: tuple[str, ...]
    run: Callable[[World, Size], Awaitable[list[Row]]]
    short_s: float = 60.0
    full_s: float = 300.0

    def limit_s(self, size: Size) -> float:
        """How long it may take."""
        return self.short_s if size.short else self.full_s


SCENARIOS = (
    Scenario(("A1-none",), kills.kill_without_spool),
    Scenario(("A1", "A2"), kills.kill_at_random, 90, 600),
    Scenario(("A6",), kills.kill_while_down),
)
