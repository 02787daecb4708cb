"""What `tests.bench.truth_search` makes of what it saw."""

import json

from knowledge_flow_backend.rerank.bm25 import words
from knowledge_flow_backend.search.wire import RerankRequest
from tests.bench.truth_load import Call
from tests.bench.truth_search import OS_QUERY, RERANK_QUEUE, SearchEvidence, heavy, rows, waits


def rerank(begun: float, ended: float) -> Call:
    return Call("rerank", 200, begun, ended)


def test_each_call_waits_for_the_end_of_the_one_before() -> None:
    first, second, third = rerank(1.0, 3.0), rerank(1.5, 5.0), rerank(2.0, 7.0)
    alone = rerank(9.0, 11.0)
    assert waits([second, alone, third, first]) == [0.0, 1.5, 3.0, 0.0]
    assert waits([]) == []


def test_both_lines_are_compared() -> None:
    told = {
        OS_QUERY: {"count": 1.0, "avg": 300.0, "p50": 300.0, "p95": 300.0},
        RERANK_QUEUE: {"count": 2.0, "avg": 750.0, "p50": 0.0, "p95": 1600.0},
    }
    seen = SearchEvidence(told, [{"begun": 1.0, "ended": 1.3}], [rerank(1.0, 3.0), rerank(1.5, 5.0)])
    off = [(row.line, row.figure) for row in rows(seen) if row.verdict != "ok"]
    assert off == [(RERANK_QUEUE, "p95")]


def test_without_opensearch_both_lines_are_missing_and_say_why() -> None:
    found = list(rows(SearchEvidence({}, (), (), missing="there is no JDK")))
    assert [(row.line, row.verdict) for row in found] == [(OS_QUERY, "MISSING"), (RERANK_QUEUE, "MISSING")]
    assert all("there is no JDK" in row.source for row in found)


def test_a_rerank_is_long_by_its_question_and_needs_no_vectors_of_its_own() -> None:
    body = heavy("/documents/d#chunk=d-0", words=500, passages=40)
    asked = RerankRequest.model_validate(json.loads(body))
    assert len(set(words(asked.question))) == 500
    assert [hit.chunk_uid for hit in asked.documents] == ["d-0"] * 40
