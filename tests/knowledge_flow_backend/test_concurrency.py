"""Bounded threads, and two things at once."""

import asyncio
import threading

import pytest

from knowledge_flow_backend.concurrency import ThreadsBusy, WorkerThreads, gather_pair
from tests.support.threads import no_more_threads


async def test_a_call_runs_in_a_thread_and_raises_what_it_raises() -> None:
    threads = WorkerThreads("test", 1, 1)
    assert await threads.run_in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run_in_thread(lambda: 1 // 0)
    assert threads.held == 0
    threads.close()


async def test_a_call_that_finds_no_room_is_refused_and_one_that_is_given_up_makes_room() -> None:
    threads = WorkerThreads("test", 1, 1)
    started, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def hold() -> None:
        started.set()
        go.wait()
        ran.append("first")

    async with asyncio.TaskGroup() as group:
        running = group.create_task(threads.run_in_thread(hold))
        await asyncio.to_thread(started.wait)
        waiting = group.create_task(threads.run_in_thread(lambda: ran.append("second")))
        await asyncio.sleep(0)
        with pytest.raises(ThreadsBusy):
            await threads.run_in_thread(lambda: None)
        waiting.cancel()
        await asyncio.wait([waiting])
        third = group.create_task(threads.run_in_thread(lambda: ran.append("third")))
        running.cancel()
        await asyncio.sleep(0)
        # What runs cannot be stopped: it keeps its thread, and its place.
        assert threads.held == 2
        go.set()
        await third
    assert ran == ["first", "third"]
    threads.close()


async def test_a_call_that_gets_no_thread_keeps_no_place() -> None:
    threads = WorkerThreads("test", 1, 1)
    with no_more_threads():
        for _ in range(5):
            with pytest.raises(RuntimeError, match="new thread"):
                await threads.run_in_thread(lambda: None)
    assert threads.held == 0
    threads.close()


async def test_both_results_come_back() -> None:
    async def value(number: int) -> int:
        return number

    assert await gather_pair(value(1), value(2)) == (1, 2)


async def test_the_first_failure_ends_the_other_and_is_raised_bare() -> None:
    ended: list[str] = []

    async def failing() -> None:
        raise KeyError("this one")

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waiting")

    for first, second in ((failing(), waiting()), (waiting(), failing())):
        with pytest.raises(KeyError, match="this one"):
            await gather_pair(first, second)
    assert ended == ["waiting", "waiting"]
