"""Texts become vectors: the port, users in turn before it, the OpenAI-compatible endpoint, the local model, the
micro-batcher before them.

The adapters are imported where they are used: the local one loads onnxruntime.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from backend_kit.aio import FairGate, GateRules
from knowledge_flow_backend.concurrency import UNBOUNDED
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector

_PLACES: Final = 3
"""One is embedded, one waits for it to end, so that the model has no pause; one is for a user who has none there."""


class Embedder(Protocol):
    """Embeds texts with one model, in vectors of one length and of norm 1, without blocking the event loop.

    `model` is what the index remembers. Both methods raise `EmbeddingUnavailable`; deadlines are the caller's.
    """

    model: str

    @property
    def state(self) -> str:
        """`ready`, or one word for why it is not yet (`loading`, `fetching`, `building`) or never will be (`failed`).

        Of an endpoint `unknown`, `ready` or `down`, which do not make the service unready: searches by words go on.
        """
        ...

    async def embed_query(self, text: str) -> Vector:
        """The vector of a question. It overtakes documents that wait."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of passages, in their order."""
        ...


class Passages:
    """Passages of many users in turn: the embedder has a few of each at a time, however many one sends.

    One for the process: uploads with passages to embed take turns here.
    """

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


def unit_vectors(rows: "NDArray[Any]") -> list[Vector]:
    """Rows as float32 vectors of norm 1. Raises `EmbeddingUnavailable` for one that has no direction."""
    matrix = np.asarray(rows, dtype=np.float32)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    # False for NaN too.
    if not bool(np.all((norms > 0) & np.isfinite(norms))):
        raise EmbeddingUnavailable("the model gave a vector without direction")
    return list(matrix / norms)
