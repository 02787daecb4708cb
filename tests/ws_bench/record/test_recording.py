"""Recordings as files: nothing is lost on the way, and several become one."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend_kit.wire import dumps, loads
from tests.support.patience import PATIENCE_S
from tests.ws_bench.recordings import closed_run
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, finish, scripted_service, start_bench
from ws_bench.config.flags import parse_run_flags
from ws_bench.errors import UsageError
from ws_bench.load.workers import joined_progress, worker_flags
from ws_bench.record.recording import Recording, load_recording, merge_recordings
from ws_bench.record.results import TurnResult
from ws_bench.record.summary import RunReport, build_report
from ws_bench.report.report import result_json


def figures(report: RunReport) -> dict[str, Any]:
    return {name: value for name, value in result_json(report).items() if name not in ("recording", "generator")}


def test_a_result_file_gives_the_same_report_again() -> None:
    run = closed_run(3, argv=("-native",))
    run.turns.append(TurnResult(client=1, asked=0.1, ended=0.2, error="turn_timeout", detail="no final", intended=None))
    report = build_report(run)
    again = build_report(Recording.from_json(loads(dumps(result_json(report)))))
    first, second = figures(report), figures(again)
    assert first["counts"] == second["counts"]
    assert first["errors_by_class"] == second["errors_by_class"] == {"turn_timeout": 1}
    assert first["error_samples"] == second["error_samples"] == ["turn_timeout: no final"]
    assert second["latency_ms"]["p99"] == pytest.approx(first["latency_ms"]["p99"], abs=0.01)
    assert second["steady"]["turns"] == first["steady"]["turns"]
    assert second["frames_a_turn"] == first["frames_a_turn"]


def test_a_file_without_frames_is_read_and_has_none() -> None:
    result = loads(dumps(result_json(build_report(closed_run(3, argv=("-native",))))))
    assert result["frames_a_turn"]["max"] == 29
    del result["recording"]["turns"]["frames"]
    again = build_report(Recording.from_json(result))
    assert again.frames is None
    assert {turn.frames for turn in again.recording.turns} == {None}
    assert again.latency is not None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "turnwise.ws_bench.run", "schema_version": 1}'])
def test_what_is_no_result_of_this_version_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError):
        load_recording(str(path))


def test_merged_runs_have_one_clock_and_all_clients() -> None:
    one, two = closed_run(0, clients=5, turns=60), closed_run(2, clients=7, turns=40)
    merged = merge_recordings([one, two])
    assert merged.started_unix == one.started_unix
    assert merged.total == 5 * 60 + 7 * 40
    assert {turn.client for turn in merged.turns} == set(range(12))
    assert merged.config["clients"] == 12
    assert min(turn.asked for turn in merged.turns if turn.client >= 5) == pytest.approx(2.0)
    assert {turn.frames for turn in merged.turns if turn.client >= 5} == set(range(10, 17))
    report = build_report(merged)
    assert report.steady is not None
    assert report.steady.window.begin >= 2.0
    assert report.tally.success == merged.total


def test_runs_that_were_not_at_the_same_time_are_not_merged() -> None:
    with pytest.raises(UsageError, match="same time"):
        merge_recordings([closed_run(0), closed_run(5000)])


def test_workers_share_everything_that_is_a_load() -> None:
    config = parse_run_flags(
        ["-workers=3", "-clients=10", "-rate=30/s", "-duration=2s", "-idle-clients=4", "-burst=2"], {}
    )
    shares = [parse_run_flags(["-rate=30/s", *worker_flags(config, number)], {}) for number in range(3)]
    assert [share.clients for share in shares] == [4, 3, 3]
    assert [share.misbehaviour.idle for share in shares] == [2, 1, 1]
    assert [share.load.stages[-1].rate for share in shares] == pytest.approx([10, 10, 10])
    assert len({share.load.seed for share in shares}) == 3
    assert {share.workers for share in shares} == {1}


def test_the_progress_of_workers_is_added() -> None:
    part = {"done": 3, "total": 10, "active": 2, "in_flight": 1, "turns_per_s": 1.5, "p50_ms": 10, "p95_ms": 20,
            "errors": {"x": 1}, "left_s": 4.0, "elapsed_s": 2.0}  # fmt: skip
    joined = joined_progress([part, {**part, "p95_ms": 50, "left_s": None}], 2.0)
    assert (joined.done, joined.total, joined.errors, joined.p95_ms, joined.left_s) == (6, 20, {"x": 2}, 50, 4.0)


async def paced(service: ScriptedService, exchange: Exchange) -> None:
    await asyncio.sleep(0.03)
    await answer(service, exchange)


@pytest.mark.servers
async def test_workers_make_one_result_and_one_exit_code(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service:
        done = await bench(
            "-url", service.url, "-workers=2", "-clients=5", "-requests-per-client=12", "-ramp-duration=0s", "-json",
            str(out), "-threshold=turn_p50<1ms", "-live-interval=500ms", "-native",
        )  # fmt: skip
    assert done.code == 1, done.stderr
    result = json.loads(out.read_text())
    assert result["counts"] == {"total": 60, "success": 60, "errors": 0, "not_sent": 0}
    assert (service.sockets, len(service.asks)) == (5, 60)
    assert len(result["recording"]["series"]) == 2
    assert result["config"]["workers"] == 2
    assert "Total requests: 60\nConcurrent clients: 5\n" in done.stdout
    assert done.stdout.count("WS BENCH SUMMARY") == 1


@pytest.mark.servers
async def test_an_interrupt_reaches_the_workers_and_their_sessions_are_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service, start_bench(
        "-url", service.url, "-workers=2", "-clients=4", "-duration=1h", "-ramp-duration=0s", "-json", str(out),
        "-no-live",
    ) as process:  # fmt: skip
        await service.until(lambda: service.open_sockets >= 4 and len(service.asks) >= 8)
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert "Outcome: INTERRUPTED" in done.stdout
    result = json.loads(out.read_text())
    assert len(result["recording"]["series"]) == 2
    assert result["counts"]["success"] >= 4
    assert sorted(service.deleted) == sorted(service.created)


HALF_STARTED = """
import os, signal, sys
if any(word.endswith("worker-1.json") for word in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""A `sitecustomize` with which the second worker stops itself while its interpreter starts: before any handler."""


@asynccontextmanager
async def with_a_worker_half_started(
    service: ScriptedService, directory: Path, *argv: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, psutil.Process]]:
    """A run by two workers of whom one has its session and the other, given too, stands still."""
    (directory / "sitecustomize.py").write_text(HALF_STARTED)
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    async with start_bench(
        "-url", service.url, "-workers=2", "-clients=2", "-prepare-sessions", "-ramp-duration=0s", "-no-live", *argv,
        environment={"PYTHONPATH": path},
    ) as process:  # fmt: skip
        await service.until(lambda: len(service.created) == 1)
        async with asyncio.timeout(PATIENCE_S):
            while not (stopped := standing_still(process)):  # noqa: ASYNC110 - the system is asked
                await asyncio.sleep(0.01)
        yield process, stopped[0]


def standing_still(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if child.status() == psutil.STATUS_STOPPED]


async def interrupt(process: asyncio.subprocess.Process) -> None:
    """A first interrupt, until it is seen."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert b"interrupted" in await process.stderr.readline()


@pytest.mark.servers
async def test_no_worker_begins_before_the_last_one_is_prepared(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with (
        scripted_service(paced) as service,
        with_a_worker_half_started(service, tmp_path, "-requests-per-client=1", "-json", str(out)) as (run, worker),
    ):
        worker.resume()
        done = await finish(run)
    assert done.code == 0, done.stderr
    assert json.loads(out.read_text())["counts"]["success"] == len(service.asks) == 2


@pytest.mark.servers
async def test_an_interrupt_while_a_worker_still_starts_ends_all_and_deletes_their_sessions(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with (
        scripted_service(paced) as service,
        with_a_worker_half_started(service, tmp_path, "-duration=1h", "-json", str(out)) as (run, worker),
    ):
        await interrupt(run)
        worker.resume()
        done = await finish(run)
    assert done.code == 130, done.stderr
    result = json.loads(out.read_text())
    assert len(result["recording"]["series"]) == 1
    assert (result["counts"]["total"], service.asks) == (0, [])
    assert len(service.created) == 1
    assert service.deleted == service.created


@pytest.mark.servers
async def test_a_second_interrupt_ends_a_worker_that_hears_nothing(tmp_path: Path) -> None:
    async with (
        scripted_service(paced) as service,
        with_a_worker_half_started(service, tmp_path, "-duration=1h") as (run, worker),
    ):
        await interrupt(run)
        run.send_signal(signal.SIGINT)
        done = await finish(run)
        assert not worker.is_running()
    assert done.code == 130
    assert "SUMMARY" not in done.stdout


@pytest.mark.servers
async def test_a_worker_that_cannot_begin_ends_the_others(tmp_path: Path) -> None:
    async with (
        scripted_service(paced) as service,
        with_a_worker_half_started(service, tmp_path, "-duration=1h") as (run, worker),
    ):
        worker.kill()
        done = await finish(run)
    assert done.code == 2
    assert "worker 1 ended with -9 and without a result" in done.stderr
    assert service.deleted == service.created


@pytest.mark.servers
async def test_a_worker_that_cannot_begin_is_exit_code_2() -> None:
    async with scripted_service(create_status=500) as service:
        done = await bench(
            "-url", service.url, "-workers=2", "-clients=2", "-requests-per-client=1", "-prepare-sessions", "-no-live"
        )
    assert done.code == 2
    assert "without a result" in done.stderr


@pytest.mark.servers
async def test_results_of_two_generators_are_merged_and_shown_again(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("a", "b", "whole")]
    both_are_here = asyncio.Event()

    async def together(service: ScriptedService, exchange: Exchange) -> None:
        if service.open_sockets == 4:
            both_are_here.set()
        await both_are_here.wait()
        await answer(service, exchange)

    async with scripted_service(together) as service, AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(
                start_bench(
                    "-url", service.url, "-clients=2", "-requests-per-client=10", "-ramp-duration=0s",
                    "-no-live", "-json", str(path),
                )
            )
            for path in files[:2]
        ]  # fmt: skip
        ended = [await finish(process) for process in both]
    assert [one.code for one in ended] == [0, 0]
    done = await bench("merge", str(files[0]), str(files[1]), "-json", str(files[2]), "-html", str(tmp_path / "m.html"))
    assert done.code == 0, done.stderr
    parts = [json.loads(path.read_text())["counts"]["success"] for path in files]
    assert parts[2] == parts[0] + parts[1] == len(service.asks)
    assert "Concurrent clients: 4" in done.stdout
    shown = await bench("report", str(files[2]))
    assert (shown.code, "WS BENCH DETAIL" in shown.stdout) == (0, True)
    assert (await bench("merge", str(files[0]))).code == 2
