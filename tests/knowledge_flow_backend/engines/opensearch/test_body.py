"""What is said to OpenSearch, as pure values."""

from dataclasses import replace
from typing import Any

import pytest

from backend_kit.wire import dumps, loads
from knowledge_flow_backend.engines.opensearch.body import (
    MAX_CHARS,
    MAX_WORDS,
    Place,
    Rights,
    Shape,
    bulk_lines,
    by_vector,
    by_words,
    cut,
    index_body,
    key_of,
    misfit,
    parts_of,
    visible,
    words_of,
)
from knowledge_flow_backend.engines.opensearch.index import fused, ordered
from knowledge_flow_backend.engines.opensearch.shape import number_of, numbered

SHAPE = Shape("mock", 384, "token")
HOSTILE = ['"}}', "$where", "__proto__", "_id", "text:* OR *", "{{#toJson}}", "'; ctx._source.clear(); '", "a\u2028b"]


def mapping() -> dict[str, Any]:
    made: dict[str, Any] = loads(dumps(index_body(SHAPE)["mappings"]))
    return made


def rights(**fields: Any) -> Rights:
    nothing: dict[str, Any] = {
        "reader": "ada", "corpus": True, "own": True, "libraries": (), "documents": None, "session": None,
        "pending": (), "generations": (),
    }  # fmt: skip
    return Rights(**{**nothing, **fields})


def test_a_mapping_of_ours_fits() -> None:
    assert misfit(mapping(), SHAPE) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"engine": "faiss"}, "its vectors are for faiss"),
        ({"engine": None}, "its vectors are for the default engine"),
        ({"name": "ivf"}, "only hnsw of lucene"),
        ({"space_type": "l2"}, "compared by l2"),
    ],
)
def test_another_method_is_named(changed: dict[str, Any], words: str) -> None:
    made = mapping()
    method = {**made["properties"]["vector_field"]["method"], **changed}
    made["properties"]["vector_field"]["method"] = {key: value for key, value in method.items() if value is not None}
    assert words in (misfit(made, SHAPE) or "")


def test_a_mapping_that_is_not_ours_is_named() -> None:
    assert "no knn_vector" in (misfit({}, SHAPE) or "")
    assert "have 384 numbers, those of mock have 3" in (misfit(mapping(), replace(SHAPE, dimension=3)) or "")
    assert "made for vectors of mock, not of other" in (misfit(mapping(), replace(SHAPE, model="other")) or "")
    assert "another database" in (misfit(mapping(), replace(SHAPE, token="other")) or "")
    for path in (("metadata",), ("text",), ("heading",)):
        made = mapping()
        del made["properties"][path[0]]
        assert "lacks fields" in (misfit(made, SHAPE) or "")
    made = mapping()
    made["_meta"] = {}
    assert "an unknown model" in (misfit(made, SHAPE) or "")


def test_who_may_see_nothing_matches_nothing() -> None:
    assert visible(rights(own=False)) == {"match_none": {}}
    assert visible(rights(corpus=False)) == {"match_none": {}}
    # A session's documents are found beside the corpus and without it.
    assert visible(rights(corpus=False, session="s")) != {"match_none": {}}


def test_a_pending_document_is_let_in_by_its_valid_writing_only() -> None:
    body = visible(rights(pending=("d1", "d2"), generations=("g1",)))
    settled, valid = body["bool"]["should"]
    assert settled["bool"]["must_not"] == [{"terms": {"metadata.document_uid": ["d1", "d2"]}}]
    assert valid == {"terms": {"metadata.generation": ["g1"]}}


def test_what_a_caller_sends_is_a_value_and_never_a_key() -> None:
    """docs/trust.md#F7."""
    clean = ["plain"] * len(HOSTILE)

    def shape(values: list[str]) -> Any:
        text = values[0]
        asked = rights(
            reader=text, libraries=tuple(values), documents=tuple(values), session=text, generations=tuple(values),
            pending=tuple(values),
        )  # fmt: skip
        bodies = [
            by_words({text: 1.5}, asked, 5),
            by_vector([0.5], asked, 5, exact=True),
            by_vector([0.5], asked, 5, exact=False),
        ]
        return [_keys(loads(dumps(body))) for body in bodies]

    for start in range(len(HOSTILE)):
        turned = HOSTILE[start:] + HOSTILE[:start]
        assert shape(turned) == shape(clean)
    assert "query_string" not in repr(shape(HOSTILE))


def _keys(value: Any) -> Any:
    """The value without its texts."""
    if isinstance(value, dict):
        return {key: _keys(inner) for key, inner in value.items()}
    return [_keys(inner) for inner in value] if isinstance(value, list) else type(value).__name__


def test_the_words_of_a_question_are_bounded() -> None:
    assert cut("a question") == "a question"
    many = " ".join(f"w{number}" for number in range(200))
    assert cut(many).split() == [f"w{number}" for number in range(MAX_WORDS)]
    assert len(cut("漢" * 5000)) == MAX_CHARS


def test_each_word_weighs_what_is_said_of_it_and_one_that_says_nothing_is_not_searched() -> None:
    assert words_of("Gather with asyncio.gather(), gather!") == ["gather", "with", "asyncio", "asyncio.gather"]
    asked = by_words({"gather": 2.0, "with": 0.0}, rights(), 5)
    (clauses,) = asked["query"]["bool"]["must"]
    assert clauses["bool"]["should"] == [
        {"match": {"text": {"query": "gather", "boost": 2.0}}},
        {"match": {"heading": {"query": "gather", "boost": 0.2}}},
    ]
    assert by_words({"with": 0.0}, rights(), 5)["query"]["bool"]["must"] == [{"match_none": {}}]


def test_a_chunk_is_two_lines_of_json() -> None:
    place = Place("doc", "g1", "ada", None, True, ("t",))
    action, source, end = bulk_lines(place, 3, "Title", 'text "quoted"\n', "[1.0,0.5]").split(b"\n")
    assert loads(action) == {"index": {"_id": "g1-3"}}
    assert loads(source)["vector_field"] == [1.0, 0.5]
    assert "session_id" not in loads(source)["metadata"]
    assert end == b""
    assert parts_of(key_of("g1", 3)) == ("g1", 3)


def test_halves_are_fused_by_their_scores_and_ties_broken_by_key() -> None:
    assert ordered([("b", 1.0), ("a", 1.0), ("c", 2.0)]) == [("c", 2.0), ("a", 1.0), ("b", 1.0)]
    both = fused([("a", 8.0), ("b", 4.0)], [("b", 0.9), ("c", 0.2)], 0.5)
    assert [key for key, _ in both] == ["b", "a", "c"]
    assert dict(both) == pytest.approx({"b": 0.25 + 0.45, "a": 0.5 + 0.1, "c": 0.1})
    assert dict(fused([], [("a", 0.5)], 0.6)) == pytest.approx({"a": 0.2})
    assert dict(fused([("a", 3.0)], [], 0.6)) == pytest.approx({"a": 0.6})
    assert fused([], [], 0.6) == []


def test_names_of_indices_count() -> None:
    assert numbered("chunks", 7) == "chunks-000007"
    assert [number_of(name) for name in ("chunks-000007", "chunks-7", "chunks-x", "chunks")] == [7, 0, 0, 0]
