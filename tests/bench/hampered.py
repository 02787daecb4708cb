"""A service as it is run, with one thing made slow or otherwise: what `tests.bench.verdict`, `kpi_cost`, `collector`
and `memory` start.

    CONFIG_FILE=… python -m tests.bench.hampered agentic --disk-ms 400      each flush of the spool takes 400 ms longer
    CONFIG_FILE=… python -m tests.bench.hampered agentic --without-kpi      nothing is observed: the control of an A/B
    CONFIG_FILE=… python -m tests.bench.hampered agentic --collector 700,10,10   other thresholds of the collector
    CONFIG_FILE=… python -m tests.bench.hampered knowledge --rerank-ms 600  each rerank takes 600 ms longer

Nothing else of the service is changed; without a flag it is the service itself.
"""

import argparse
import gc
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any


class SlowDisk:
    """A SQLite connection whose flushed commits take longer: in the writer's thread, as on a slow disk."""

    def __init__(self, connection: sqlite3.Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._flushes = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA synchronous"):
            self._flushes = statement.endswith("FULL")
        if statement == "COMMIT" and self._flushes:
            time.sleep(self._seconds)
        return self._connection.execute(statement, *parameters)


def slow_disk(seconds: float) -> None:
    """Let every spool that is opened from now on be on a slow disk."""
    from agentic_backend.spool.spool import Spool
    from agentic_backend.spool.spoolfile import connect

    def connect_slowly(path: Path) -> SlowDisk:
        return SlowDisk(connect(path), seconds)

    defaults = Spool.__init__.__kwdefaults__
    assert defaults is not None
    defaults["connect_to"] = connect_slowly


def silent() -> None:
    """Let nothing be observed: no phase, no rollup, no Prometheus child, no sampler, no summary, no turn's account."""
    from agentic_backend.session.turn_report import TurnReports
    from agentic_backend.ticker import Ticker
    from backend_kit.kpi import core, exposition, loop, summary

    nothing: Any = lambda *_, **__: None  # noqa: E731 - put in many places
    for kind in (core.Timer, core.Gauge, core.Counter, core.GaugedSeconds, core.Amounts):
        for method in ("observe", "observe_seconds", "set", "inc", "dec"):
            if hasattr(kind, method):
                setattr(kind, method, nothing)
    for beside in (loop.LoopMonitor, summary.Summary, exposition.GcPauses):
        setattr(beside, "start", nothing)  # noqa: B010 - a method of theirs
    places: list[tuple[type, str, Any]] = [
        (core.Kpi, "phase", lambda *_: nullcontext()),
        (core.Kpi, "record_phase", nothing),
        (TurnReports, "begin", nothing),
        (TurnReports, "ended", nothing),
        (Ticker, "tick", nothing),
        (Ticker, "judge", nothing),
    ]
    for owner, method, substitute in places:
        setattr(owner, method, substitute)


def slow_rerank(seconds: float) -> None:
    """Let each rerank compute for longer, in its thread."""
    from knowledge_flow_backend import wiring
    from knowledge_flow_backend.rerank.bm25 import bm25
    from knowledge_flow_backend.rerank.local import LocalReranker

    def slowly(question: str, texts: Sequence[str]) -> list[float]:
        time.sleep(seconds)
        return bm25(question, texts)

    class SlowReranker(LocalReranker):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named, word_scores=slowly)

    vars(wiring)["LocalReranker"] = SlowReranker


def collect_otherwise(thresholds: tuple[int, ...], *, freeze: bool) -> None:
    """Other thresholds of the garbage collector after the start, or none (0), with or without its freeze."""
    from backend_kit import service

    def configure() -> None:
        gc.collect()
        if freeze:
            gc.freeze()
        gc.set_threshold(*thresholds)

    vars(service)["_freeze_gc"] = configure


def main() -> int:
    """Hamper, then serve."""
    parser = argparse.ArgumentParser(description="A service with one thing made slow.")
    parser.add_argument("service", choices=("agentic", "knowledge"))
    parser.add_argument("--disk-ms", type=float, default=0.0)
    parser.add_argument("--rerank-ms", type=float, default=0.0)
    parser.add_argument("--without-kpi", action="store_true")
    parser.add_argument("--collector", default="", help="its thresholds: 700,10,10 are Python's, 0 turns it off")
    parser.add_argument("--no-freeze", action="store_true", help="with --collector")
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # the service has arguments of its own
    if options.disk_ms:
        slow_disk(options.disk_ms / 1e3)
    if options.rerank_ms:
        slow_rerank(options.rerank_ms / 1e3)
    if options.without_kpi:
        silent()
    if options.collector:
        collect_otherwise(tuple(map(int, options.collector.split(","))), freeze=not options.no_freeze)
    if options.service == "agentic":
        from agentic_backend.__main__ import main as serve
    else:
        from knowledge_flow_backend.__main__ import main as serve
    return serve()


if __name__ == "__main__":
    sys.exit(main())
