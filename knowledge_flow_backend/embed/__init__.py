"""Texts become vectors: the port, the OpenAI-compatible endpoint, the local model, the micro-batcher before them.

The adapters are imported where they are used: the local one loads onnxruntime.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector


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


def unit_vectors(rows: "NDArray[Any]") -> list[Vector]:
    """Rows as float32 vectors of norm 1. Raises `EmbeddingUnavailable` for one that has no direction."""
    matrix = np.asarray(rows, dtype=np.float32)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    # False for NaN too.
    if not bool(np.all((norms > 0) & np.isfinite(norms))):
        raise EmbeddingUnavailable("the model gave a vector without direction")
    return list(matrix / norms)
