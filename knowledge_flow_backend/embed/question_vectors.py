"""Keeps a question's vector from its search to the rerank that follows, so that it is embedded once for both."""

import time
from collections import OrderedDict

from knowledge_flow_backend.index.models import Vector

KEPT = 1024
KEPT_S = 30.0


class QuestionVectors:
    """Left by a search, taken once by a rerank. No search ever reads it, so it is no cache of results.

    Holds the newest 1,024 questions for 30 s (1.5 MB at 384 numbers). With several processes the rerank may come to
    another one: then the question is embedded again there.
    """

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._left: OrderedDict[str, tuple[float, Vector]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, question: str, vector: Vector) -> None:
        """Keep a question's vector for the next `take`."""
        self._left[question] = (time.perf_counter(), vector)
        self._left.move_to_end(question)
        if len(self._left) > KEPT:
            self._left.popitem(last=False)

    def take(self, question: str) -> Vector | None:
        """Remove and return the vector of exactly this text; None where there is none, or it is too old."""
        left, vector = self._left.pop(question, (0.0, None))
        return vector if time.perf_counter() - left <= self._kept_s else None
