"""Writes give way while somebody searches, and only then."""

import asyncio

import pytest

from knowledge_flow_backend.engines.scheduling import ThrottleRules, WriteThrottle


class Rests:
    """A sleep that only writes down for how long."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seen.append(seconds)
        await asyncio.sleep(0)


async def test_nothing_is_slowed_down_where_nobody_searches() -> None:
    rests = Rests()
    throttle = WriteThrottle(sleep=rests.sleep)
    assert throttle.piece(500) == 500
    both = asyncio.Barrier(2)

    async def write() -> None:
        async with throttle.write():
            await both.wait()

    await asyncio.gather(write(), write())
    assert rests.seen == []


async def test_beside_a_search_small_pieces_are_written_one_at_a_time_with_a_rest_each() -> None:
    rests = Rests()
    throttle = WriteThrottle(ThrottleRules(lately_s=1000.0, piece=50, rests=1e9, longest_rest_s=0.5), sleep=rests.sleep)
    throttle.searched()
    assert (throttle.piece(500), throttle.piece(20)) == (50, 20)
    running = most = 0

    async def write() -> None:
        nonlocal running, most
        async with throttle.write():
            running += 1
            most = max(most, running)
            await asyncio.to_thread(int)
            running -= 1

    await asyncio.gather(write(), write(), write())
    assert (most, rests.seen) == (1, [0.5] * 3)


async def test_a_failed_write_lets_the_next_one_in() -> None:
    throttle = WriteThrottle(ThrottleRules(lately_s=1000.0, longest_rest_s=0.0))
    throttle.searched()
    with pytest.raises(ZeroDivisionError):
        async with throttle.write():
            raise ZeroDivisionError
    async with throttle.write():
        pass


def test_a_while_after_the_last_search_nothing_gives_way_any_more() -> None:
    throttle = WriteThrottle(ThrottleRules(lately_s=0.0))
    throttle.searched()
    assert throttle.piece(500) == 500
