"""Headline scenarios about CPU: what a turn costs beside others, as a session grows, and how far searches queue."""

import asyncio
from dataclasses import replace
from statistics import median

import uvloop

from tests.bench import turn
from tests.bench.bench import pinned_to
from tests.bench.deployment import Server, cpu_s
from tests.bench.driver import Client, Load, clients
from tests.bench.headline_stage import Size, Stage, spread_of
from tests.bench.measured import Sample
from tests.bench.rico import run_rico

MANY_CLIENTS = 50
MANY_BOUND, FEW_BOUND = 6.0, 4.0
RICO_RATIO, RICO_P95_MS = 2.5, 375.0
RICO_CLIENTS = 20
LENGTH_SPREAD = 0.10
TOKENS = 50
RATE_WARM_S, WHOLE_WARM_S = 1.5, 1.0


def whole(stage: Stage) -> None:
    """Whole messages from a model that takes no time, for many clients and for one, beside the system before."""
    deployment, size, verdicts = stage.deployment, stage.size, stage.verdicts
    case = replace(turn.WHOLE, name="headline_whole")
    answer = turn.spoken_answer(deployment, case.model)
    servers = [turn.started(deployment, name, case, "spool", answer) for name in case.stacks]
    samples: dict[str, list[Sample]] = {server.name: [] for server in servers}
    for count in size.whole_clients:
        print(f"-- {count} client(s)")
        load = Load(count, size.costs.seconds, WHOLE_WARM_S)
        series = turn.alternate(deployment, servers, load, size.costs.rounds)
        turn.print_table(series)
        for name, one in series.items():
            stage.note(*one.samples)
            samples[name] += one.samples
        ours, theirs = series["ours"], series["original_like"]
        what = f"whole message, {count} client(s)"
        bound = (MANY_BOUND if count >= MANY_CLIENTS else FEW_BOUND) / size.slack
        verdicts.hold_at_least(f"{what}: turns/s/core ours / original_like", theirs.ratio(ours), bound, "x")
        verdicts.tell(f"{what}: CPU of ours", ours.cpu_ms, "ms")
        verdicts.tell(f"{what}: CPU of original_like", theirs.cpu_ms, "ms")
        verdicts.tell(f"{what}: turns a second of ours", ours.middle("turns_per_s"), "/s")
        verdicts.tell(f"{what}: turns a second of original_like", theirs.middle("turns_per_s"), "/s")
    for server in servers:
        turn.held_to_its_rows(server, samples[server.name], f"whole message: {server.name}", verdicts)
        server.process.stop()


def streamed(stage: Stage) -> None:
    """Streamed turns beside the obvious stack and the floor, and what a further token costs: as `make bench-turn`."""
    size = stage.size.costs
    for case in (turn.SATURATED, turn.CALM):
        # At a rate nothing has to fill up before the window.
        window = size if case.rate is None else replace(size, warm_s=RATE_WARM_S)
        series = turn.compare(stage.deployment, case, window, "spool", stage.verdicts)
        for one in series.values():
            stage.note(*one.samples)
        turn.hold_ratios(case, series, stage.verdicts, size.slack)
    token_us = turn.further_token_us(stage.deployment, size, "spool", stage.verdicts)
    turn.hold_tokens(token_us, stage.verdicts, size.slack)


def rico(stage: Stage) -> None:
    """Searches of twenty at once beside those of one, on all cores, as `make bench` has them."""
    size, verdicts = stage.size, stage.verdicts
    with pinned_to(stage.deployment.service_cores | stage.deployment.other_cores):
        ratio, crowd = run_rico(1, clients=RICO_CLIENTS, turns=size.rico_turns)
    bad = crowd["counts"]["errors"] + crowd["counts"]["not_sent"]
    verdicts.hold("Rico: errors and turns not sent", bad, 0, "turns")
    verdicts.hold(f"Rico: p95 of {RICO_CLIENTS} / p50 of 1", ratio, RICO_RATIO * size.slack, "x")
    p95_ms = crowd["latency_ms"]["p95"]
    verdicts.hold(f"Rico: p95 of {RICO_CLIENTS}, model 0.1 s", p95_ms, RICO_P95_MS * size.slack, "ms")


def length(stage: Stage) -> None:
    """The CPU of a turn far into a session beside that of its first."""
    size, verdicts = stage.size, stage.verdicts
    server = stage.service("length", f"mock;tokens={TOKENS}", TOKENS, native=False)
    with stage.watched(server), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        costs = runner.run(cost_by_position(server, size))
    server.process.stop()
    for position, cpu_ms in costs.items():
        verdicts.tell(f"CPU of a turn around turn {position} of a session", cpu_ms, "ms")
    spread = spread_of(costs.values())
    verdicts.hold(
        "CPU of a turn by its place in a session: greatest / least - 1", spread, LENGTH_SPREAD * size.slack, ""
    )


async def cost_by_position(server: Server, size: Size) -> dict[int, float]:
    """CPU ms of a turn around each position, median of the rounds, which take the positions in turn.

    As many clients ask at a time at each of them. What a new session costs to make is not in it, as elsewhere neither.
    """
    first, *later = size.positions
    endless = replace(server, target=replace(server.target, turns_a_session=max(later) * 2))
    once = replace(server, target=replace(server.target, turns_a_session=1))
    rounds = size.costs.rounds * 2
    found: dict[int, list[float]] = {position: [] for position in size.positions}
    async with (
        clients(once.target, size.sessions * size.at_each) as fresh,
        clients(endless.target, size.sessions * len(later)) as grown,
    ):
        groups = {position: grown[number :: len(later)] for number, position in enumerate(later)}
        for position, group in groups.items():
            await _asked([[client] * (position - rounds * size.at_each // 2) for client in group])
        for _ in range(rounds):
            for client in fresh:
                await client.prepare()
            queues = [fresh[number :: size.sessions] for number in range(size.sessions)]
            found[first].append(await _cost_ms(server, queues))
            for position, group in groups.items():
                found[position].append(await _cost_ms(server, [[client] * size.at_each for client in group]))
    return {position: median(costs) for position, costs in found.items()}


async def _cost_ms(server: Server, queues: list[list[Client]]) -> float:
    before = cpu_s(server.process.pid)
    await _asked(queues)
    return (cpu_s(server.process.pid) - before) * 1e3 / sum(map(len, queues))


async def _asked(queues: list[list[Client]]) -> None:
    """Each queue's clients ask one after the other, the queues side by side. Raises `TurnFailed` in a group."""

    async def one(queue: list[Client]) -> None:
        for client in queue:
            await client.turn("Hello")

    async with asyncio.TaskGroup() as group:
        for queue in queues:
            group.create_task(one(queue))
