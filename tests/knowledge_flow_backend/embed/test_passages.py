"""Passages of several users take turns at the embedder."""

import asyncio
from collections.abc import Sequence

import numpy as np

from knowledge_flow_backend.embed import Passages
from knowledge_flow_backend.index import Vector


class HeldEmbedder:
    """Notes what it is given, and embeds it when it is told."""

    model = "held"
    state = "ready"

    def __init__(self) -> None:
        self.given: list[list[str]] = []
        self._go = asyncio.Semaphore(0)

    async def embed_query(self, _text: str) -> Vector:
        return np.ones(1, dtype=np.float32)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        self.given.append(list(texts))
        await self._go.acquire()
        return [np.array([float(text[1:])], dtype=np.float32) for text in texts]

    async def go(self, times: int) -> None:
        for _ in range(times):
            self._go.release()
            for _ in range(5):
                await asyncio.sleep(0)


async def test_a_user_with_one_passage_waits_for_no_more_than_what_is_at_the_model() -> None:
    embedder = HeldEmbedder()
    passages = Passages(embedder, step=2)
    texts = [f"a{number}" for number in range(10)]
    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(passages.embed("a", texts)) for _ in range(4)]
        await embedder.go(0)
        await asyncio.sleep(0)
        other = group.create_task(passages.embed("b", ["b7"]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert embedder.given == [["a0", "a1"], ["a0", "a1"], ["b7"]]
        await embedder.go(21)

    assert [float(one[0]) for one in other.result()] == [7.0]
    for task in flood:
        assert [float(one[0]) for one in task.result()] == list(range(10))
