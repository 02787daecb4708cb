"""Search under load: Rico over 10,000 seeded chunks, one client and twenty at once, with one and two search workers.

Part of `make bench`. Nothing is pinned: agentic, knowledge flow, Postgres, the mock model and the load share the cores
of this machine, as a small installation does. The model answers in 0.1 s and embeds in 10 ms, both on the clock and not
on the CPU, so what queues is ours.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from turnwise.postgres import USER, EmbeddedPostgres

ROOT = Path(__file__).parents[2]
MODEL = "mock;ttft=80;gap=1;tokens=20"
EMBED_LATENCY = "10ms"
CHUNKS = 10_000
RATIO_BOUND = 3.5
NO_OVERRIDES = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "OPENAI_MODEL": ""}
_TIMER = re.compile(r"\[KPI\]\[SUMMARY\] timer app\.phase_latency_ms\|phase=(\S+) count=(\d+) avg=(\S+) .*?p95=(\S+)")


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs for one comparison."""

    agentic: ModuleProcess
    knowledge: ModuleProcess
    port: int
    questions: Path
    work: Path

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each service, workers included, and of Postgres."""
        ours = psutil.Process()
        postgres = [process for process in ours.children(recursive=True) if process.name() == "postgres"]
        groups = {"agentic": _family(self.agentic.pid), "knowledge flow": _family(self.knowledge.pid)}
        return {name: sum(map(_cpu_s, group)) for name, group in (groups | {"Postgres": postgres}).items()}


def run_rico(workers: int, *, clients: int, turns: int) -> tuple[float, dict[str, Any]]:
    """p95 of `clients` at once over the p50 of one client, and the larger run's result; prints what it saw."""
    print(f"\n== Rico: {CHUNKS} chunks, {workers} search worker(s), 1 x {turns} then {clients} x {turns}")
    with ExitStack() as stack:
        started = start(stack, workers)
        load(started, clients=2, turns=5)  # connections, plans and caches as in service
        alone = load(started, clients=1, turns=turns)
        before = started.cpu_s()
        crowd = load(started, clients=clients, turns=turns)
        after = started.cpu_s()
        print_run("1 client", alone)
        print_run(f"{clients} clients", crowd)
        done = max(crowd["counts"]["success"], 1)
        used = ", ".join(f"{name} {(after[name] - before[name]) * 1e3 / done:.1f} ms" for name in before)
        print(f"CPU a turn of {clients} clients (embedding is the mock's): {used}")
        started.agentic.stop()
        started.knowledge.stop()
        print_phases({"agentic": started.agentic.output, "knowledge": started.knowledge.output})
        return crowd["latency_ms"]["p95"] / alone["latency_ms"]["p50"], crowd


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # a worker of Postgres that has just ended
        return 0.0
    return float(times.user + times.system)


def start(stack: ExitStack, workers: int) -> Stack:
    """Postgres with seeded chunks, the mock model, both services; ended by `stack`."""
    directory = public_directory("turnwise-bench-")
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-bench-")))
    postgres = EmbeddedPostgres(directory, free_port(), durable=True)
    postgres.start()
    stack.callback(postgres.stop)
    model_port = free_port()
    arguments = ("mock-llm", "--port", str(model_port), "--embed-latency", EMBED_LATENCY)
    stack.enter_context(ModuleProcess("ws_bench", *arguments)).wait_for_line("listening")
    where = {"host": "127.0.0.1", "port": postgres.port, "username": USER, "database": "turnwise"}
    model_url = f"http://127.0.0.1:{model_port}/v1"
    knowledge_config, knowledge_port = knowledge_file(work, where, model_url, workers)
    questions = work / "questions.txt"
    seed(knowledge_config, questions)
    environment = {**NO_OVERRIDES, "TURNWISE_HOME": str(work)}
    knowledge = stack.enter_context(
        ModuleProcess("knowledge_flow_backend", env={**environment, "CONFIG_FILE": str(knowledge_config)})
    )
    knowledge.wait_for_http(f"http://127.0.0.1:{knowledge_port}/knowledge-flow/v1/ready", HANGS_S)
    agentic_config, port = agentic_file(work, where, model_url, knowledge_port)
    agentic = stack.enter_context(
        ModuleProcess("agentic_backend", env={**environment, "CONFIG_FILE": str(agentic_config)})
    )
    agentic.wait_for_http(f"http://127.0.0.1:{port}/agentic/v1/ready", HANGS_S)
    return Stack(agentic, knowledge, port, questions, work)


def knowledge_file(work: Path, where: dict[str, Any], model_url: str, workers: int) -> tuple[Path, int]:
    """The bench file of knowledge flow on free ports; its path and port."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "config/knowledge_flow/configuration_bench.yaml").read_text())
    port = free_port()
    config["app"] |= {"port": port, "metrics_enabled": False, "workers": workers}
    config["embedding_model"]["settings"]["base_url"] = model_url
    config["storage"]["postgres"] |= where
    return written(work / "knowledge.yaml", config), port


def agentic_file(work: Path, where: dict[str, Any], model_url: str, knowledge_port: int) -> tuple[Path, int]:
    """The bench file of the agentic service on free ports; its path and port."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "config/agentic/configuration_bench.yaml").read_text())
    port = free_port()
    config["app"] |= {"port": port, "metrics_enabled": False}
    config["ai"]["knowledge_flow_url"] = f"http://127.0.0.1:{knowledge_port}/knowledge-flow/v1"
    config["ai"]["default_chat_model"]["name"] = MODEL
    config["ai"]["default_chat_model"]["settings"]["base_url"] = model_url
    config["storage"]["postgres"] |= where
    return written(work / "agentic.yaml", config), port


def written(path: Path, config: dict[str, Any]) -> Path:
    """The file with the configuration in it."""
    path.write_text(yaml.safe_dump(config))
    return path


def seed(config: Path, questions: Path) -> None:
    """Fill the index and write the questions."""
    command = [sys.executable, "-m", "tests.bench.seed_chunks", "--config", str(config), "--chunks", str(CHUNKS)]
    subprocess.run([*command, "--questions", str(questions)], cwd=ROOT, check=True, timeout=HANGS_S)


def load(stack: Stack, *, clients: int, turns: int) -> dict[str, Any]:
    """Distinct questions to Rico, all clients at once; what ws_bench measured."""
    out = stack.work / "result.json"
    command = [
        *(sys.executable, "-m", "ws_bench", "-url", f"ws://127.0.0.1:{stack.port}/agentic/v1/chatbot/query/ws"),
        *("-agent", "Rico", "-prompts", str(stack.questions), "-clients", str(clients)),
        *("-requests-per-client", str(turns), "-ramp-duration", "0s", "-json", str(out)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False)
    if not out.exists():
        raise RuntimeError(f"ws_bench ended with {done.returncode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(out.read_text())
    if result["latency_ms"] is None:
        raise RuntimeError(f"no turn succeeded: {result['error_samples']}")
    return result


def print_run(name: str, result: dict[str, Any]) -> None:
    """One line: counts and percentiles."""
    latency, counts = result["latency_ms"], result["counts"]
    print(
        f"{name:12} {counts['success']:5} ok {counts['errors'] + counts['not_sent']:3} bad   "
        f"p50 {latency['p50']:8.1f}  p95 {latency['p95']:8.1f}  max {latency['max']:8.1f} ms"
    )


def print_phases(outputs: dict[str, str]) -> None:
    """Both services' phases in one table, over all their summaries; p95 is the median of the windows' own."""
    print(f"{'service':10} {'phase':24} {'count':>7} {'avg ms':>9} {'p95 ms':>9}")
    for service, output in outputs.items():
        found: dict[str, list[tuple[int, float, float]]] = {}
        for phase, count, average, p95 in _TIMER.findall(output):
            found.setdefault(phase, []).append((int(count), float(average), float(p95)))
        for phase, windows in sorted(found.items()):
            total = sum(count for count, _, _ in windows)
            average = sum(count * avg for count, avg, _ in windows) / total
            print(f"{service:10} {phase:24} {total:7} {average:9.2f} {statistics.median(w[2] for w in windows):9.2f}")
