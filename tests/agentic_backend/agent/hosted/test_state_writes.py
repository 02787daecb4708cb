"""Parts of a graph's state that come at once are written at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentic_backend.agent.hosted.state_writes import StatePart, StateWrites, WritesPart
from agentic_backend.errors import NotKept


class Held:
    """A store whose writes end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[list[str]] = []
        self.ends: list[asyncio.Future[None]] = []
        self.came = asyncio.Event()

    async def write(self, parts: Sequence[StatePart]) -> None:
        self.begun.append([part.task_id for part in parts if isinstance(part, WritesPart)])
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        self.came.set()
        await end

    async def wait_for(self, writes: int) -> None:
        while len(self.begun) < writes:
            self.came.clear()
            await self.came.wait()


def part(name: str) -> WritesPart:
    where: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    return WritesPart(where, [("messages", [name])], name, "")


async def test_what_comes_during_a_write_is_the_next_one() -> None:
    store = Held()
    writes = StateWrites(store.write)
    async with asyncio.TaskGroup() as group:
        group.create_task(writes.add(part("a")))
        group.create_task(writes.add(part("b")))
        await store.wait_for(1)
        late = [group.create_task(writes.add(part(name))) for name in "cd"]
        await asyncio.sleep(0)
        store.ends[0].set_result(None)
        await store.wait_for(2)
        assert not any(one.done() for one in late)
        store.ends[1].set_result(None)
    assert store.begun == [["a", "b"], ["c", "d"]]


async def test_each_part_fails_as_its_own_write_did() -> None:
    store = Held()
    writes = StateWrites(store.write)
    first = [asyncio.ensure_future(writes.add(part(name))) for name in "ab"]
    await store.wait_for(1)
    store.ends[0].set_exception(NotKept())
    for one in first:
        with pytest.raises(NotKept):
            await one
    next_one = asyncio.ensure_future(writes.add(part("c")))
    await store.wait_for(2)
    store.ends[1].set_result(None)
    await next_one
    assert store.begun == [["a", "b"], ["c"]]


async def test_where_a_writer_is_cancelled_another_writes_for_it() -> None:
    store = Held()
    writes = StateWrites(store.write)
    first, second = (asyncio.ensure_future(writes.add(part(name))) for name in "ab")
    await store.wait_for(1)
    first.cancel()
    await store.wait_for(2)
    store.ends[1].set_result(None)
    await second
    assert first.cancelled()
    assert store.begun == [["a", "b"], ["a", "b"]]
