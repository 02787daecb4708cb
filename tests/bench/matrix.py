"""What each switch of the bench configuration does to a turn: one at a time, as a tornado table.

Hypothesis: measuring costs little (metrics and KPI at most 10 % of a turn's CPU), and so does keeping the promise of
the spool (at most 35 %); a turn of one of many instances costs at most 15 % more than one of the only one, and its
`accepted` comes later by one commit of a question and at most 1.5 ms of that instance's own (p50); what the others cost
is told, not judged.
Control: a service with the bench configuration, on the same core, asked by the same clients, in turn with the changed
one: changed, unchanged, unchanged, changed, … A row `nothing` is a second service that is configured alike: effects of
its size are the machine's.
Command: `make bench-matrix` (`--short`: one short pair a switch, bounds five times as wide; `--only deflate`,
`--only compression`).

Both services run on one core, of which the idle one takes half a percent; model, Postgres and load share the others.
50 clients ask one turn after the other, streamed, 50 tokens 5 ms apart, by turnwise.v1; for `accepted` 10, whose tokens
are 20 ms apart, while another process records a question in the same Postgres each 100 ms. Bodies over HTTP are not
part of a turn's frames: what compressing them costs is measured by `tests.bench.compression`, which is run at the end.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

from tests.bench.bench import Verdicts
from tests.bench.compression import run_compression
from tests.bench.deployment import Change, Deployment, Server, deployed
from tests.bench.disk import Probe
from tests.bench.driver import Load
from tests.bench.measured import Series, above, sample
from tests.bench.turn import CALM_MODEL, SATURATED_MODEL, print_stage, with_ack

CLIENTS = 50
CALM_LOAD = Load(clients=10, seconds=5.0, warm_s=3.0)
"""Turns take one second: the first of each session, which takes its lease, ends before the window."""
ACCEPTED = '{"type":"accepted"'
_BAR = 24


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of the configuration. `bound` is on the CPU of a turn as configured over that of one as changed,
    `costs_most` on the reverse; `later_ms` on how much more than one commit later `accepted` comes as changed."""

    name: str
    change: Change
    deflate: bool = False
    bound: float | None = None
    costs_most: float | None = None
    later_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """How long a window is, how many pairs there are, and how much wider than the full run's the bounds are."""

    seconds: float
    warm_s: float
    pairs: int
    slack: float


FULL = Size(seconds=5.0, warm_s=1.5, pairs=4, slack=1.0)
SHORT = Size(seconds=2.0, warm_s=1.0, pairs=1, slack=5.0)


def setting(path: str, value: object) -> Change:
    """The change of one key, named as docs/configuration.md names it."""

    def change(config: dict[str, Any]) -> None:
        *sections, key = path.split(".")
        for section in sections:
            config = config.setdefault(section, {})
        config[key] = value

    return change


def both(*changes: Change) -> Change:
    """All of these changes."""

    def change(config: dict[str, Any]) -> None:
        for one in changes:
            one(config)

    return change


KPI_OFF = both(
    setting("app.metrics_enabled", False),
    setting("app.kpi_log_summary_interval_sec", 0),
    setting("metrics.legacy_ms_names", False),
)
SWITCHES = (
    Switch("nothing", both()),
    Switch("log_level: info", setting("app.log_level", "info")),
    Switch("log_level: debug", setting("app.log_level", "debug")),
    Switch("metrics and KPI off", KPI_OFF, bound=1.10),
    Switch("deflate on", setting("server.ws_per_message_deflate", True), deflate=True),
    Switch("ack: none", setting("persistence.ack", "none"), bound=1.35),
    Switch("ack: db", setting("persistence.ack", "db")),
    Switch(
        "replicas: many",
        both(setting("persistence.replicas", "many"), setting("persistence.ack", "db")),
        costs_most=1.15,
        # A group that begins alone does not wait (`_GROUP_S` in fleet/leases.py): this is the pool, SQLAlchemy and the
        # driver on a core that is mostly idle. Seen were 0.4 to 1.1 ms where nobody else had it, 4 ms beside others.
        later_ms=1.5,
    ),
    Switch("pool_size: 2", both(setting("storage.postgres.pool_size", 2), setting("storage.postgres.max_overflow", 0))),
    Switch("pool_size: 50", setting("storage.postgres.pool_size", 50)),
    Switch("gc_freeze: off", setting("server.gc_freeze", False)),
    Switch("history cache off", setting("history.cache_mb", 0)),
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a switch did: the changed service beside the unchanged one, pair by pair."""

    switch: Switch
    changed: Series
    unchanged: Series

    @property
    def on_cpu(self) -> float:
        """CPU of a turn as changed, as a share more (or less) than unchanged: median of the pairs."""
        return self.changed.ratio(self.unchanged) - 1.0

    @property
    def spread(self) -> str:
        """The least and the greatest of the pairs."""
        ratios = self.changed.ratios(self.unchanged)
        return f"{min(ratios) - 1:+.1%}..{max(ratios) - 1:+.1%}"

    def on(self, what: str) -> float:
        """The same as `on_cpu` for another field of the samples."""
        pairs = zip(self.changed.samples, self.unchanged.samples, strict=True)
        return median(float(getattr(one, what)) / float(getattr(other, what)) for one, other in pairs) - 1.0

    @property
    def failures(self) -> list[str]:
        """What went wrong on either side."""
        return self.changed.failures + self.unchanged.failures


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How long clients waited for `accepted` at light load, and what one commit took meanwhile (p50)."""

    effect: Effect
    commit_ms: float

    @property
    def later_ms(self) -> float:
        """By how much p50 is later as changed: median of the pairs; infinite where one has none on either side."""
        pairs = list(zip(self.p50s_ms(self.effect.changed), self.p50s_ms(self.effect.unchanged), strict=True))
        return median(one - other for one, other in pairs) if math.inf not in chain(*pairs) else math.inf

    @staticmethod
    def p50s_ms(series: Series) -> list[float]:
        """The p50 of each pair."""
        return [above(one.firsts_s, 0.0).p50 for one in series.samples]


def measure(deployment: Deployment, switch: Switch, size: Size) -> Effect:
    """What a switch does to a turn where the service has all that it can do."""
    with both_kinds(deployment, switch, f"switch_{SWITCHES.index(switch)}", SATURATED_MODEL) as servers:
        effect = in_turn(deployment, switch, servers, Load(CLIENTS, size.seconds, size.warm_s), size.pairs)
    print(f"{switch.name:22} {effect.on_cpu:+7.1%} ({effect.spread})  {effect.changed.doubts}", flush=True)
    return effect


def measure_accepted(deployment: Deployment, switch: Switch, size: Size) -> Acceptance:
    """What a switch does to the time until `accepted` where the service has little to do."""
    with both_kinds(deployment, switch, f"accepted_{SWITCHES.index(switch)}", CALM_MODEL) as servers:
        marked = tuple(replace(one, target=replace(one.target, mark=ACCEPTED)) for one in servers)
        probe = Probe(servers[0].dsn, "commits")
        with probe.watching():
            effect = in_turn(deployment, switch, marked, CALM_LOAD, size.pairs)
    return Acceptance(effect, probe.seen.p50_ms)


@contextmanager
def both_kinds(deployment: Deployment, switch: Switch, name: str, model: str) -> Iterator[tuple[Server, ...]]:
    """A changed and an unchanged service, stopped with the block.

    Both are new: one that has answered thousands of turns already is dearer than one that has not.
    """
    changed = start(deployment, name, switch.change, model)
    changed = replace(changed, target=replace(changed.target, deflate=switch.deflate))
    unchanged = start(deployment, f"{name}_unchanged", both(), model)
    yield changed, unchanged
    changed.process.stop()
    unchanged.process.stop()


def in_turn(deployment: Deployment, switch: Switch, servers: tuple[Server, ...], load: Load, pairs: int) -> Effect:
    """Measure pairs of the changed and the unchanged service, in alternating order."""
    effect = Effect(switch, Series([]), Series([]))
    sides = list(zip(servers, (effect.changed, effect.unchanged), strict=True))
    for _ in range(pairs):
        for side, series in sides:
            series.samples.append(sample(deployment, side, load))
        sides.reverse()
    return effect


def start(deployment: Deployment, name: str, change: Change, model: str) -> Server:
    """A service with the bench configuration, the durable spool, and this change."""
    return deployment.service(name, model, change=both(with_ack(deployment, name, "spool"), change))


def print_tornado(effects: list[Effect]) -> None:
    """The greatest effect on top; a bar to the right costs, one to the left saves."""
    ranked = sorted(effects, key=lambda effect: abs(effect.on_cpu), reverse=True)
    scale = max(abs(ranked[0].on_cpu), 0.01)
    print(f"\n{'switch':22} {'CPU a turn':>10} {'pairs':>17} {'p99':>7} {'frames':>7}  less | more")
    for effect in ranked:
        length = round(abs(effect.on_cpu) / scale * _BAR)
        less, more = ("", "#" * length) if effect.on_cpu > 0 else ("#" * length, "")
        print(
            f"{effect.switch.name:22} {effect.on_cpu:+10.1%} {effect.spread:>17} {effect.on('p99_ms'):+7.0%} "
            f"{effect.on('frames_per_turn'):+7.0%}  {less:>{_BAR}}|{more}"
        )


def hold_accepted(acceptances: list[Acceptance], verdicts: Verdicts, slack: float) -> None:
    """How much later `accepted` comes than as configured, against the time of one commit and what is allowed more."""
    for one in acceptances:
        effect, allowed_ms = one.effect, one.effect.switch.later_ms or 0.0
        print(f"\n`accepted`, {CALM_LOAD.clients} clients, model {CALM_MODEL!r}")
        for name, series in ((effect.switch.name, effect.changed), ("as configured", effect.unchanged)):
            p50s_ms = one.p50s_ms(series)
            print(f"{name}: p50 of each pair {' '.join(f'{p50_ms:.1f}' for p50_ms in p50s_ms)} ms  {series.doubts}")
            verdicts.tell(f"p50 of accepted, {name}", median(p50s_ms), "ms")
        verdicts.tell("p50 of one commit meanwhile", one.commit_ms, "ms")
        what = f"accepted later, {effect.switch.name} (commit + {allowed_ms:g})"
        verdicts.hold(what, one.later_ms, one.commit_ms + allowed_ms * slack, "ms")
        hold_failures([f"{effect.switch.name}: {failure}" for failure in effect.failures], verdicts)


def hold(effects: list[Effect], verdicts: Verdicts, slack: float) -> None:
    """The judged switches against their bounds, and nothing failed."""
    print()
    for effect in effects:
        if effect.switch.bound is not None:
            ratio = 1.0 / (1.0 + effect.on_cpu)
            verdicts.hold(f"CPU as configured / {effect.switch.name}", ratio, effect.switch.bound * slack, "x")
        if effect.switch.costs_most is not None:
            most = effect.switch.costs_most * slack
            verdicts.hold(f"CPU with {effect.switch.name} / as configured", 1.0 + effect.on_cpu, most, "x")
    failures = [f"{effect.switch.name}: {failure}" for effect in effects for failure in effect.failures]
    hold_failures(failures, verdicts)


def hold_failures(failures: list[str], verdicts: Verdicts) -> None:
    """Nothing failed; else the first five are told."""
    for failure in failures[:5]:
        print(failure[:300])
    verdicts.hold("failed turns", len(failures), 0, "turns")


def measure_switches(chosen: list[Switch], verdicts: Verdicts, size: Size) -> None:
    """What each of them does, and their bounds."""
    print(f"{CLIENTS} clients, model {SATURATED_MODEL!r}, {size.pairs} pairs of {size.seconds} s a switch")
    with deployed() as deployment:
        effects = [measure(deployment, switch, size) for switch in chosen]
        judged = [switch for switch in chosen if switch.later_ms is not None]
        acceptances = [measure_accepted(deployment, switch, size) for switch in judged]
    print_tornado(effects)
    hold_accepted(acceptances, verdicts, size.slack)
    hold(effects, verdicts, size.slack)


def main() -> int:
    """Every switch and the compression, or those whose name holds a word; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one short pair a switch, bounds five times as wide")
    parser.add_argument("--only", default="", help="the switches whose name holds this, or compression")
    options = parser.parse_args()
    size = SHORT if options.short else FULL
    verdicts = Verdicts()
    print_stage()
    if chosen := [switch for switch in SWITCHES if options.only in switch.name]:
        measure_switches(chosen, verdicts, size)
    if options.only in "compression":
        run_compression(verdicts, short=options.short)
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
