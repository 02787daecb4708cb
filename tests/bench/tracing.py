"""What traces cost: real processes with and without an endpoint, side by side; prints figure, bound and verdict.

    make bench-tracing            CPU a turn with each turn sent as a trace against none, and against an endpoint that
                                  is not there

Hypothesis: to encode the ledger of each turn and to send it costs at most 2 % of the CPU of a turn, and an endpoint
that nobody listens on no more: its queue is full, and then nothing is encoded. Control: the same service without an
endpoint, twice, so that the difference of two that are the same is seen as well. All of them serve at the same time, on
the same core: what a core does in a second differs by more than 2 % from one second to the next. They are started anew
several times, each time another one first, since a process keeps where its memory came to lie.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from tests.bench.bench import Verdicts, cores, cpu_s, pinned_to
from tests.bench.crowd import Crowd
from tests.bench.kpi_cost import STREAMED, Service, Stage
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

CONTROL, SAME = "without", "without, another"
_CLIENTS = 12
_WARM_S = 3.0


def cpu_ms_a_turn(services: Mapping[str, Service], seconds: float) -> dict[str, float]:
    """CPU of each process by the turns that it served, all of them at the same time. Raises RuntimeError if one served
    none."""
    crowds = {name: Crowd(_CLIENTS, seconds) for name in services}

    async def ask() -> None:
        async with asyncio.TaskGroup() as group:
            for name, service in services.items():
                group.create_task(crowds[name].run(service.port))

    before = {name: cpu_s(service.process.pid) for name, service in services.items()}
    with pinned_to(cores()[1]):
        asyncio.run(ask())
    costs = {}
    for name, service in services.items():
        if not crowds[name].latencies_s:
            raise RuntimeError(f"no turn succeeded: {dict(crowds[name].failures)}")
        costs[name] = (cpu_s(service.process.pid) - before[name]) * 1e3 / len(crowds[name].latencies_s)
    return costs


def main() -> int:
    """Both comparisons; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What traces cost.")
    parser.add_argument("--starts", type=int, default=8, help="how often the services are started (default 8)")
    parser.add_argument("--rounds", type=int, default=6, help="rounds between two starts (default 6)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a round (default 5)")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on the bounds, for noisy machines (default 1)")
    options = parser.parse_args()
    verdicts = Verdicts()
    with ExitStack() as stack:
        stage = Stage(stack)
        port = free_port()
        with pinned_to(cores()[1]):
            collector = stack.enter_context(ModuleProcess("tests.support.collector", "--port", str(port)))
        collector.wait_for_line("listening")
        where = {"traced": port, "endpoint not there": free_port(), CONTROL: None, SAME: None}
        costs: list[dict[str, float]] = []
        for start in range(options.starts):
            services = {}
            first = start % len(where)  # whoever begins may have it otherwise
            for place, name in enumerate([*where, *where][first : first + len(where)]):
                endpoint = where[name]
                more = {} if endpoint is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{endpoint}"}
                services[name] = stage.start(f"service_{start}_{place}", STREAMED, more=more)
            cpu_ms_a_turn(services, _WARM_S)
            costs += [cpu_ms_a_turn(services, options.seconds) for _ in range(options.rounds)]
            for service in services.values():
                service.process.stop()
    without = statistics.median(cost[CONTROL] for cost in costs)
    for name in (SAME, "endpoint not there", "traced"):
        ratios = sorted(cost[name] / cost[CONTROL] for cost in costs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"CPU a turn, {name} / {CONTROL} ({without:.3f} ms): quartiles {low:.3f} {middle:.3f} {high:.3f}")
        if name != SAME:
            verdicts.hold(f"CPU a turn, {name} / {CONTROL}", middle, 1 + 0.02 * options.slack, "x")
    print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
