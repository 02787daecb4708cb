"""The disk beside a bench: how long its fdatasync takes, and a commit on it, and a neighbour that keeps it busy.

    python -m tests.bench.disk probe DIRECTORY       4 KiB and an fdatasync each 20 ms; at SIGTERM the times as JSON
    python -m tests.bench.disk commits DSN           a question recorded as in a fleet each 100 ms; times as above
    python -m tests.bench.disk neighbour DIRECTORY   16 MiB and an fsync, again and again

A process of its own: a thread beside the load would wait for the load's lock, and call that the disk.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy.dialects.postgresql.psycopg import dialect

from agentic_backend.fleet.statements import RECORD_ASKS
from backend_kit.kpi.rollup import nearest_rank
from tests.support.processes import ModuleProcess

_EVERY_S = 0.02
_COMMITS_EVERY_S = 0.1
"""Few, so that they are seldom in the way of those that they are compared with."""
_QUESTION = "x" * 700
_OWN_LEASES = """
CREATE SCHEMA IF NOT EXISTS bench;
CREATE TABLE IF NOT EXISTS bench.session_lease (LIKE public.session_lease INCLUDING ALL);
SET search_path = bench;
INSERT INTO session_lease (session_id, holder, fence) VALUES ('s', 'me', 1) ON CONFLICT DO NOTHING
"""
_PIECE = bytes(4096)
_PIECES = 1024
"""After so many the file is written from its beginning again, as a log of SQLite's is."""
_MEBIBYTE = bytes(1 << 20)
_NEIGHBOUR_WRITES = 16


@dataclass(frozen=True, slots=True)
class Flushes:
    """What fdatasync, or a commit, took, in ms."""

    p50_ms: float
    p95_ms: float
    count: int

    def __str__(self) -> str:
        return f"fdatasync p50 {self.p50_ms:.2f}, p95 {self.p95_ms:.2f} ms ({self.count})"


def flushes(times_s: list[float]) -> Flushes:
    """Nearest-rank percentiles of at least one time."""
    ranked = sorted(times_s)
    return Flushes(nearest_rank(ranked, 0.50) * 1e3, nearest_rank(ranked, 0.95) * 1e3, len(ranked))


def time_flushes(directory: Path, stop: threading.Event | None = None, count: int | None = None) -> list[float]:
    """Write and flush until `stop` is set, or `count` times; the seconds of each fdatasync. At least one."""
    times: list[float] = []
    stop = stop or threading.Event()
    with tempfile.TemporaryFile(dir=directory) as file:
        number = file.fileno()
        while not times or not (stop.wait(_EVERY_S) or len(times) == count):
            os.pwrite(number, _PIECE, len(times) % _PIECES * len(_PIECE))
            begun = time.perf_counter()
            os.fdatasync(number)
            times.append(time.perf_counter() - begun)
    return times


def time_commits(dsn: str, stop: threading.Event) -> list[float]:
    """Record a question in a lease that is nobody's until `stop` is set; the seconds of each statement, which is
    committed with it. The database has the schema of the service."""
    times: list[float] = []
    statement = str(RECORD_ASKS.compile(dialect=dialect()))
    values = {"me": "me", "session_ids": ["s"], "fences": [1], "asks": [_QUESTION]}
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute(_OWN_LEASES, prepare=False)
        while not times or not stop.wait(_COMMITS_EVERY_S):
            begun = time.perf_counter()
            recorded = connection.execute(statement, values | {"exchange_ids": [f"e{len(times)}"]}).rowcount
            assert recorded == 1
            times.append(time.perf_counter() - begun)
    return times


class Probe:
    """Watches the disk of a directory, or commits to a database, while its block runs; `seen` is there afterwards."""

    def __init__(self, place: Path | str, role: str = "probe") -> None:
        """`role` is that of the command, `probe` or `commits`."""
        self._arguments = (role, str(place))
        self.seen = Flushes(0.0, 0.0, 0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Start the probe's process, on the cores of this one; end it with the block."""
        with ModuleProcess("tests.bench.disk", *self._arguments) as process:
            process.wait_for_line("ready")
            yield
            process.send(signal.SIGTERM)
            process.wait()
            self.seen = flushes(json.loads(process.output.splitlines()[-1]))


@contextmanager
def busy_disk(directory: Path) -> Iterator[None]:
    """A neighbour on the disk of a directory, on the cores of this process, while the block runs."""
    with ModuleProcess("tests.bench.disk", "neighbour", str(directory)) as process:
        process.wait_for_line("ready")
        yield


def _disturb(directory: Path, stop: threading.Event) -> None:
    with tempfile.TemporaryFile(dir=directory) as file:
        while not stop.is_set():
            for place in range(_NEIGHBOUR_WRITES):
                os.pwrite(file.fileno(), _MEBIBYTE, place * len(_MEBIBYTE))
            os.fsync(file.fileno())


def main() -> int:
    """Run one of them until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("probe", "commits", "neighbour"))
    parser.add_argument("place", help="a directory; of `commits` a DSN")
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("ready", flush=True)
    if options.role == "neighbour":
        _disturb(Path(options.place), stop)
        return 0
    times = time_commits(options.place, stop) if options.role == "commits" else time_flushes(Path(options.place), stop)
    print(json.dumps([round(one, 6) for one in times]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
