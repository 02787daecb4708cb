"""The rows of the table and who carries them out, in the order in which they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import (
    answers,
    bus,
    canary,
    connections,
    cost,
    crowding,
    disk,
    failover,
    fairness,
    fairness_kf,
    fleet,
    identity,
    kills,
    lifecycle,
    models,
    network,
    outages,
    versions,
)
from tests.chaos.deployment import Deployment, Size
from tests.chaos.rows import Row


@dataclass(frozen=True, slots=True)
class Kind:
    """With how many of its kind a scenario runs at once: as many lanes in the short form, in the full one."""

    short: int
    full: int


ALONE = Kind(1, 1)
"""Fills a core, or compares costs, or the slowest answers of all."""
CALM = Kind(2, 1)
"""Compares times, and takes little of the machine: the short form's bounds are wide enough for a neighbour as calm."""
PAIRED = Kind(2, 2)
"""Holds a time to a wide bound."""
FREE = Kind(4, 4)
"""Only counts."""
WAITING = Kind(4, 1)
"""Waits for what lasts as long in both forms, the death of an instance; in the short one beside others that do."""
KINDS = (ALONE, CALM, PAIRED, FREE, WAITING)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rows that are found together. `about_s` is what the short form takes: what takes longest begins first.

    `as_users_start` says that it judges how a service starts, or its CPU: the short form forks those of all others.
    One that is not `in_short` runs there by its name alone.
    """

    ids: tuple[str, ...]
    run: Callable[[Deployment, Size], Awaitable[list[Row]]]
    about_s: float = 5.0
    kind: Kind = FREE
    as_users_start: bool = False
    in_short: bool = True


SCENARIOS = (
    Scenario(("A1-none",), kills.kill_without_spool),
    Scenario(("A1", "A2"), kills.kill_at_random, 17),
    Scenario(("A1-busy",), kills.kill_while_busy, 16, kind=ALONE),
    Scenario(("A3",), outages.crash, 8),
    Scenario(("A4",), outages.restart, 16, kind=ALONE),
    Scenario(("A5", "G6", "G7"), outages.absence, 16, kind=PAIRED),
    Scenario(("A5+A1",), outages.absence_and_kill, 13),
    Scenario(("A6",), kills.kill_while_down),
    Scenario(("A7",), outages.slowness, 30, kind=CALM),
    Scenario(("A8",), outages.no_connection, 24, kind=CALM),
    Scenario(("A9",), answers.read_your_writes),
    Scenario(("A10",), answers.repeated),
    Scenario(("A11",), answers.two_sockets),
    Scenario(("A11-many",), answers.two_instances),
    Scenario(("A12",), answers.poison, kind=PAIRED),
    Scenario(("A12",), disk.dead_letter),
    Scenario(("A13",), disk.damage, 13),
    Scenario(("A14",), disk.no_space, 16),
    Scenario(("A14",), disk.no_growth, 14),
    Scenario(("A14+A1",), disk.killed_without_space, 16),
    Scenario(("A14+A1",), disk.killed_without_space_and_postgres, 17),
    Scenario(("A15",), disk.failed_flush),
    Scenario(("A16",), answers.deletes, 8),
    Scenario(("A17",), disk.bounded, 24),
    Scenario(("A18",), cost.cost, 28, kind=ALONE, as_users_start=True),
    Scenario(("A19",), disk.one_owner, 15, kind=PAIRED, as_users_start=True),
    Scenario(("A20",), failover.synchronous, 20, kind=PAIRED),
    Scenario(("A20-async",), failover.asynchronous, 15, kind=PAIRED),
    Scenario(("B1", "B2"), lifecycle.drain, kind=PAIRED),
    Scenario(("B3",), lifecycle.drain_without_postgres, 7, kind=PAIRED),
    Scenario(("B4",), lifecycle.second_signal, 10, kind=PAIRED),
    Scenario(("B5", "B6"), lifecycle.live_and_ready, kind=PAIRED, as_users_start=True),
    Scenario(("B7",), lifecycle.tasks),
    Scenario(("B8",), lifecycle.stopped, kind=PAIRED),
    Scenario(("B9",), lifecycle.clock_jumps, 14),
    Scenario(("C2", "C3", "C4"), models.told_in_time, 15, kind=CALM),
    Scenario(("C5", "C7"), models.bounded_memory, 21),
    Scenario(("C11",), crowding.bulkhead, 20, kind=CALM),
    Scenario(("D11",), crowding.flood, 14, kind=CALM),
    Scenario(("D12",), crowding.cycles, 9),
    Scenario(("fairness",), fairness.floods, 50, kind=ALONE),
    Scenario(("D16",), connections.unfinished, 14, kind=PAIRED),
    Scenario(("D17",), connections.too_many, 33, kind=ALONE),
    Scenario(("E8",), identity.troubled_issuer, 31, kind=PAIRED),
    Scenario(("fairness", fairness_kf.ID), fairness_kf.floods, 60, kind=ALONE),
    Scenario(("canary",), canary.canary, 25),
    Scenario(("fleet",), fleet.deaths, 50, kind=WAITING),
    Scenario(("fleet",), fleet.standing_still, 50, kind=WAITING),
    Scenario(("fleet",), fleet.without_postgres, 32, kind=WAITING),
    Scenario(("fleet",), fleet.cancelled, 10, kind=WAITING),
    Scenario(("fleet",), fleet.rolling, 45, kind=WAITING),
    Scenario(("fleet",), versions.versions, 75, kind=WAITING),
    Scenario(("fleet",), bus.deaths, 50, kind=WAITING),
    Scenario(("fleet",), bus.troubles, 60, kind=WAITING),
    Scenario(("network",), network.cuts, 55, kind=WAITING),
    Scenario(("network",), network.one_way, 50, kind=WAITING),
    *(
        Scenario(("network",), network.over_network(run), 60, kind=WAITING, in_short=False)
        for run in (
            fleet.deaths,
            fleet.standing_still,
            fleet.without_postgres,
            fleet.cancelled,
            fleet.rolling,
            bus.deaths,
            bus.troubles,
        )
    ),
)
