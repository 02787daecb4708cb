"""What rerank servers are sent and what they answer: a request for each shape, one reading for all answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Shape = Literal["cohere", "jina", "vllm", "tei", "infinity"]


class BadScores(Exception):
    """An answer that does not give each document exactly one finite score. Its text names no content."""


def request_of(shape: Shape, model: str, question: str, documents: Sequence[str]) -> dict[str, Any]:
    """The body that asks for the score of every document, cut by the server where it can be told to."""
    return _REQUESTS[shape](model, question, list(documents))


def scores_of(answer: Any, documents: int) -> list[float]:
    """One score per document, in the order they were sent. Raises `BadScores`.

    The entries are the answer itself, its `results` or its `data`, in any order; each says which document it is about
    (`index`) and how it scores (`relevance_score` or `score`). Echoes of documents are passed over.
    """
    entries = answer
    if isinstance(answer, Mapping):
        entries = answer["results"] if "results" in answer else answer.get("data")
    if not isinstance(entries, list):
        raise BadScores("no list of results")
    scores: dict[int, float] = {}
    for entry in entries:
        index, score = _read(entry)
        if not 0 <= index < documents:
            raise BadScores("a document that was not sent")
        if index in scores:
            raise BadScores("a document twice")
        scores[index] = score
    if len(scores) != documents:
        raise BadScores("not a score for each document")
    return [scores[index] for index in range(documents)]


def _read(entry: Any) -> tuple[int, float]:
    if not isinstance(entry, Mapping):
        raise BadScores("a result that is no object")
    index, score = entry.get("index"), entry.get("relevance_score", entry.get("score"))
    # `true` is an int to Python.
    if not isinstance(index, int) or isinstance(index, bool):
        raise BadScores("a result without an index")
    if not isinstance(score, int | float) or isinstance(score, bool) or not math.isfinite(score):
        raise BadScores("a result without a finite score")
    return index, float(score)


def _cohere(model: str, question: str, documents: list[str]) -> dict[str, Any]:
    # All of them, explicitly: some servers answer fewer by default.
    return {"model": model, "query": question, "documents": documents, "top_n": len(documents)}


def _jina(model: str, question: str, documents: list[str]) -> dict[str, Any]:
    return {**_cohere(model, question, documents), "return_documents": False}


def _infinity(model: str, question: str, documents: list[str]) -> dict[str, Any]:
    return {**_jina(model, question, documents), "raw_scores": False}


def _tei(_model: str, question: str, documents: list[str]) -> dict[str, Any]:
    return {"query": question, "texts": documents, "truncate": True, "raw_scores": False, "return_text": False}


_REQUESTS: dict[Shape, Callable[[str, str, list[str]], dict[str, Any]]] = {
    "cohere": _cohere,
    "jina": _jina,
    # `truncate_prompt_tokens` is left out: which values a server takes depends on its version.
    "vllm": _cohere,
    "tei": _tei,
    "infinity": _infinity,
}
