"""The stall detector finds what blocks a loop, and nothing else."""

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest
import uvloop

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


async def compute(cpu_s: float = 3 * THRESHOLD_S) -> None:
    """Blocks by computing, without ever letting go of the loop."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        sum(range(1000))


async def stand_still() -> None:
    """Holds the loop for as long, and computes nothing: as where the machine gives the process no time."""
    time.sleep(3 * THRESHOLD_S)  # noqa: ASYNC251 - the very thing


def test_a_blocked_loop_is_found_with_the_stack_that_blocks_it(detector: StallDetector) -> None:
    stalls: list[str] = []

    async def compute_until_found() -> None:
        end = time.thread_time() + 60.0  # the detector gets its turn late on a busy machine
        while not stalls and time.thread_time() < end:
            await compute_a_little()
            stalls.extend(detector.take())

    async def compute_a_little() -> None:
        sum(range(1000))

    run(detector, compute_until_found())
    (stack,) = stalls
    assert "in compute_until_found" in stack


def test_short_calculations_one_after_the_other_are_none(detector: StallDetector) -> None:
    async def many() -> None:
        for _ in range(4):
            await compute(THRESHOLD_S / 2)
            await asyncio.sleep(0.1)

    run(detector, many())
    assert detector.take() == []


def test_a_waiting_loop_is_not(detector: StallDetector) -> None:
    run(detector, asyncio.sleep(3 * THRESHOLD_S))
    assert detector.take() == []


def test_a_loop_that_gets_no_time_is_not(detector: StallDetector) -> None:
    run(detector, stand_still())
    assert detector.take() == []


@pytest.mark.parametrize("generation", [1, 2])
def test_a_collection_is_not_but_what_is_computed_after_it(detector: StallDetector, generation: int) -> None:
    def takes_long(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == generation:
            end = time.thread_time() + 3 * THRESHOLD_S
            while time.thread_time() < end:
                sum(range(1000))

    found: list[list[str]] = []

    async def collect_and_compute() -> None:
        await asyncio.sleep(0.2)  # it is asked
        gc.collect(generation)
        found.append(detector.take())
        end = time.thread_time() + 60.0  # the detector gets its turn late on a busy machine
        while not (stalls := detector.take()) and time.thread_time() < end:
            sum(range(1000))
        found.append(stalls)

    gc.callbacks.insert(0, takes_long)  # before the detector hears that it is over
    try:
        run(detector, collect_and_compute())
    finally:
        gc.callbacks.remove(takes_long)
    of_the_collection, (stack,) = found
    assert of_the_collection == []
    assert "in collect_and_compute" in stack


def test_synchronous_code_between_two_runs_of_a_loop_may_take_its_time(detector: StallDetector) -> None:
    loop = detector.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0.2))
    end = time.thread_time() + 3 * THRESHOLD_S
    while time.thread_time() < end:
        sum(range(1000))
    loop.run_until_complete(asyncio.sleep(0.2))
    loop.close()
    assert detector.take() == []


@pytest.mark.blocks_loop("shows that the marker lets it")
async def test_a_marked_test_may_block() -> None:
    await compute()


async def test_tests_run_on_uvloop() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
