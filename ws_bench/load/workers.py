"""`-workers N`: the load divided among processes with one loop each, and their recordings merged."""

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend_kit.wire import InvalidJson, loads
from ws_bench.config.flags import RunConfig, config_as_json
from ws_bench.errors import PreparationFailed, UsageError
from ws_bench.load.live import Progress
from ws_bench.load.pacing import Interrupt
from ws_bench.load.run import StopSignals, observed
from ws_bench.load.server import ServerMonitor, server_view, verdict_of
from ws_bench.record.dialects import clock
from ws_bench.record.environment import environment
from ws_bench.record.postgres import PostgresMonitor
from ws_bench.record.processes import ProcessMonitor
from ws_bench.record.recorder import Recorder
from ws_bench.record.recording import Recording, load_recording, merge_recordings, window_of
from ws_bench.record.results import percentile

_OFF = ("-html=", "-csv=", "-md=", "-no-live", "-server-metrics=", "-postgres=", "-watch-pid=", "-abort-on-fail=false")


async def run_workers(config: RunConfig, argv: Sequence[str]) -> Recording:
    """Carry out a run in `config.workers` child processes; this one monitors the services and merges the
    results.

    The load begins in all of them once the last one is prepared. A first SIGINT or SIGTERM is forwarded, a second one
    kills the children. Raises `UsageError` for flags that need one process, and `PreparationFailed` if a child could
    not begin; the others then end without a load.
    """
    if config.gates.abort:
        raise UsageError("-abort-on-fail is for one worker")
    if config.clients < config.workers:
        raise UsageError("-workers cannot be more than -clients")
    interrupt = Interrupt(config.grace_s)
    with StopSignals(interrupt), tempfile.TemporaryDirectory(prefix="ws_bench-") as directory:
        async with AsyncExitStack() as stack:
            observe = config.observe
            postgres = await stack.enter_async_context(PostgresMonitor(observe.postgres, observe.metrics_urls))
            return await _WorkerProcesses(config, argv, interrupt, postgres, Path(directory)).execute()


class _WorkerProcesses:
    """The child processes of a run and what they have reported so far."""

    def __init__(
        self, config: RunConfig, argv: Sequence[str], interrupt: Interrupt, postgres: PostgresMonitor, directory: Path
    ) -> None:
        self._config = config
        self._argv = argv
        self._interrupt = interrupt
        self._postgres = postgres
        self._directory = directory
        self._recorder = Recorder(config.clients)
        self._started_unix = time.time()
        self._server = ServerMonitor(config, self._recorder)
        self._progress: dict[int, dict[str, Any]] = {}
        self._prepared: dict[int, asyncio.subprocess.Process] = {}
        self._begun: set[int] = set()
        self._ended = False

    async def execute(self) -> Recording:
        with ProcessMonitor(self._config.observe.pids, self._recorder.begin) as processes:
            async with observed(self._config.outputs, self._server, self._postgres, self._current_progress):
                failures = await asyncio.gather(
                    *(self._child(number) for number in range(self._config.workers)), return_exceptions=True
                )
        for failure in failures:
            if failure is not None:
                raise failure
        return self._join(processes.as_json())

    def _join(self, watched: dict[str, Any]) -> Recording:
        files = [file for file in map(self._file, range(self._config.workers)) if file.exists()]
        if not files:
            raise PreparationFailed("interrupted before a worker could begin")
        parts = [load_recording(str(file)) for file in files]
        merged = merge_recordings(parts)
        merged.config = config_as_json(self._config)
        merged.environment = environment(self._argv)
        merged.watched = watched
        merged.postgres = self._postgres.view
        # This process's clock began earlier than the children's common one.
        shift = self._started_unix - merged.started_unix
        log = self._server.log
        log.scrapes = [replace(scrape, at=scrape.at + shift) for scrape in log.scrapes]
        window = window_of(merged)
        merged.server = server_view(log, window)
        merged.verdict = verdict_of(log, window)
        return merged

    async def _child(self, number: int) -> None:
        """Start a child, read its reports, wait for its end. Raises `PreparationFailed` if it wrote no result.

        A child that was interrupted while it started has no result; the others' count.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ws_bench", "run", *self._argv, *_OFF, *worker_flags(self._config, number),
            f"-json={self._file(number)}", "-progress",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:
                stopping = group.create_task(self._forward_interrupt(process), name=f"stop-{number}")
                await self._read_reports(number, process)
                await process.wait()
                stopping.cancel()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        too_soon = self._interrupt.requested and process.returncode == -signal.SIGTERM
        if not self._file(number).exists() and not too_soon:
            self._interrupt.request()  # else the others wait for this one or measure a part of the load
            raise PreparationFailed(f"worker {number} ended with {process.returncode} and without a result")

    async def _forward_interrupt(self, process: asyncio.subprocess.Process) -> None:
        await self._interrupt.wait()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    async def _read_reports(self, number: int, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            try:
                report = loads(line)
            except InvalidJson:
                continue
            if report.get("ready"):
                self._child_is_ready(number, process)
            elif report.get("edge"):
                await self._edge(number, report["edge"])
            else:
                self._progress[number] = report

    def _child_is_ready(self, number: int, process: asyncio.subprocess.Process) -> None:
        """Start all children when the last one is prepared, by closing their inputs."""
        self._prepared[number] = process
        if len(self._prepared) == self._config.workers:
            for one in self._prepared.values():
                if one.stdin is not None:
                    one.stdin.close()

    async def _edge(self, number: int, which: str) -> None:
        """The steady window begins with the last child's and ends with the first child's."""
        if which == "begin":
            self._begun.add(number)
            if len(self._begun) == self._config.workers:
                self._server.scrape_now()
                await self._postgres.begin_window()
        elif not self._ended:
            self._ended = True
            self._server.scrape_now()
            await self._postgres.end_window()

    def _current_progress(self) -> Progress:
        return joined_progress(list(self._progress.values()), clock() - self._recorder.begin)

    def _file(self, number: int) -> Path:
        return self._directory / f"worker-{number}.json"


def worker_flags(config: RunConfig, number: int) -> list[str]:
    """The flags of one worker's share of a run. They are appended: the last of two equal flags wins."""
    load, odd, share = config.load, config.misbehaviour, 1 / config.workers
    flags = [
        "-workers=1",
        f"-clients={_part(config.clients, number, config.workers)}",
        f"-requests={_part(config.requests, number, config.workers)}",
        f"-seed={load.seed * config.workers + number}",
        f"-idle-clients={_part(odd.idle, number, config.workers)}",
        f"-burst={_part(odd.burst, number, config.workers)}",
    ]
    if load.open:
        stages = ",".join(f"{stage.rate * share!r}:{stage.seconds!r}s" for stage in load.stages)
        flags += ["-rate=", f"-stages={stages}", "-duration=0"]
    return flags


def joined_progress(parts: Sequence[dict[str, Any]], elapsed_s: float) -> Progress:
    """The children's progress as one: counts added, the median of the p50s and the highest p95."""
    errors: dict[str, int] = {}
    for part in parts:
        for name, count in part["errors"].items():
            errors[name] = errors.get(name, 0) + count
    left = [part["left_s"] for part in parts if part["left_s"] is not None]
    return Progress(
        elapsed_s=elapsed_s,
        done=sum(part["done"] for part in parts),
        total=sum(part["total"] for part in parts),
        active=sum(part["active"] for part in parts),
        in_flight=sum(part["in_flight"] for part in parts),
        turns_per_s=sum(part["turns_per_s"] for part in parts),
        p50_ms=percentile(sorted(part["p50_ms"] for part in parts), 0.5),
        p95_ms=max((part["p95_ms"] for part in parts), default=0.0),
        errors=errors,
        left_s=max(left, default=None),
    )


def _part(whole: int, number: int, workers: int) -> int:
    return whole // workers + (number < whole % workers)
