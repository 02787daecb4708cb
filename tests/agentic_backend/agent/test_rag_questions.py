"""Which questions lean on the one before them, and what is searched for then."""

import pytest

from agentic_backend.agent.questions import follows_up, with_what_it_refers_to
from agentic_backend.llm.prompt import HistoryItem

PERSIST = "How does Turnwise persist a turn?"


def said(*texts: str) -> list[HistoryItem]:
    """A conversation of these questions, each answered."""
    return [item for text in texts for item in (HistoryItem("user", text), HistoryItem("assistant", "It does."))]


@pytest.mark.parametrize(
    "question",
    [
        "and how long does that take?",
        "And in French?",
        "Why?",
        "How long?",
        "which version?",
        "What about the spool?",
        "how does it work?",
        "Is that slow?",
        "Who wrote this?",
        "tell me more about that",
        "What happens when they fail?",
        "Et combien de temps cela prend-il ?",
        "pourquoi ?",
        "Comment ça marche ?",
    ],
)
def test_a_question_that_points_back_follows_up(question: str) -> None:
    assert follows_up(question)


@pytest.mark.parametrize(
    "question",
    [
        PERSIST,
        "What is RRF?",
        "How does reranking work?",
        "Who is Ada?",
        "Which index holds the chunks of a document?",
        "Show the settings that bound a turn",
        "Quels sont les codes d'erreur du service ?",
        "hybrid search",
        "",
        "?!",
        "Take the following text and tell me what the author wanted to say with it and " + "word " * 20,
    ],
)
def test_a_question_that_stands_on_its_own_does_not(question: str) -> None:
    assert not follows_up(question)


def test_a_follow_up_is_searched_with_the_question_before_it() -> None:
    asked = with_what_it_refers_to("and how long does that take?", said("What is RRF?", PERSIST))
    assert asked == f"{PERSIST}\nand how long does that take?"


def test_a_chain_of_follow_ups_goes_back_to_the_question_that_stands_on_its_own() -> None:
    asked = with_what_it_refers_to("Why?", said("Who is Ada?", PERSIST, "and how long does that take?"))
    assert asked == f"{PERSIST}\nand how long does that take?\nWhy?"


def test_a_long_chain_is_cut() -> None:
    asked = with_what_it_refers_to("Why?", said(PERSIST, "and it?", "so that?", "but this?"))
    assert asked == "and it?\nso that?\nbut this?\nWhy?"


def test_what_comes_before_is_clipped() -> None:
    asked = with_what_it_refers_to("Why?", said("x" * 10_000))
    assert asked == "x" * 600 + "\nWhy?"


def test_the_first_question_and_one_that_stands_alone_are_searched_as_they_are() -> None:
    assert with_what_it_refers_to("and that?", []) == "and that?"
    assert with_what_it_refers_to("What is RRF?", said(PERSIST)) == "What is RRF?"
