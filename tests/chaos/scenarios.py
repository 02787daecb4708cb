"""The rows of the table and who carries them out, in the order in which they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import answers, canary, cost, crowding, disk, identity, kills, lifecycle, models, outages
from tests.chaos.rows import Row
from tests.chaos.world import Size, World


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rows that are found together. `short_s` and `full_s` bound its time; one that compares times runs alone."""

    ids: tuple[str, ...]
    run: Callable[[World, Size], Awaitable[list[Row]]]
    short_s: float = 60.0
    full_s: float = 300.0
    alone: bool = False

    def limit_s(self, size: Size) -> float:
        """How long it may take."""
        return self.short_s if size.short else self.full_s


SCENARIOS = (
    Scenario(("A1-none",), kills.kill_without_spool),
    Scenario(("A1", "A2"), kills.kill_at_random, 90, 600),
    Scenario(("A3",), outages.crash),
    Scenario(("A4",), outages.restart, alone=True),
    Scenario(("A5", "G6", "G7"), outages.absence, 60, 600),
    Scenario(("A5+A1",), outages.absence_and_kill),
    Scenario(("A6",), kills.kill_while_down),
    Scenario(("A7",), outages.slowness, alone=True),
    Scenario(("A8",), outages.no_connection, alone=True),
    Scenario(("A9",), answers.read_your_writes),
    Scenario(("A10",), answers.repeated),
    Scenario(("A11",), answers.two_sockets),
    Scenario(("A11-many",), answers.two_instances),
    Scenario(("A12",), answers.poison),
    Scenario(("A12",), disk.dead_letter),
    Scenario(("A13",), disk.damage, 90, 1200),
    Scenario(("A14",), disk.no_space, 120),
    Scenario(("A14+A1",), disk.killed_without_space, 240, 400),
    Scenario(("A15",), disk.failed_flush),
    Scenario(("A16",), answers.deletes),
    Scenario(("A17",), disk.bounded),
    Scenario(("A18",), cost.cost, alone=True),
    Scenario(("A19",), disk.one_owner),
    Scenario(("B1", "B2"), lifecycle.drain),
    Scenario(("B3",), lifecycle.drain_without_postgres),
    Scenario(("B4",), lifecycle.second_signal, 90),
    Scenario(("B5", "B6"), lifecycle.live_and_ready),
    Scenario(("B7",), lifecycle.tasks),
    Scenario(("B8",), lifecycle.stopped),
    Scenario(("B9",), lifecycle.clock_jumps),
    Scenario(("C2", "C3", "C4"), models.told_in_time, alone=True),
    Scenario(("C5", "C7"), models.bounded_memory, 120),
    Scenario(("C11",), crowding.bulkhead, alone=True),
    Scenario(("D11",), crowding.flood, alone=True),
    Scenario(("D12",), crowding.cycles, 90, 900),
    Scenario(("E8",), identity.troubled_issuer),
    Scenario(("canary",), canary.canary),
)
