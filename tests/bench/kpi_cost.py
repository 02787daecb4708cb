"""What watching costs: real processes with and without it, interleaved; prints figure, bound and verdict.

    make bench-kpi            CPU a turn with everything observed against nothing observed, what a scrape a second does
                              to turns, and how much of a turn no phase accounts for

Hypothesis: observing costs at most 5 % of the CPU of a turn, a scrape each second moves the p99 of turns by at most
5 ms, and the ledger leaves at most 1 ms of a turn (p95: 3 ms) with one client, 10 % of the overhead with 150. Control:
the same service with nothing observed (`tests.bench.hampered --without-kpi`), and the same service unscraped; pairs of
rounds, one right after the other, their order changing.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psycopg
import yaml

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.bench import Verdicts, cores, cpu_s, pinned_to
from tests.bench.crowd import BASE, Crowd
from tests.bench.rico import NO_OVERRIDES, ROOT, written
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from turnwise.postgres import USER, EmbeddedPostgres

INSTANT = "mock;tokens=20"
STREAMED = "mock;ttft=200;gap=20;tokens=21"
"""The published bench's answer, which begins sooner: one wake a token, as models stream."""
PACED = "mock;floor=300;tokens=20"


@dataclass(frozen=True, slots=True)
class Service:
    """One agentic process."""

    process: ModuleProcess
    port: int
    metrics_port: int


class Stage:
    """Postgres with a database for each service, since two services of one database are refused."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        directory = public_directory("turnwise-kpi-")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        self._work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-kpi-")))
        self._mine, others = cores()
        with pinned_to(others):
            self._postgres = EmbeddedPostgres(directory, free_port(), durable=False)
            self._postgres.start()
            stack.callback(self._postgres.stop)
            model_port = free_port()
            arguments = ("mock-llm", "--port", str(model_port))
            stack.enter_context(ModuleProcess("ws_bench", *arguments)).wait_for_line("listening")
        self._model_url = f"http://127.0.0.1:{model_port}/v1"

    def start(self, name: str, model: str, *flags: str, more: Mapping[str, str] | None = None) -> Service:
        """The service with a database of that name, alone on its core but for the other one; `more` are variables."""
        with psycopg.connect(
            host="127.0.0.1", port=self._postgres.port, user=USER, dbname="turnwise", autocommit=True
        ) as admin:
            admin.execute(f'CREATE DATABASE "{name}"')
        config = yaml.safe_load((ROOT / "config/agentic/configuration_bench.yaml").read_text())
        port, metrics_port = free_port(), free_port()
        config["app"] |= {"port": port, "metrics_port": metrics_port}
        config["ai"]["default_chat_model"]["name"] = model
        config["ai"]["default_chat_model"]["settings"]["base_url"] = self._model_url
        where = {"host": "127.0.0.1", "port": self._postgres.port, "username": USER, "database": name}
        config["storage"]["postgres"] |= where
        config["persistence"] |= {"spool_dir": str(self._work / name)}
        file = written(self._work / f"{name}.yaml", config)
        environment = {**NO_OVERRIDES, "CONFIG_FILE": str(file), **(more or {})}
        with pinned_to(self._mine):
            process = ModuleProcess("tests.bench.hampered", "agentic", *flags, env=environment)
            self._stack.enter_context(process)
        process.wait_for_http(f"http://127.0.0.1:{port}{BASE}/ready", 60.0)
        return Service(process, port, metrics_port)


def loaded(service: Service, clients: int, seconds: float) -> Crowd:
    """Some seconds of load from the other cores."""
    crowd = Crowd(clients, seconds)
    with pinned_to(cores()[1]):
        asyncio.run(crowd.run(service.port))
    if not crowd.latencies_s:
        raise RuntimeError(f"no turn succeeded: {dict(crowd.failures)}")
    return crowd


def cpu_ms_a_turn(service: Service, seconds: float) -> float:
    """CPU of the process by the turns it served meanwhile."""
    before = cpu_s(service.process.pid)
    crowd = loaded(service, 60, seconds)
    return (cpu_s(service.process.pid) - before) * 1e3 / len(crowd.latencies_s)


def compare_cpu(stage: Stage, pairs: int, seconds: float, verdicts: Verdicts, slack: float) -> None:
    """The A/B run."""
    watched, control = stage.start("watched", STREAMED), stage.start("control", STREAMED, "--without-kpi")
    for service in (watched, control):
        loaded(service, 60, 2.0)
    ratios, costs = [], []
    for number in range(pairs):
        order = (watched, control) if number % 2 else (control, watched)
        cost = {service.port: cpu_ms_a_turn(service, seconds) for service in order}
        costs.append((cost[watched.port], cost[control.port]))
        ratios.append(cost[watched.port] / cost[control.port])
    with_kpi, without = (statistics.median(column) for column in zip(*costs, strict=True))
    print(f"CPU a turn: {with_kpi:.3f} ms watched, {without:.3f} ms unwatched; ratios {_shown(ratios)}")
    verdicts.hold("CPU a turn, watched / unwatched", statistics.median(ratios), 1 + 0.05 * slack, "x")


@contextmanager
def scraped(service: Service, *, each_s: float) -> Iterator[None]:
    """A scrape each second from another process, as Prometheus does; none where `each_s` is 0."""
    if not each_s:
        yield
        return
    url = f"http://127.0.0.1:{service.metrics_port}/metrics"
    with pinned_to(cores()[1]), ModuleProcess("tests.bench.kpi_cost", "--scrape", url, "--each", str(each_s)):
        yield


async def scrape(url: str, each_s: float) -> None:
    """Fetch the metrics for ever."""
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(url, raise_for_status=True) as response:
                await response.read()
            await asyncio.sleep(each_s)


def compare_scraped(stage: Stage, pairs: int, seconds: float, verdicts: Verdicts, slack: float) -> None:
    """p99 of turns with a scrape a second, and without."""
    service = stage.start("scraped", PACED)
    loaded(service, 40, 2.0)
    moved = []
    for number in range(pairs):
        p99_ms = {}
        for each_s in (1.0, 0.0) if number % 2 else (0.0, 1.0):
            with scraped(service, each_s=each_s):
                crowd = loaded(service, 40, seconds)
            p99_ms[each_s] = nearest_rank(sorted(crowd.latencies_s), 0.99) * 1e3
        moved.append(p99_ms[1.0] - p99_ms[0.0])
    print(f"p99 of turns, scraped minus unscraped, ms: {_shown(moved)}")
    verdicts.hold("p99 moved by a scrape a second", statistics.median(moved), 5.0 * slack, "ms")


def measure_unattributed(stage: Stage, seconds: float, verdicts: Verdicts, slack: float) -> None:
    """What the ledgers leave, with one client and with 150."""
    service = stage.start("ledgers", INSTANT)
    loaded(service, 1, 2.0)
    alone = sorted(loaded(service, 1, seconds).unattributed_ms)
    verdicts.hold("unattributed, 1 client, p50", nearest_rank(alone, 0.5), 1.0 * slack, "ms")
    verdicts.hold("unattributed, 1 client, p95", nearest_rank(alone, 0.95), 3.0 * slack, "ms")
    crowd = loaded(service, 150, seconds)
    share = sum(crowd.unattributed_ms) / max(sum(crowd.overhead_ms), 1e-9)
    verdicts.hold("unattributed / overhead, 150 clients", share, 0.1 * slack, "")


def _shown(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def main() -> int:
    """All comparisons; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What watching costs.")
    parser.add_argument("--pairs", type=int, default=11, help="pairs of rounds (default 11)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a round (default 5)")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on the bounds, for noisy machines (default 1)")
    parser.add_argument("--scrape", help=argparse.SUPPRESS)
    parser.add_argument("--each", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scrape:
        asyncio.run(scrape(options.scrape, options.each))
        return 0
    verdicts = Verdicts()
    with ExitStack() as stack:
        stage = Stage(stack)
        compare_cpu(stage, options.pairs, options.seconds, verdicts, options.slack)
        compare_scraped(stage, options.pairs, options.seconds, verdicts, options.slack)
        measure_unattributed(stage, options.seconds, verdicts, options.slack)
    print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
