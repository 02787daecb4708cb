"""The stall detector finds what blocks a loop, and nothing else."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.support.stalls import THRESHOLD_S, StallDetector


@pytest.fixture
def detector() -> Iterator[StallDetector]:
    detector = StallDetector()
    detector.start()
    yield detector
    detector.stop()


def run(detector: StallDetector, coroutine_of: object) -> None:
    loop = detector.new_event_loop()
    try:
        loop.run_until_complete(coroutine_of)  # type: ignore[arg-type]
    finally:
        loop.close()


async def block() -> None:
    await asyncio.sleep(0.2)  # long enough for the detector to have asked the loop
    time.sleep(THRESHOLD_S + 0.6)  # noqa: ASYNC251 - the very thing to be found


async def compute() -> None:
    """Blocks by computing, without ever letting go of the loop."""
    await asyncio.sleep(0.2)
    end = time.perf_counter() + THRESHOLD_S + 0.6
    while time.perf_counter() < end:
        sum(range(1000))


def test_a_blocked_loop_is_found_with_the_stack_that_blocks_it(detector: StallDetector) -> None:
    run(detector, block())
    (stack,) = detector.take()
    assert "in block" in stack
    assert "time.sleep(THRESHOLD_S + 0.6)" in stack
    assert detector.take() == []


def test_a_computing_loop_is_found_too(detector: StallDetector) -> None:
    run(detector, compute())
    (stack,) = detector.take()
    assert "in compute" in stack


def test_a_waiting_loop_is_not(detector: StallDetector) -> None:
    run(detector, asyncio.sleep(THRESHOLD_S + 0.6))
    assert detector.take() == []


def test_synchronous_code_between_two_runs_of_a_loop_may_take_its_time(detector: StallDetector) -> None:
    loop = detector.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0.2))
    time.sleep(THRESHOLD_S + 0.6)
    loop.run_until_complete(asyncio.sleep(0.2))
    loop.close()
    assert detector.take() == []


@pytest.mark.blocks_loop("shows that the marker lets it")
async def test_a_marked_test_may_block() -> None:
    await block()


async def test_tests_run_on_uvloop() -> None:
    assert type(asyncio.get_running_loop()).__module__ == "uvloop"
