"""Questions to a person as interrupts, and what a client resumes with as an answer of ours."""

import pytest

from agentic_backend.agent.people import answers_for, question_for
from agentic_backend.surfaces.langgraph.people import answer_of, interrupts, run_id_of_answer, task_of

APPROVAL = {
    "stage": "tool_approval",
    "title": "Allow add?",
    "question": "Sammy wants to call add.",
    "choices": [{"id": "allow", "label": "Yes"}, {"id": "deny", "label": "No", "default": True}],
    "metadata": {"id": "c1", "name": "add", "arguments": {"a": 1}},
}
REVIEW = {
    "action_requests": [{"name": "add", "args": {"a": 1}}],
    "review_configs": [{"action_name": "add", "allowed_decisions": ["approve", "edit", "reject"]}],
}


def asked(*values):
    return question_for([(f"i{number}", value) for number, value in enumerate(values)], "run")


@pytest.mark.parametrize(
    "value", ["Which one?", {"any": ["json", 1]}, 7, REVIEW, {"title": "Publish?", "question": "ok?"}, ["a", "b"]]
)
def test_an_interrupt_has_the_value_that_its_node_raised(value):
    (one,) = interrupts(asked(value))
    assert one["id"] == "i0"
    assert {key: one["value"][key] for key in value} == value if isinstance(value, dict) else one["value"] == value


def test_a_call_of_a_tool_is_asked_about_in_langchains_shape_too():
    (one,) = interrupts(asked(APPROVAL))
    assert one["value"]["choices"][0]["id"] == "allow"
    assert one["value"]["action_requests"] == [
        {"name": "add", "args": {"a": 1}, "description": "Sammy wants to call add."}
    ]
    assert one["value"]["review_configs"] == [{"action_name": "add", "allowed_decisions": ["approve", "reject"]}]


@pytest.mark.parametrize(
    ("said", "choice"),
    [
        ({"choice_id": "allow"}, "allow"),
        ({"decisions": [{"type": "approve"}]}, "allow"),
        ({"decisions": [{"type": "reject", "message": "no"}]}, "deny"),
        ([{"type": "accept"}], "allow"),
        ([{"type": "ignore"}], "deny"),
        ({"type": "approve"}, "allow"),
        ({"approved": True}, "allow"),
        (True, "allow"),
        (False, "deny"),
        ("yes", "allow"),
        ("hm", "deny"),
        ({}, "deny"),
        ([], "deny"),
        (None, "deny"),
        (7, "deny"),
    ],
)
def test_only_a_clear_yes_lets_a_tool_be_called(said, choice):
    assert answer_of(asked(APPROVAL), said).payload == {"choice_id": choice}


@pytest.mark.parametrize("value", ["Which one?", {"any": "json"}, 7])
@pytest.mark.parametrize("said", ["this", {"text": "this"}, {"value": 1}, ["a"], 0, False, {"i9": 1}])
def test_a_node_gets_what_it_is_resumed_with(value, said):
    payload = asked(value)
    assert list(answers_for(payload, answer_of(payload, said).payload, plain=True).values()) == [said]


def test_decisions_reach_a_review():
    payload = asked(REVIEW)
    decisions = {"decisions": [{"type": "edit", "edited_action": {"name": "add", "args": {"a": 2}}}]}
    for said in (decisions, decisions["decisions"]):
        assert list(answers_for(payload, answer_of(payload, said).payload, plain=True).values()) == [decisions]


def test_several_questions_are_answered_by_their_ids():
    payload = asked("First?", "Second?")
    assert [one["id"] for one in interrupts(payload)] == ["i0", "i1"]
    answers = answers_for(payload, answer_of(payload, {"i0": "a", "i1": {"b": 1}}).payload, plain=True)
    assert answers == {"i0": "a", "i1": {"b": 1}}
    assert answers_for(payload, answer_of(payload, {"i1": "b"}).payload, plain=True) == {"i1": "b"}
    assert answers_for(payload, answer_of(payload, "a").payload, plain=True) == {"i0": "a"}
    assert answers_for(asked("One?"), answer_of(asked("One?"), {"i0": "a"}).payload, plain=True) == {"i0": "a"}


def test_names_follow_from_the_question():
    one, other = {"checkpoint_id": "k:1"}, {"checkpoint_id": "k:2"}
    assert task_of(one) == task_of(dict(one)) != task_of(other)
    assert run_id_of_answer("e", "k:1") == run_id_of_answer("e", "k:1") != run_id_of_answer("e", "k:2")
