"""What traces cost: real processes with and without an endpoint, interleaved; prints figure, bound and verdict.

    make bench-tracing            CPU a turn with each turn sent as a trace against none, and against an endpoint that
                                  is not there

Hypothesis: to encode the ledger of each turn and to send it costs at most 2 % of the CPU of a turn, and an endpoint
that nobody listens on no more: its queue is full, and then nothing is encoded. Control: the same service without an
endpoint; pairs of rounds, one right after the other, their order changing.
"""

import argparse
import statistics
import sys
from contextlib import ExitStack

from tests.bench.bench import Verdicts, cores, pinned_to
from tests.bench.kpi_cost import STREAMED, Service, Stage, cpu_ms_a_turn, loaded
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess


def compare(name: str, with_it: Service, control: Service, options: argparse.Namespace, verdicts: Verdicts) -> None:
    """The A/B run of one service against the one without an endpoint."""
    ratios, costs = [], []
    for number in range(options.pairs):
        order = (with_it, control) if number % 2 else (control, with_it)
        cost = {service.port: cpu_ms_a_turn(service, options.seconds) for service in order}
        costs.append((cost[with_it.port], cost[control.port]))
        ratios.append(cost[with_it.port] / cost[control.port])
    traced, untraced = (statistics.median(column) for column in zip(*costs, strict=True))
    shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"CPU a turn: {traced:.3f} ms {name}, {untraced:.3f} ms without; ratios {shown}")
    verdicts.hold(f"CPU a turn, {name} / without", statistics.median(ratios), 1 + 0.02 * options.slack, "x")


def main() -> int:
    """Both comparisons; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What traces cost.")
    parser.add_argument("--pairs", type=int, default=11, help="pairs of rounds (default 11)")
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
        control = stage.start("control", STREAMED)
        loaded(control, 60, 2.0)
        for name, where in (("traced", port), ("endpoint not there", free_port())):
            there = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{where}"}
            with_it = stage.start(name.replace(" ", "_"), STREAMED, more=there)
            loaded(with_it, 60, 2.0)
            compare(name, with_it, control, options, verdicts)
    print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
