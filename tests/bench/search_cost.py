"""What one search costs: latency, and CPU of this side and of Postgres, by policy, on the seeded index.

    python -m tests.bench.seed_chunks --config FILE --questions /tmp/questions.txt
    python -m tests.bench.search_cost --config FILE --questions /tmp/questions.txt --searches 300

Searches one after the other through the index port, without HTTP and without a model: the vectors are the mock's,
computed before the clock starts. CPU of Postgres is that of its processes, which must be on this machine. The line
`calibration` is the time of a fixed piece of Python: compare figures of two machines by it.
"""

import argparse
import asyncio
import os
import time
from pathlib import Path

import numpy as np
import psutil
import uvloop
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi
from backend_kit.kpi.rollup import nearest_rank
from backend_kit.settings import load
from knowledge_flow_backend.engines.pgvector.index import PgVectorIndex
from knowledge_flow_backend.index import IndexQuery, Policy, Reader, Vector
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.bench.seed_chunks import LIBRARY_ID, OWNER
from ws_bench.fakes.embedding import embed

WARM_UP = 20


def calibration() -> float:
    """Milliseconds of a fixed loop, the best of five."""
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        sum(number * number % 7 for number in range(200_000))
        best = min(best, time.perf_counter() - begun)
    return best * 1e3


def postgres_cpu() -> float:
    """CPU seconds of all Postgres processes of this machine that are alive."""
    total = 0.0
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if process.info["name"] == "postgres" and times is not None:
            total += times.user + times.system
    return total


async def measure(index: PgVectorIndex, policy: Policy, questions: list[str], libraries: tuple[str, ...] | None) -> str:
    """One line of the table."""
    vectors = [np.array(embed(question), dtype=np.float32) for question in questions]
    took: list[float] = []
    own, theirs = 0.0, 0.0
    for number, (question, vector) in enumerate(zip(questions, vectors, strict=True)):
        if number == WARM_UP:
            own, theirs = time.process_time(), postgres_cpu()

        async def embedded(vector: Vector = vector) -> Vector:
            return vector

        query = IndexQuery(question, policy, Reader(OWNER), limit=10, candidates=50, libraries=libraries)
        begun = time.perf_counter()
        await index.search(query, embedded)
        took.append((time.perf_counter() - begun) * 1e3)
    searches = len(questions) - WARM_UP
    own, theirs = (time.process_time() - own) / searches * 1e3, (postgres_cpu() - theirs) / searches * 1e3
    ordered = sorted(took[WARM_UP:])
    scope = "one library" if libraries else "all"
    return (
        f"{policy.value:9} {scope:12} p50={nearest_rank(ordered, 0.5):6.2f} p95={nearest_rank(ordered, 0.95):6.2f} ms"
        f"   cpu: service={own:5.2f} postgres={theirs:5.2f} ms"
    )


async def run(settings: KnowledgeFlowSettings, questions: list[str]) -> None:
    """The whole table."""
    kpi = Kpi(CollectorRegistry(), service="bench", phases=PHASES)
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    database = IndexDatabase(settings.storage.postgres, settings.storage.vector_store.index, metrics)
    await database.connect_until_ready()
    index = PgVectorIndex(database, model=settings.embedding_model.name, kpi=kpi)
    print(f"calibration {calibration():.1f} ms")
    for policy in Policy:
        for libraries in (None, (LIBRARY_ID,)):
            print(await measure(index, policy, questions, libraries))
    await database.aclose()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What one search costs.")
    parser.add_argument("--config", type=Path, default=Path("config/knowledge_flow/configuration_bench.yaml"))
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--searches", type=int, default=300)
    options = parser.parse_args()
    lines = options.questions.read_text().splitlines()
    questions = [lines[number % len(lines)] for number in range(options.searches + WARM_UP)]
    settings = load(KnowledgeFlowSettings, options.config, os.environ)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, questions))


if __name__ == "__main__":
    main()
