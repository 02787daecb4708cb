"""A vector on its way from a search to its rerank."""

from knowledge_flow_backend.rerank import local
from knowledge_flow_backend.rerank.local import QuestionVectors
from tests.knowledge_flow_backend.corpus import vector


def test_what_a_search_left_is_taken_once() -> None:
    vectors = QuestionVectors()
    left = vector("q")
    vectors.leave("q", left)
    assert vectors.take("another") is None
    assert vectors.take("q") is left
    assert vectors.take("q") is None


def test_only_the_newest_questions_are_kept() -> None:
    vectors = QuestionVectors()
    for number in range(local.KEPT + 5):
        vectors.leave(f"q{number}", vector("q"))
    assert len(vectors) == local.KEPT
    assert vectors.take("q4") is None
    assert vectors.take("q5") is not None


def test_what_is_too_old_is_not_given() -> None:
    vectors = QuestionVectors(kept_s=-1.0)
    vectors.leave("q", vector("q"))
    assert vectors.take("q") is None
