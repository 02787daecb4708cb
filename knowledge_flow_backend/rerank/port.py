"""The port of rerankers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from knowledge_flow_backend.index.models import Reader


class RerankFailed(Exception):
    """The candidates could not be scored; `cause` is `failed` or `busy`. The order of retrieval stands."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text to score; `chunk_uid` where it says which chunk of the index it is (a claim of the caller's)."""

    text: str
    chunk_uid: str | None = None


class Reranker(Protocol):
    """Scores texts for a question without blocking the event loop."""

    async def score(self, question: str, candidates: Sequence[Candidate], reader: Reader) -> list[float]:
        """One score per candidate, in their order; higher is better, comparable within this call. At least one
        candidate is given. Raises `RerankFailed`, or TimeoutError at its deadline."""
        ...
