"""What each layer of a turn costs: rungs from an echo to a turn with search and rerank, subtracted one from the next.

Hypothesis: no layer of ours is dear beside what it stands on. The graph costs at most 0.6 of a bare model call, the
durable record of a turn at most 0.35 of a turn without one, a search or a rerank at most as much as a turn without it.
Control: the rung below, on the same core, asked by the same clients, in turn, round by round; the difference is the
median of the rounds' own differences.
Command: `make bench-ladder` (`--short`: one round of short windows, bounds five times as wide).

    echo        our WebSocket server, which sends the frames of a streamed turn at the model's pace
    raw model   ws-baseline of the service: a turn of one model call, streamed; no session, no graph, nothing stored
    graph       Georges: session, LangGraph, memory of the session; the record of the turn is dropped
    + persist   the same with the spool before `final` and Postgres behind it
    + search    Rico without his reranker: knowledge flow embeds and searches 10,000 chunks, six passages in the prompt
    + rerank    Rico

The service is alone on one core; model, knowledge flow, Postgres and load share the others. Figures are CPU of the
agentic service a turn; that of knowledge flow and its workers stands beside it.
"""

import argparse
import asyncio
import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import uvloop

from tests.bench.bench import Verdicts
from tests.bench.deployment import BASE, Deployment, Server, deployed
from tests.bench.driver import Load, Target, clients
from tests.bench.measured import Series, sample
from tests.bench.rico import knowledge_file, seed
from tests.bench.turn import RATE, TOKENS, print_stage, with_ack
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

GRAPH_BOUND, PERSIST_BOUND, SEARCH_BOUND, RERANK_BOUND = 1.6, 1.35, 2.0, 2.0


@dataclass(frozen=True, slots=True)
class Mode:
    """How the load comes: token gap in ms, clients, and turns a second (None: as many as they can)."""

    title: str
    gap_ms: int
    clients: int
    rate: float | None


MODES = (
    Mode("saturated", gap_ms=5, clients=100, rate=None),
    Mode(f"{RATE:.0f} turns/s", gap_ms=20, clients=64, rate=RATE),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how often, and how much wider than the full run's the bounds are."""

    seconds: float
    warm_s: float
    rounds: int
    slack: float


FULL = Size(seconds=8.0, warm_s=2.0, rounds=4, slack=1.0)
SHORT = Size(seconds=3.0, warm_s=1.0, rounds=1, slack=5.0)


@dataclass(frozen=True, slots=True)
class Rungs:
    """The servers of the ladder from the bottom up, the questions for all, and knowledge flow's process."""

    servers: tuple[Server, ...]
    questions: tuple[str, ...]
    knowledge: ModuleProcess


def start_rungs(deployment: Deployment, mode: Mode) -> Rungs:
    """Everything that the ladder needs, in four processes."""
    knowledge, url, questions = start_knowledge(deployment)
    port = free_port()
    paced = ("--port", str(port), "--tokens", str(TOKENS), "--gap-ms", str(mode.gap_ms))
    ready = f"http://127.0.0.1:{port}/ready"
    echo = deployment.start("tests.bench.rungs.echo", *paced, ready=ready, environment={})
    model = f"mock;gap={mode.gap_ms};tokens={TOKENS}"

    def change(config: dict[str, Any]) -> None:
        with_ack(deployment, "service", "spool")(config)
        config["ai"]["knowledge_flow_url"] = url
        rico = next(agent for agent in config["ai"]["agents"] if agent["id"] == "Rico")
        config["ai"]["agents"].append(
            {**rico, "id": "Searcher", "name": "Searcher", "class_path": "tests.bench.rungs.search_only"}
        )

    unstored = deployment.service(
        "unstored", model, module="tests.bench.rungs.unstored", change=with_ack(deployment, "unstored", "none")
    )
    service = deployment.service("service", model, change=change)
    baseline = Target("raw model", service.target.port, f"{BASE}/chatbot/query/ws-baseline", native=True)
    servers = (
        Server(Target("echo", port, "/", native=True), echo, ""),
        replace(service, target=baseline),
        replace(unstored, target=replace(unstored.target, name="graph")),
        replace(service, target=replace(service.target, name="+ persist")),
        replace(service, target=replace(service.target, name="+ search", agent="Searcher")),
        replace(service, target=replace(service.target, name="+ rerank", agent="Rico")),
    )
    return Rungs(servers, questions, knowledge)


def start_knowledge(deployment: Deployment) -> tuple[ModuleProcess, str, tuple[str, ...]]:
    """Knowledge flow over seeded chunks on the other cores: its process, its URL, and questions for it."""
    deployment.database("knowledge")
    config, port = knowledge_file(deployment.work, deployment.storage("knowledge"), deployment.model_url, workers=1)
    lines = deployment.work / "questions.txt"
    seed(config, lines)
    environment = {"CONFIG_FILE": str(config), "TURNWISE_HOME": str(deployment.work)}
    url = f"http://127.0.0.1:{port}/knowledge-flow/v1"
    process = deployment.start_beside("knowledge_flow_backend", ready=f"{url}/ready", environment=environment)
    return process, url, tuple(Path(lines).read_text().splitlines())


def climb(mode: Mode, size: Size) -> dict[str, Series]:
    """Measure every rung, round by round."""
    print(f"\n== {mode.title}: {mode.clients} clients, a token each {mode.gap_ms} ms, {size.rounds} x {size.seconds} s")
    load = Load(mode.clients, size.seconds, size.warm_s, mode.rate)
    with deployed() as deployment:
        rungs = start_rungs(deployment, mode)
        check(rungs.servers, rungs.questions[0])
        parent = psutil.Process(rungs.knowledge.pid)
        beside = (parent.pid, *(child.pid for child in parent.children(recursive=True)))
        questions = itertools.cycle(rungs.questions)
        series = {server.name: Series([]) for server in rungs.servers}
        for _ in range(size.rounds):
            for server in rungs.servers:
                series[server.name].samples.append(sample(deployment, server, load, questions=questions, beside=beside))
    print_table(series)
    return series


def check(servers: tuple[Server, ...], question: str) -> None:
    """Each rung does what its name says and no more, or the bench ends here."""

    async def asked(server: Server) -> list[str]:
        async with clients(server.target, 1) as (client,):
            return await client.turn(question)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for server in servers:
            frames = runner.run(asked(server))
            searched = any(frame.startswith('{"type":"sources"') for frame in frames)
            reranked = searched and '"rerank":"skipped"' not in frames[-1]
            wanted = (server.name in ("+ search", "+ rerank"), server.name == "+ rerank")
            if (searched, reranked) != wanted:
                raise SystemExit(f"{server.name} is not what it should be: searched {searched}, reranked {reranked}")


def print_table(series: dict[str, Series]) -> None:
    """One line a rung; `added` is against the one below."""
    head = ("rung", "CPU ms/turn", "spread", "added ms", "x below", "turns/s", "p50 ms", "p99 ms", "knowledge ms")
    print("{:12} {:>11} {:>13} {:>9} {:>8} {:>8} {:>8} {:>8} {:>13}  doubts".format(*head))
    below: Series | None = None
    for name, one in series.items():
        added = f"{added_ms(one, below):9.2f} {one.ratio(below):8.2f}" if below else f"{'':9} {'':8}"
        print(
            f"{name:12} {one.cpu_ms:11.2f} {one.spread:>13} {added} {one.middle('turns_per_s'):8.1f} "
            f"{one.middle('p50_ms'):8.1f} {one.middle('p99_ms'):8.1f} {one.middle('beside_ms'):13.2f}  {one.doubts}"
        )
        below = one


def added_ms(one: Series, below: Series) -> float:
    """What a rung adds to the one below it: median over the rounds, each a moment apart."""
    pairs = zip(one.samples, below.samples, strict=True)
    return median(upper.cpu_ms - lower.cpu_ms for upper, lower in pairs)


def hold(mode: Mode, series: dict[str, Series], verdicts: Verdicts, slack: float) -> None:
    """Each rung against the one below, and nothing failed."""
    names = list(series)
    for name, bound in zip(names[2:], (GRAPH_BOUND, PERSIST_BOUND, SEARCH_BOUND, RERANK_BOUND), strict=True):
        below = names[names.index(name) - 1]
        verdicts.hold(f"{mode.title}: {name} / {below}", series[name].ratio(series[below]), bound * slack, "x")
    failures = [f"{name}: {failure}" for name, one in series.items() for failure in one.failures]
    for failure in failures[:5]:
        print(failure[:300])
    verdicts.hold(f"{mode.title}: failed turns", len(failures), 0, "turns")


def main() -> int:
    """Both modes; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--short", action="store_true", help="saturated alone, one short round, bounds five times wider"
    )
    options = parser.parse_args()
    size = SHORT if options.short else FULL
    verdicts = Verdicts()
    print_stage()
    climbed = [(mode, climb(mode, size)) for mode in (MODES[:1] if options.short else MODES)]
    print()
    for mode, series in climbed:
        hold(mode, series, verdicts, size.slack)
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
