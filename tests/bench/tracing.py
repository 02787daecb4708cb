"""What traces cost: real processes with and without an endpoint, side by side; prints figure, bound and verdict.

    make bench-tracing            CPU a turn with each turn sent as a trace against none, and against an endpoint that
                                  is not there

Hypothesis: to encode the ledger of each turn and to send it costs at most 2 % of the CPU of a turn, and an endpoint
that nobody listens on no more: its queue is full, and then nothing is encoded. Control: the same service without an
endpoint. All of them serve at the same time, on the same core: what a core does in a second differs by more than 2 %
from one second to the next. There are two of each kind, so that the difference of two that are the same is seen as
well. They are started anew several times, each time another one first, since a process keeps where its memory came to
lie. A ratio is one of sums: all CPU of a kind by all of its turns.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench.bench import Verdicts, cores, cpu_s, pinned_to
from tests.bench.crowd import Crowd
from tests.bench.kpi_cost import STREAMED, Service, Stage
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

CONTROL, ABSENT, TRACED = "without", "endpoint not there", "traced"
_OF_EACH = 2
_CLIENTS = 16
_THINK_S = 0.6
"""Turns of one length, one right after the other, keep their step: where tokens of several come at once by chance, they
cost less for as long as the process runs."""
_WARM_S = 5.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process used, in CPU seconds, and the turns that it served for it."""

    cpu_s: float
    turns: int


def ms_a_turn(costs: Iterable[Cost]) -> float:
    """All CPU by all turns, in ms."""
    kept = list(costs)
    return sum(cost.cpu_s for cost in kept) * 1e3 / sum(cost.turns for cost in kept)


Start = Mapping[str, Sequence[Cost]]
"""By kind, what each of its processes cost."""


def serve(services: Mapping[str, Sequence[Service]], seconds: float) -> Start:
    """Let all of them serve at the same time. Raises RuntimeError if one served no turn."""
    pids = {service.port: service.process.pid for of_kind in services.values() for service in of_kind}
    crowds = {port: Crowd(_CLIENTS, seconds, think_s=_THINK_S) for port in pids}

    async def ask() -> None:
        async with asyncio.TaskGroup() as group:
            for port, crowd in crowds.items():
                group.create_task(crowd.run(port))

    before = {port: cpu_s(pid) for port, pid in pids.items()}
    with pinned_to(cores()[1]):
        asyncio.run(ask())
    costs = {}
    for port, crowd in crowds.items():
        if not crowd.latencies_s:
            raise RuntimeError(f"no turn succeeded: {dict(crowd.failures)}")
        costs[port] = Cost(cpu_s(pids[port]) - before[port], len(crowd.latencies_s))
    return {kind: [costs[service.port] for service in of_kind] for kind, of_kind in services.items()}


def run_start(stage: Stage, number: int, endpoints: Mapping[str, str | None], seconds: float) -> Start:
    """Start two of each kind, another one first each time; warm them, and measure once."""
    kinds = [*endpoints] * _OF_EACH
    first = number % len(kinds)
    services: dict[str, list[Service]] = {kind: [] for kind in endpoints}
    for place, kind in enumerate(kinds[first:] + kinds[:first]):
        endpoint = endpoints[kind]
        more = {} if endpoint is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        services[kind].append(stage.start(f"service_{number}_{place}", STREAMED, more=more))
    serve(services, _WARM_S)
    costs = serve(services, seconds)
    for of_kind in services.values():
        for service in of_kind:
            service.process.stop()
    return costs


def main() -> int:
    """Both comparisons; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What traces cost.")
    parser.add_argument("--starts", type=int, default=6, help="how often the services are started (default 6)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they serve each time (default 60)")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on the bounds, for noisy machines (default 1)")
    options = parser.parse_args()
    verdicts = Verdicts()
    starts: list[Start] = []
    with ExitStack() as stack:
        stage = Stage(stack)
        port = free_port()
        with pinned_to(cores()[1]):
            collector = stack.enter_context(ModuleProcess("tests.support.collector", "--port", str(port)))
        collector.wait_for_line("listening")
        endpoints = {
            TRACED: f"http://127.0.0.1:{port}",
            ABSENT: f"http://127.0.0.1:{free_port()}",
            CONTROL: None,
        }
        for number in range(options.starts):
            start = run_start(stage, number, endpoints, options.seconds)
            starts.append(start)
            without = ms_a_turn(start[CONTROL])
            same = [f"{kind} {ms_a_turn([one]) / ms_a_turn([other]):.3f}" for kind, (one, other) in start.items()]
            ratios = [f"{kind} {ms_a_turn(start[kind]) / without:.3f}" for kind in (ABSENT, TRACED)]
            print(f"start {number + 1}: {', '.join(ratios)}; one / the other of a kind: {', '.join(same)}", flush=True)
    of_kind = {kind: ms_a_turn(cost for start in starts for cost in start[kind]) for kind in endpoints}
    print(f"CPU a turn, ms: {', '.join(f'{kind} {cost:.3f}' for kind, cost in of_kind.items())}")
    for kind in (ABSENT, TRACED):
        verdicts.hold(
            f"CPU a turn, {kind} / {CONTROL}", of_kind[kind] / of_kind[CONTROL], 1 + 0.02 * options.slack, "x"
        )
    print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
