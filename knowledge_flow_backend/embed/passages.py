"""Passages of many users in turn: the embedder has a few of each at a time, however many one sends."""

from collections.abc import Sequence
from typing import Final

from backend_kit.aio import FairGate, GateRules
from knowledge_flow_backend.concurrency import UNBOUNDED
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.index.models import Vector

_PLACES: Final = 3
"""One is embedded, one waits for it to end, so that the model has no pause; one is for a user who has none there."""


class Passages:
    """One for the process: whoever has passages to embed takes turns here."""

    def __init__(self, embedder: Embedder, *, step: int) -> None:
        """`step`: passages that a user has at the embedder before it is the next one's turn."""
        self._embedder = embedder
        self._step = step
        self._gate = FairGate(GateRules(_PLACES, reserve=1, waiting=UNBOUNDED, waiting_per_user=UNBOUNDED))

    async def embed(self, user_id: str, texts: Sequence[str]) -> list[Vector]:
        """The vectors of a user's passages, in their order. Raises as `Embedder.embed_documents`."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), self._step):
            async with self._gate.place(user_id):
                vectors += await self._embedder.embed_documents(texts[start : start + self._step])
        return vectors
