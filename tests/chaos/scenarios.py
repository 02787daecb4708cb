"""The rows of the table and who carries them out, in the order in which they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import answers, canary, cost, crowding, disk, identity, kills, lifecycle, models, outages
from tests.chaos.deployment import Deployment, Size
from tests.chaos.rows import Row

ALONE, PAIRED, FREE = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rows that are found together. `about_s` is what the short form takes: what takes longest begins first.

    `at_once` is with how many others at most its figures stay what they are: one that compares times runs alone, one
    that holds a time to a wide bound beside one other, and one that only counts beside `FREE` - 1 of its kind.
    `forked` says that the short form may fork its services although it does not run beside so many.
    """

    ids: tuple[str, ...]
    run: Callable[[Deployment, Size], Awaitable[list[Row]]]
    about_s: float = 20.0
    at_once: int = FREE
    forked: bool = False


SCENARIOS = (
    Scenario(("A1-none",), kills.kill_without_spool),
    Scenario(("A1", "A2"), kills.kill_at_random, 60),
    Scenario(("A1-busy",), kills.kill_while_busy, at_once=ALONE, forked=True),
    Scenario(("A3",), outages.crash),
    Scenario(("A4",), outages.restart, at_once=ALONE),
    Scenario(("A5", "G6", "G7"), outages.absence, 45, at_once=PAIRED),
    Scenario(("A5+A1",), outages.absence_and_kill),
    Scenario(("A6",), kills.kill_while_down),
    Scenario(("A7",), outages.slowness, at_once=ALONE),
    Scenario(("A8",), outages.no_connection, at_once=ALONE),
    Scenario(("A9",), answers.read_your_writes),
    Scenario(("A10",), answers.repeated),
    Scenario(("A11",), answers.two_sockets),
    Scenario(("A11-many",), answers.two_instances),
    Scenario(("A12",), answers.poison, at_once=PAIRED),
    Scenario(("A12",), disk.dead_letter),
    Scenario(("A13",), disk.damage, 80),
    Scenario(("A14",), disk.no_space, 40),
    Scenario(("A14",), disk.no_growth, 40),
    Scenario(("A14+A1",), disk.killed_without_space, 80),
    Scenario(("A14+A1",), disk.killed_without_space_and_postgres, 80),
    Scenario(("A15",), disk.failed_flush),
    Scenario(("A16",), answers.deletes),
    Scenario(("A17",), disk.bounded),
    Scenario(("A18",), cost.cost, at_once=ALONE),
    Scenario(("A19",), disk.one_owner, at_once=PAIRED),
    Scenario(("B1", "B2"), lifecycle.drain, at_once=PAIRED),
    Scenario(("B3",), lifecycle.drain_without_postgres, at_once=PAIRED),
    Scenario(("B4",), lifecycle.second_signal, 40, at_once=PAIRED),
    Scenario(("B5", "B6"), lifecycle.live_and_ready, at_once=PAIRED),
    Scenario(("B7",), lifecycle.tasks),
    Scenario(("B8",), lifecycle.stopped, at_once=PAIRED),
    Scenario(("B9",), lifecycle.clock_jumps),
    Scenario(("C2", "C3", "C4"), models.told_in_time, at_once=ALONE),
    Scenario(("C5", "C7"), models.bounded_memory, 100),
    Scenario(("C11",), crowding.bulkhead, at_once=ALONE),
    Scenario(("D11",), crowding.flood, at_once=ALONE),
    Scenario(("D12",), crowding.cycles, 40),
    Scenario(("E8",), identity.troubled_issuer, at_once=PAIRED),
    Scenario(("canary",), canary.canary),
)
