"""What holds for every test: uvloop under a stall detector, shared servers, no test without its program."""

import asyncio
import functools
import gc
import inspect
import os
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, settings

from tests.support.keycloak import keycloak
from tests.support.mock_llm import mock_llm
from tests.support.opensearch import opensearch, opensearch_node
from tests.support.postgres import database, postgres
from tests.support.programs import Needed, missing_programs
from tests.support.stalls import DETECTOR, StallDetector, no_stalled_loop, stall_detector

__all__ = [
    "database",
    "keycloak",
    "mock_llm",
    "no_stalled_loop",
    "opensearch",
    "opensearch_node",
    "postgres",
    "stall_detector",
]

MISSING = pytest.StashKey[list[Needed]]()
DESELECTED = pytest.StashKey[dict[str, int]]()


def pytest_configure(config: pytest.Config) -> None:
    """Look around once, and start to watch."""
    # A busy machine is no finding: neither how long an example takes nor how long making one does is judged.
    settings.register_profile("turnwise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("turnwise")
    config.addinivalue_line("markers", "blocks_loop(reason): blocks its event loop on purpose for over half a second")
    config.stash[MISSING] = missing_programs()
    config.stash[DESELECTED] = {}
    config.stash[DETECTOR] = StallDetector()
    config.stash[DETECTOR].start()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the watch."""
    config.stash[DETECTOR].stop()


@pytest.hookimpl
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of every asynchronous test."""
    return {"uvloop": config.stash[DETECTOR].new_event_loop}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bound each asynchronous test; take out those whose program is missing, unless all are required."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj, _timeout_s(item))
    if _all_required():
        return
    missing = {program.name for program in config.stash[MISSING]}
    kept: list[pytest.Item] = []
    out: list[pytest.Item] = []
    for item in items:
        lacking = sorted(missing & {marker.name for marker in item.iter_markers()})
        for name in lacking:
            counts = config.stash[DESELECTED]
            counts[name] = counts.get(name, 0) + 1
        (out if lacking else kept).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = kept


@pytest.fixture(autouse=True)
def _programs_are_here(request: pytest.FixtureRequest) -> None:
    """With TURNWISE_REQUIRE=all: a test whose program is missing fails with the package that brings it."""
    names = {marker.name for marker in request.node.iter_markers()}
    lacking = [program for program in request.config.stash[MISSING] if program.name in names]
    if lacking:
        packages = " ".join(program.packages for program in lacking)
        pytest.fail(f"{', '.join(p.name for p in lacking)} is required here: apt-get install {packages}", pytrace=False)


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collection, as the services do after their start.

    A full collection over it takes a quarter of a second, and twice that under coverage: the detector would find it.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, take what it leaves behind out of garbage collection too: what thousands of tests leave would
    hold the loop of a later one for a second."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With TURNWISE_REQUIRE=all a missing program fails the run even where no test of this run needed it."""
    if _all_required() and session.config.stash[MISSING] and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each missing program."""
    if not config.stash[MISSING]:
        return
    terminalreporter.section("programs that are not here")
    for program in config.stash[MISSING]:
        count = config.stash[DESELECTED].get(program.name, 0)
        fate = "required by TURNWISE_REQUIRE=all" if _all_required() else f"{count} test(s) left out"
        terminalreporter.line(f"{program.name}: {fate}; Debian: apt-get install {program.packages}")


def _all_required() -> bool:
    return os.environ.get("TURNWISE_REQUIRE") == "all"


def _timeout_s(item: pytest.Function) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker is not None else item.config.getini("timeout"))


def _bounded(test: Callable[..., Awaitable[None]], timeout_s: float) -> Callable[..., Awaitable[None]]:
    """The test fails, with where it waited, before pytest-timeout ends the whole run."""

    @functools.wraps(test)
    async def bounded(*arguments: object, **named: object) -> None:
        async with asyncio.timeout(0.9 * timeout_s):
            await test(*arguments, **named)

    return bounded
