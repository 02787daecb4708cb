"""The door of LangGraph's clients beside LangGraph's own development server: the same graph, model, clients and core.

Hypothesis: with one client a run takes at most 25 ms longer than its model, and at most a tenth of what the reference
server adds; with 32 clients the service ends at least three times as many runs a second, and a run costs it at most
0.85 of the CPU, of which the graph and its `ChatOpenAI` take most on either.
Control: `langgraph dev` (PyPI `langgraph-api`, as langgraph.txt pins it), with as many jobs at a time as there are
clients, and no reloading; and the model alone, asked by as many clients without anything between.
Command: `make bench-langgraph` (`--short`: two rounds, bounds five times as wide; `--only ours` without the reference).

Both host tests/bench/plain_graph.py as it is: one model call by `ChatOpenAI`, whose model, ours, takes 150 ms. Both are
asked by the same engine (`ws_bench run -engine langgraph`), in turn, round by round, each on the core of services by
itself while the other one is idle. Figures are medians of the rounds. Ours stores each turn in Postgres and has its
spool; the reference keeps all in memory. It is installed below .tools by the first run, for this bench alone: its
licence is Elastic's.
"""

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import uvloop

from tests.bench.bench import Verdicts, pinned_to
from tests.bench.deployment import Deployment, cpu_s, deployed
from tests.bench.turn import hosting, print_stage, with_ack
from tests.doors.clients.__main__ import PLACE, ClientFailed, install_pinned, running
from tests.support.ports import free_port
from tests.support.processes import ROOT
from ws_bench.config.flags import parse_run_flags
from ws_bench.load.rounds import Case, CaseSeries, run_rounds

MODEL_MS = 150
MODEL = f"mock;floor={MODEL_MS};tokens=20"
LEVELS = (1, 8, 32)
TURNS = 10
ADDED_BOUND_MS = 25.0
ADDED_SHARE_BOUND = 0.1
RATE_BOUND = 3.0
CPU_BOUND = 0.85
OURS, REFERENCE, ALONE = "ours", "langgraph dev", "model alone"
GRAPH = ROOT / "tests/bench/plain_graph.py"
PINS = ROOT / "tests/bench/langgraph.txt"


def graph_variables(deployment: Deployment) -> dict[str, str]:
    """What the graph is told of its model, on either server."""
    return {"PLAIN_GRAPH_MODEL": MODEL, "PLAIN_GRAPH_MODEL_URL": deployment.model_url}


@dataclass(frozen=True, slots=True)
class Host:
    """A server with the graph: where it is, and its process."""

    url: str
    pid: int


@dataclass(slots=True)
class Measured:
    """What the rounds of a case showed; `cpu_ms` is that of the server a run, sessions included, one a round."""

    series: CaseSeries = field(default_factory=CaseSeries)
    cpu_ms: list[float] = field(default_factory=list)


def ours(deployment: Deployment) -> Host:
    """The service with the graph as an agent."""
    change = hosting(with_ack(deployment, "langgraph", "spool"))
    server = deployment.service("langgraph", MODEL, change=change, variables=graph_variables(deployment))
    return Host(f"http://127.0.0.1:{server.target.port}", server.process.pid)


@contextmanager
def reference(deployment: Deployment) -> Iterator[Host]:
    """The reference server with the same graph. Raises `ClientFailed`."""
    home = ROOT / PLACE / "langgraph-api"
    install_pinned(home, PINS)
    place = deployment.work / "reference"
    place.mkdir()
    shutil.copy(GRAPH, place / "graph.py")
    config = place / "langgraph.json"
    config.write_text(json.dumps({"dependencies": ["."], "graphs": {"Georges": "./graph.py:graph"}}))
    port = free_port()
    command = [str(home / "bin/langgraph"), "dev", "--config", str(config), "--port", str(port)]
    command += ["--no-browser", "--no-reload", "--n-jobs-per-worker", str(max(LEVELS))]
    variables = {**graph_variables(deployment), "LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    with (
        pinned_to(deployment.service_cores),
        running(command, variables, port, place / "server.log", place) as pid,
        pinned_to(deployment.other_cores),
    ):
        yield Host(f"http://127.0.0.1:{port}", pid)


def cases_of(hosts: Mapping[str, Host], deployment: Deployment) -> list[tuple[Case, Host | None]]:
    """Each server under each number of clients, and the model without one."""
    cases: list[tuple[Case, Host | None]] = []
    for clients in LEVELS:
        load = [f"-clients={clients}", f"-requests-per-client={TURNS}", "-ramp-duration=0", "-token=local"]
        for name, host in hosts.items():
            flags = ["-engine=langgraph", f"-url={host.url}", "-agent=Georges"]
            cases.append((Case(titled(name, clients), parse_run_flags([*flags, *load])), host))
        url = f"{deployment.model_url}/chat/completions"
        flags = ["-engine=openai", f"-url={url}", f"-agent={MODEL}", "-create-session=false"]
        cases.append((Case(titled(ALONE, clients), parse_run_flags([*flags, *load])), None))
    return cases


def titled(name: str, clients: int) -> str:
    """The name of a case."""
    return f"{name}, {clients} client{'s' if clients > 1 else ''}"


def print_table(found: Mapping[str, Measured], names: Sequence[str]) -> None:
    """A line for each server under each load; `added` is beyond the model alone."""
    head = ("server", "runs/s", "p50 ms", "p95 ms", "first token", "added ms", "CPU ms/run", "failed")
    print("\n{:28} {:>8} {:>9} {:>9} {:>12} {:>9} {:>11} {:>7}".format(*head))
    for clients in LEVELS:
        for name in (*names, ALONE):
            measured = found[titled(name, clients)]
            one, cpu_ms = measured.series, median(measured.cpu_ms or [0.0])
            figures = [one.middle(what) or 0.0 for what in ("turns_per_s", "p50_ms", "p95_ms", "first_ms")]
            figures.append(one.added(found[titled(ALONE, clients)].series) or 0.0)
            rate, p50, p95, first, added = figures
            failed = sum(one.failures.values())
            title = titled(name, clients)
            print(f"{title:28} {rate:8.1f} {p50:9.1f} {p95:9.1f} {first:12.1f} {added:9.1f} {cpu_ms:11.1f} {failed:7}")
            if one.limited:
                print(f"! {title}: the load was the limit")
            for kind, count in one.failures.items():
                print(f"! {title}: {kind} x {count}")
    print()


def hold(found: Mapping[str, Measured], names: Sequence[str], slack: float) -> Verdicts:
    """What is asked of ours, and beside the reference."""
    verdicts = Verdicts()
    series = {name: one.series for name, one in found.items()}
    failed = sum(sum(one.failures.values()) for one in series.values())
    verdicts.hold("failed runs", failed, 0, "")
    few, many = LEVELS[0], LEVELS[-1]
    added = {name: added_ms(series, name, few) for name in names}
    verdicts.hold(f"{few} client: ours above the model", added[OURS], ADDED_BOUND_MS * slack, "ms")
    if REFERENCE in names:
        share = added[OURS] / added[REFERENCE]
        verdicts.hold(f"{few} client: added, ours / reference", share, ADDED_SHARE_BOUND * slack, "x")
        rates = series[titled(OURS, many)].ratios(series[titled(REFERENCE, many)], "turns_per_s")
        rate = median(rates or [0.0])
        verdicts.hold_at_least(f"{many} clients: runs/s, ours / reference", rate, RATE_BOUND / slack, "x")
        mine, theirs = (found[titled(name, many)].cpu_ms for name in (OURS, REFERENCE))
        ratios = [one / other for one, other in zip(mine, theirs, strict=False)]
        cpu = median(ratios or [float("inf")])
        verdicts.hold(f"{many} clients: CPU a run, ours / reference", cpu, CPU_BOUND * slack, "x")
    return verdicts


def added_ms(series: Mapping[str, CaseSeries], name: str, clients: int) -> float:
    """By how much longer a run takes than its model alone: p50, median of the rounds."""
    added = series[titled(name, clients)].added(series[titled(ALONE, clients)])
    return float("inf") if added is None else added


def main() -> int:
    """The comparison; 1 where a bound was missed, or the reference could not be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="two rounds, bounds five times as wide")
    parser.add_argument("--only", choices=("ours",), help="without the reference server, which is then not installed")
    parser.add_argument("--rounds", type=int, help="how often each takes its turn (default 5, short 2)")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.short else 5)
    print_stage()
    with deployed() as deployment:
        try:
            found, names = compare(deployment, rounds, alone=options.only is not None)
        except ClientFailed as error:
            print(f"the reference server: {error}")
            return 1
    print_table(found, names)
    verdicts = hold(found, names, 5.0 if options.short else 1.0)
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


def compare(deployment: Deployment, rounds: int, *, alone: bool) -> tuple[dict[str, Measured], list[str]]:
    """What all cases showed, and the servers that there are. Raises `ClientFailed`."""
    hosts = {OURS: ours(deployment)}
    if alone:
        return alternate(cases_of(hosts, deployment), rounds), [*hosts]
    with reference(deployment) as other:
        hosts[REFERENCE] = other
        return alternate(cases_of(hosts, deployment), rounds), [*hosts]


def alternate(cases: Sequence[tuple[Case, Host | None]], rounds: int) -> dict[str, Measured]:
    """Each case once a round, every other round in reverse."""
    found = {case.name: Measured() for case, _ in cases}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number in range(rounds):
            for case, host in cases if number % 2 == 0 else reversed(cases):
                take(runner, case, host, found[case.name])
    return found


def take(runner: asyncio.Runner, case: Case, host: Host | None, into: Measured) -> None:
    """Put the load of a case on its server once. Raises KeyboardInterrupt where somebody ended it."""
    before = cpu_s(host.pid) if host else 0.0
    series, interrupted = runner.run(run_rounds([case], 1, sys.argv))
    if interrupted:
        raise KeyboardInterrupt
    one = series[case.name]
    into.series.samples += one.samples
    into.series.limited = into.series.limited or one.limited
    for kind, count in one.failures.items():
        into.series.failures[kind] = into.series.failures.get(kind, 0) + count
    if host:
        into.cpu_ms.append((cpu_s(host.pid) - before) * 1e3 / (case.config.clients * TURNS))


if __name__ == "__main__":
    sys.exit(main())
