"""Tasks and threads that fail: counted by kind, begun again, named while they are down, and silent about nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.aio import TaskRegistry, Vigil, WatchedThread
from backend_kit.aio.vigil import DOWN_AFTER, HEALTHY_S, kind_of
from tests.support.patience import PATIENCE_S


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vigil(clock: Clock) -> Vigil:
    return Vigil(CollectorRegistry(), clock=clock)


@pytest.fixture
async def tasks(vigil: Vigil) -> AsyncIterator[TaskRegistry]:
    registry = TaskRegistry(vigil)
    yield registry
    await registry.aclose()


async def until(held: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not held():  # noqa: ASYNC110 - threads tell no loop
            await asyncio.sleep(0.005)


def published(vigil: Vigil, name: str) -> dict[str, float]:
    """The samples of a metric by their one label."""
    metric = {"app_task_failures_total": vigil.counted, "app_thread_up": vigil.threads}[name]
    samples = [sample for family in metric.collect() for sample in family.samples if sample.name == name]
    return {next(iter(sample.labels.values())): sample.value for sample in samples}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("turn:4f1e", "turn"),
        ("Task-17", "Task"),
        ("mcp-discover:notes:1", "mcp-discover"),
        ("memory-release", "memory-release"),
    ],
)
def test_the_kind_of_a_task_is_its_name_without_its_instance(name: str, kind: str) -> None:
    assert kind_of(name) == kind


async def test_failures_are_counted_by_kind_however_many_instances_there_are(tasks: TaskRegistry, vigil: Vigil) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    for number in range(40):
        tasks.spawn(f"turn:{number}", fails)
    await until(lambda: len(tasks) == 0)
    assert published(vigil, "app_task_failures_total") == {"turn": 40}
    assert tasks.failures == {"turn": 40}
    assert vigil.down == []


async def test_a_cancellation_that_nobody_asked_for_is_a_failure(tasks: TaskRegistry, vigil: Vigil) -> None:
    began = asyncio.Event()
    ran = 0

    async def awaits_what_another_cancelled() -> None:
        nonlocal ran
        ran += 1
        if ran == 2:
            began.set()
            await asyncio.Event().wait()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost.cancel()
        await lost

    task = tasks.spawn("follower", awaits_what_another_cancelled, restart=True, essential=True)
    async with asyncio.timeout(PATIENCE_S):
        await began.wait()
    assert tasks.failures == {"follower": 1}
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (tasks.failures, vigil.down) == ({"follower": 1}, [])


async def test_what_fails_again_and_again_is_down_until_it_has_been_well_for_a_while(
    tasks: TaskRegistry, vigil: Vigil, clock: Clock
) -> None:
    attempts: list[list[str]] = []

    async def fails_at_first() -> None:
        attempts.append(vigil.down)
        if len(attempts) <= DOWN_AFTER:
            raise OSError("on purpose")
        await asyncio.Event().wait()

    tasks.spawn("writer", fails_at_first, restart=True, essential=True)
    await until(lambda: len(attempts) > DOWN_AFTER)
    # What was over at once takes nothing down; what works again is not trusted at once.
    assert attempts == [[], [], [], ["writer"]]
    assert vigil.down == ["writer"]
    clock.now += HEALTHY_S
    assert vigil.down == []


async def test_what_is_not_essential_takes_nothing_down(tasks: TaskRegistry, vigil: Vigil) -> None:
    async def fails() -> None:
        raise OSError("on purpose")

    tasks.spawn("helper", fails, restart=True)
    await until(lambda: tasks.failures["helper"] > DOWN_AFTER)
    assert vigil.down == []


async def test_the_wait_before_a_restart_grows_and_is_short_again_after_a_while_of_health(
    vigil: Vigil, clock: Clock
) -> None:
    watched = vigil.watch("writer")
    waits = []
    for _ in range(9):
        with watched.attempt():
            raise OSError("on purpose")
        waits.append(watched.delay_s)
    bounds = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    with watched.attempt():
        clock.now += HEALTHY_S
        raise OSError("on purpose")
    assert watched.delay_s <= 0.1


@pytest.mark.parametrize("restart", [True, False])
async def test_an_essential_task_that_has_returned_or_failed_for_good_is_down(
    tasks: TaskRegistry, vigil: Vigil, restart: bool
) -> None:
    async def ends() -> None:
        if not restart:
            raise OSError("on purpose")

    tasks.spawn("batcher", ends, restart=restart, essential=True)
    tasks.spawn("once", ends, restart=restart)
    await until(lambda: len(tasks) == 0)
    assert vigil.down == ["batcher"]


async def test_a_thread_that_fails_does_its_work_again(vigil: Vigil, caplog: pytest.LogCaptureFixture) -> None:
    works, stop = threading.Event(), threading.Event()
    attempts = 0

    def run() -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= DOWN_AFTER:
            raise OSError(24, "Too many open files")
        works.set()
        stop.wait()

    thread = WatchedThread(vigil, "summary", run, essential=True)
    assert published(vigil, "app_thread_up") == {"summary": 0.0}
    thread.start()
    await until(works.is_set)
    assert published(vigil, "app_thread_up") == {"summary": 1.0}
    assert published(vigil, "app_task_failures_total") == {"summary": DOWN_AFTER}
    assert vigil.down == ["summary"]
    assert caplog.text.count("task summary failed") == caplog.text.count("Traceback") == DOWN_AFTER
    stop.set()
    thread.end(10)
    assert not thread.alive
    assert vigil.down == []


async def test_a_thread_that_waits_for_its_next_attempt_is_not_up_and_ends_when_it_is_told(vigil: Vigil) -> None:
    def run() -> None:
        raise OSError("on purpose")

    thread = WatchedThread(vigil, "writer", run, essential=True)
    thread.start()
    await until(lambda: vigil.down == ["writer"])
    thread.end(10)
    assert not thread.alive
    assert (thread.up, published(vigil, "app_thread_up")) == (False, {"writer": 0.0})


async def test_an_essential_thread_that_returns_by_itself_is_down(vigil: Vigil) -> None:
    thread = WatchedThread(vigil, "sampler", lambda: None, essential=True)
    thread.start()
    await until(lambda: not thread.alive)
    assert vigil.down == ["sampler"]
