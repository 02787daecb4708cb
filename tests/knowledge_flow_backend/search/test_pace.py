"""Writes give way while somebody searches, and only then."""

import asyncio

import pytest

from knowledge_flow_backend.search.pace import Pace, PaceRules


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    real = asyncio.sleep

    async def rest(seconds: float) -> None:
        seen.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", rest)
    return seen


async def test_nothing_is_slowed_down_where_nobody_searches(rests: list[float]) -> None:
    pace = Pace()
    assert pace.piece(500) == 500
    both = asyncio.Barrier(2)

    async def write() -> None:
        async with pace.write():
            await both.wait()

    await asyncio.gather(write(), write())
    assert rests == []


async def test_beside_a_search_small_pieces_are_written_one_at_a_time_with_a_rest_each(rests: list[float]) -> None:
    pace = Pace(PaceRules(lately_s=1000.0, piece=50, rests=1e9, longest_rest_s=0.5))
    pace.searched()
    assert (pace.piece(500), pace.piece(20)) == (50, 20)
    running = most = 0

    async def write() -> None:
        nonlocal running, most
        async with pace.write():
            running += 1
            most = max(most, running)
            await asyncio.to_thread(int)
            running -= 1

    await asyncio.gather(write(), write(), write())
    assert (most, rests) == (1, [0.5] * 3)


async def test_a_failed_write_lets_the_next_one_in() -> None:
    pace = Pace(PaceRules(lately_s=1000.0, longest_rest_s=0.0))
    pace.searched()
    with pytest.raises(ZeroDivisionError):
        async with pace.write():
            raise ZeroDivisionError
    async with pace.write():
        pass


def test_a_while_after_the_last_search_nothing_gives_way_any_more() -> None:
    pace = Pace(PaceRules(lately_s=0.0))
    pace.searched()
    assert pace.piece(500) == 500
