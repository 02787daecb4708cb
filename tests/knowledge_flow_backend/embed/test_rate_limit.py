"""The pace of passages, on a clock of the test's own."""

import asyncio

from knowledge_flow_backend.embed.openai import RateLimit


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def rate_limit(clock: Clock, requests: int, tokens: int) -> RateLimit:
    return RateLimit(requests, tokens, clock=clock.read, sleep=clock.sleep)


async def test_without_limits_nobody_waits() -> None:
    clock = Clock()
    unlimited = rate_limit(clock, 0, 0)
    for _ in range(100):
        await unlimited.turn(1, ["text"] * 100)
    assert clock.now == 100.0


async def test_requests_keep_to_their_number_a_minute() -> None:
    clock = Clock()
    limited = rate_limit(clock, 60, 0)
    for _ in range(61):
        await limited.turn(1, ["text"])
    assert clock.now == 160.0


async def test_tokens_keep_to_their_number_a_minute() -> None:
    clock = Clock()
    limited = rate_limit(clock, 0, 6000)
    for _ in range(4):
        await limited.turn(1, ["x" * 4000])  # a thousand tokens: ten seconds
    assert clock.now == 130.0


async def test_questions_do_not_wait_and_passages_wait_for_them() -> None:
    clock = Clock()
    limited = rate_limit(clock, 60, 0)
    for _ in range(30):
        limited.count(1, ["question"])
    assert clock.now == 100.0
    await limited.turn(1, ["passage"])
    assert clock.now == 130.0


async def test_many_at_once_share_the_rate() -> None:
    clock = Clock()
    limited = rate_limit(clock, 60, 0)
    async with asyncio.TaskGroup() as group:
        for _ in range(11):
            group.create_task(limited.turn(1, ["passage"]))
    assert clock.now >= 110.0


async def test_after_a_refusal_all_is_quiet_for_as_long_as_was_asked_for() -> None:
    clock = Clock()
    limited = rate_limit(clock, 0, 0)
    limited.hold(30.0)
    limited.hold(10.0)
    assert limited.held_s == 30.0
    await limited.turn(1, ["passage"])
    assert (clock.now, limited.held_s) == (130.0, 0.0)
