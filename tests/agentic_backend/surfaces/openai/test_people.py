import pytest

from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.surfaces.openai.people import answer_of, in_words, was_asked

CHOICES = {"question": "Publish?", "choices": [{"id": "publish", "label": "Yes"}, {"id": "drop", "label": "No"}]}
FREE = {"title": "Where?", "free_text": True}
TWO = {**CHOICES, "questions": [{**CHOICES, "id": "a"}, {**FREE, "id": "b"}]}


def test_several_questions_are_numbered():
    assert in_words(TWO) == "(1) Publish?\n\n1. Yes\n2. No\n\n(2) Where?"
    assert in_words(FREE) == "Where?"


@pytest.mark.parametrize(
    ("asked", "reply", "answer"),
    [
        (CHOICES, " yes ", {"choice_id": "publish"}),
        (CHOICES, "DROP", {"choice_id": "drop"}),
        (CHOICES, "2", {"choice_id": "drop"}),
        (CHOICES, "1.", {"choice_id": "publish"}),
        (CHOICES, "3", None),
        (CHOICES, "perhaps", None),
        ({**CHOICES, "free_text": True}, "perhaps", {"text": "perhaps"}),
        (FREE, " In Paris. ", {"text": "In Paris."}),
        (TWO, "no", {"choice_id": "drop"}),
    ],
)
def test_a_reply_in_words_is_an_answer(asked, reply, answer):
    assert answer_of(asked, reply) == answer


def test_a_reply_is_one_only_right_after_the_question():
    shown = HistoryItem("assistant", f"Well.\n\n{in_words(CHOICES)}")
    other = HistoryItem("assistant", "Published.")
    asked = HistoryItem("user", "Go")
    assert was_asked(CHOICES, [asked, shown])
    assert not was_asked(CHOICES, [asked, other])
    assert not was_asked(CHOICES, [asked, shown, asked])
    assert not was_asked(CHOICES, [])
