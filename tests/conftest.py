"""What holds for every test: uvloop under a stall detector, a limit against hangs, shared servers, and which run."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist import is_xdist_worker
from xdist.workermanage import WorkerController

from tests.support.balancers import KINDS
from tests.support.debian_postgres import debian_postgres
from tests.support.fork_server import FORKS
from tests.support.hangs import GRACE_S, LIMIT_S, HangGuard, command_of, end_at_once
from tests.support.keycloak import keycloak
from tests.support.mock_llm import mock_llm
from tests.support.opensearch import opensearch, opensearch_node
from tests.support.postgres import database, empty_database, migrated, postgres
from tests.support.programs import Choice
from tests.support.replicas import replicated
from tests.support.servers import forget_processes, mark, no_servers_here, watch_processes
from tests.support.stalls import DETECTOR, StallDetector, no_stalled_loop, stall_detector
from tests.support.workers import FileScheduling, SharedServers, by_length, worker_count

__all__ = [
    "database",
    "debian_postgres",
    "empty_database",
    "keycloak",
    "migrated",
    "mock_llm",
    "no_servers_here",
    "no_stalled_loop",
    "opensearch",
    "opensearch_node",
    "postgres",
    "replicated",
    "stall_detector",
]

CHOICE = pytest.StashKey[Choice]()
DESELECTED = pytest.StashKey[dict[str, int]]()
"""Tests left out, by program."""
GUARD = pytest.StashKey[HangGuard]()
STACKS = pytest.StashKey["TemporaryDirectory[str]"]()
"""Where workers leave the stacks of what could not be ended."""
LEFT_BEHIND = pytest.StashKey[list[str]]()
"""The processes that outlived the tests which had started them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What a run may set."""
    parser.addoption("--behind", choices=KINDS, help="Run what can be run so on three instances behind this balancer")
    parser.addoption("--late", type=float, default=0.0, help="Seconds by which a page's requests come late")
    parser.addini("test_limit_s", "Seconds that set-up, call and teardown of a test may each take", default=LIMIT_S)
    parser.addini("hang_grace_s", "Seconds from a hung test's limit to the end of its process", default=GRACE_S)


def pytest_configure(config: pytest.Config) -> None:
    """Look around once, and start to watch."""
    gc.set_threshold(50_000, 20, 100)  # as in the services: Python's own pace takes a tenth of all CPU
    # A busy machine is no finding: neither how long an example takes nor how long making one does is judged.
    settings.register_profile(
        "turnwise",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("turnwise")
    config.stash[CHOICE] = Choice.of()
    config.stash[DESELECTED] = {}
    config.stash[LEFT_BEHIND] = []
    config.stash[STACKS] = TemporaryDirectory(prefix="turnwise-test-stacks-")
    detector = config.stash[DETECTOR] = StallDetector()
    detector.start()
    # Tests run with another stderr: this is the one that is seen.
    place = Path(config.workerinput["stacks"]) if hasattr(config, "workerinput") else os.dup(2)
    guard = config.stash[GUARD] = HangGuard(
        detector.loops,
        lambda stacks: end_at_once(stacks, place),
        grace_s=float(config.getini("hang_grace_s")),
    )
    guard.start()
    watch_processes()
    config.pluginmanager.register(SharedServers())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the watch."""
    if GUARD in config.stash:  # not where the configuration was refused
        config.stash[GUARD].stop()
        config.stash[DETECTOR].stop()
        config.stash[STACKS].cleanup()


@pytest.hookimpl
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of every asynchronous test."""
    return {"uvloop": config.stash[DETECTOR].new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out the tests of programs that this run leaves out; mark those that start servers; long files first."""
    out_names = {program.name for program in config.stash[CHOICE].left_out}
    kept: list[pytest.Item] = []
    out: list[pytest.Item] = []
    for item in items:
        mark(item)
        lacking = sorted(out_names & {marker.name for marker in item.iter_markers()})
        for name in lacking:
            counts = config.stash[DESELECTED]
            counts[name] = counts.get(name, 0) + 1
        (out if lacking else kept).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
    items[:] = sorted(kept, key=lambda item: by_length(item.nodeid)) if hasattr(config, "workerinput") else kept


@pytest.fixture(autouse=True)
def _programs_are_here(request: pytest.FixtureRequest) -> None:
    """A test whose program is required and missing fails with the package that brings it."""
    names = {marker.name for marker in request.node.iter_markers()}
    lacking = [program for program in request.config.stash[CHOICE].missing if program.name in names]
    if lacking:
        packages = " ".join(program.packages for program in lacking)
        pytest.fail(f"{', '.join(p.name for p in lacking)} is required here: apt-get install {packages}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Under the limit."""
    forget_processes()
    with _limited(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Under the limit."""
    with _limited(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Under the limit. After each file, take what it leaves behind out of garbage collection.

    What thousands of tests leave would hold the loop of a later one for a second.
    """
    with _limited(item, "teardown"):
        yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def _limited(item: pytest.Item, phase: str) -> "contextlib.AbstractContextManager[None]":
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker is not None else item.config.getini("test_limit_s"))
    return item.config.stash[GUARD].phase(item.nodeid, phase, limit_s)


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collection, as the services do after their start.

    A full collection over it takes a quarter of a second, and twice that under coverage: the detector would find it.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A process that its test left behind is ended and fails the run; so does a required program that is missing,
    even where no test of this run needed it."""
    config = session.config
    left = config.stash[LEFT_BEHIND]
    for process in config.stash[GUARD].left_behind():
        if process.pid == FORKS.pid:
            continue
        left.append(f"{process.pid} {command_of(process)}")
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    FORKS.stop()
    if is_xdist_worker(session):
        config.workeroutput.update(deselected=config.stash[DESELECTED], left_behind=left)  # type: ignore[attr-defined]
    elif (left or config.stash[CHOICE].missing) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each suite that was left out or lacks its program, and for each process that was left behind."""
    choice = config.stash[CHOICE]
    if choice.missing or choice.left_out:
        terminalreporter.section("suites")
    for program in choice.missing:
        terminalreporter.line(
            f"{program.name}: required by TURNWISE_REQUIRE; Debian: apt-get install {program.packages}"
        )
    for program in choice.left_out:
        count = config.stash[DESELECTED].get(program.name, 0)
        terminalreporter.line(
            f"{program.name}: {count} test(s) left out; TURNWISE_REQUIRE={program.name} (or all) runs them; "
            f"Debian: apt-get install {program.packages}"
        )
    for process in config.stash[LEFT_BEHIND]:
        terminalreporter.line(f"left behind by its test, and ended: {process}", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many workers `-n auto` is; `-n logical` is one a core, for tests that wait for nobody."""
    if config.option.numprocesses == "logical":
        return os.cpu_count() or 1
    return worker_count(os.cpu_count() or 1, psutil.virtual_memory().available)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    """How the workers get their tests."""
    return FileScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker where to leave the stacks of what cannot be ended."""
    node.workerinput["stacks"] = str(_stacks_of(node))


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """Show the stacks with the failure."""
    place = _stacks_of(report.node)  # type: ignore[attr-defined]
    if place.exists():
        report.longrepr = f"{report.longrepr}\n{place.read_text()}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Hear what a worker has to tell at its end."""
    told = getattr(node, "workeroutput", {})
    stash = node.config.stash
    stash[DESELECTED].update(told.get("deselected", {}))  # every worker collects the same tests
    stash[LEFT_BEHIND].extend(told.get("left_behind", []))


def _stacks_of(node: WorkerController) -> Path:
    return Path(node.config.stash[STACKS].name, f"{node.gateway.id}.txt")
