"""BM25 against a calculation by hand, and the properties that it is there for."""

import math

import pytest

from knowledge_flow_backend.rerank.bm25 import bm25, words
from knowledge_flow_backend.rerank.local import normalised


def test_a_score_is_that_of_the_formula() -> None:
    texts = ["spool spool turn", "turn"]
    first = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5)) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert bm25("the spool", texts) == [pytest.approx(first), 0.0]


def test_a_rare_word_counts_more_a_repeated_one_less_and_less_a_long_text_less() -> None:
    rare, common = bm25("rare common", ["rare x y", "common x y", "common x z"])[:2]
    assert rare > common
    once, twice, often = bm25("spool", ["spool a b c d e f g", "spool spool a b c d e f", "spool " * 8])
    assert once < twice < often < 8 * once
    short, long = bm25("spool", ["spool here", "spool " + "filler " * 50])
    assert short > long


def test_identifiers_are_found_by_their_parts() -> None:
    assert words("max_connections: hnsw.ef-search ÉTÉ 漢字") == [
        "max",
        "connections",
        "hnsw",
        "ef",
        "search",
        "été",
        "漢字",
    ]


@pytest.mark.parametrize(("question", "texts"), [("", ["a"]), ("?", ["a", ""]), ("a", ["", ""]), ("a", [])])
def test_nothing_shared_is_nothing(question: str, texts: list[str]) -> None:
    assert bm25(question, texts) == [0.0] * len(texts)


@pytest.mark.parametrize(
    ("scores", "spread"), [([3.0, 1.0, 2.0], [1.0, 0.0, 0.5]), ([5.0, 5.0], [0.0, 0.0]), ([-0.2], [0.0])]
)
def test_scores_are_spread_over_zero_to_one(scores: list[float], spread: list[float]) -> None:
    assert normalised(scores) == spread
