"""Questions to a person: what an interrupt's value becomes, and what an answer gives back to the graph."""

from typing import Any

import pytest

from agentic_backend.agent.people import answer_in_words, answers_for, question_for, run_of
from agentic_backend.errors import BadRequest, TurnFailed

ALL = ["approve", "edit", "reject", "respond"]
SEND = {"name": "send", "args": {"to": "ann"}, "description": "Send it?"}
DROP = {"name": "drop", "args": {}}


def review(*actions: dict[str, Any], **allowed: list[str]) -> dict[str, Any]:
    """What langchain's middleware interrupts with; an action may have all decisions unless `allowed` says others."""
    configs = [
        {"action_name": action["name"], "allowed_decisions": allowed.get(action["name"], ALL)} for action in actions
    ]
    return {"action_requests": list(actions), "review_configs": configs}


def asked(*values: Any) -> dict[str, Any]:
    """The question of a run at these interrupts, as if it was the only one of its checkpoint."""
    payload = question_for([(f"i{number}", value) for number, value in enumerate(values)], "run")
    assert run_of(payload) == "run"
    return {**payload, "checkpoint_id": "run"}


def test_a_question_is_no_other_of_the_same_checkpoint() -> None:
    one, other = (question_for([("i0", "Sure?")], "run") for _ in range(2))
    assert one["checkpoint_id"] != other["checkpoint_id"]
    assert run_of({"checkpoint_id": "run"}) == "run"  # of an earlier release


def refused_field(payload: dict[str, Any], answer: Any) -> str | None:
    with pytest.raises(BadRequest) as refused:
        answers_for(payload, answer)
    return refused.value.field


def test_a_text_and_our_own_shape_are_asked_as_they_are() -> None:
    ours = {
        "title": "Publish?",
        "choices": [{"id": "y", "label": "Yes", "default": True}],
        "free_text": True,
        "stage": "s",
        "more": [1],
    }
    assert asked(ours) == {
        **ours,
        "choices": [{"id": "y", "label": "Yes", "default": True}],
        "interrupt_id": "i0",
        "checkpoint_id": "run",
    }
    assert asked("Sure?") == {
        "question": "Sure?",
        "free_text": False,
        "interrupt_id": "i0",
        "checkpoint_id": "run",
    }


@pytest.mark.parametrize("answer", ["yes", {"choice_id": "y", "checkpoint_id": "run"}, {"answers": {"mine": 1}}, {}])
def test_an_answer_to_our_own_shape_is_the_agents_to_judge(answer: Any) -> None:
    assert answers_for(asked({"question": "Sure?"}), answer) == {"i0": answer}
    assert answers_for({"question": "Of an earlier release", "checkpoint_id": "run"}, answer) == {"": answer}


@pytest.mark.parametrize("value", [7, None, True, [1, "a"], {}, {"draft": "d"}, {"title": " "}, {"question": 7}, ""])
def test_any_other_value_is_shown_as_it_stands(value: Any) -> None:
    payload = asked(value)
    assert payload["stage"] == "value"
    assert payload["free_text"] is True
    assert payload["metadata"] == {"value": value}
    assert payload["question"].replace("\n", "").replace(" ", "") in (
        "7",
        "null",
        "true",
        '[1,"a"]',
        "{}",
        '{"draft":"d"}',
        '{"title":""}',
        '{"question":7}',
        '""',
    )
    assert answers_for(payload, {"text": "go on", "checkpoint_id": "run"}) == {"i0": "go on"}
    assert answers_for(payload, {"value": [1]}) == {"i0": [1]}
    assert answers_for(payload, "go on") == {"i0": "go on"}
    assert answers_for(payload, {"a": 1, "text": "b", "checkpoint_id": "run"}) == {"i0": {"a": 1, "text": "b"}}


@pytest.mark.parametrize(
    "value",
    [
        {"question": "Fill in", "questions": ["a?", "b?"]},
        {"question": "Fill in", "questions": [{"id": "z"}]},
        {"question": "Go on?", "stage": "action_review", "action_requests": "none"},
        {"title": "Go on?", "review_configs": []},
    ],
)
def test_a_value_with_fields_that_only_we_fill_is_shown_as_it_stands(value: Any) -> None:
    payload = asked(value)
    assert payload["stage"] == "value"
    assert payload["metadata"] == {"value": value}
    assert answers_for(payload, {"text": "go on", "checkpoint_id": "run"}, plain=True) == {"i0": "go on"}


def test_a_graph_that_does_not_know_our_shape_gets_the_words_alone() -> None:
    for payload in (asked("Name?"), asked({"question": "Name?", "about": [1]})):
        assert answers_for(payload, {"text": "Ann", "checkpoint_id": "run"}, plain=True) == {"i0": "Ann"}
        assert answers_for(payload, {"value": True}, plain=True) == {"i0": True}
        assert answers_for(payload, {"a": 1, "checkpoint_id": "run"}, plain=True) == {"i0": {"a": 1}}
        assert answers_for(payload, "Ann", plain=True) == {"i0": "Ann"}
    picked = {"choice_id": "y", "checkpoint_id": "run"}
    ours = asked({"question": "Sure?", "choices": [{"id": "y", "label": "Yes"}]})
    assert answers_for(ours, picked, plain=True) == {"i0": picked}


def test_what_is_no_json_or_too_large_cannot_be_shown() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (object(), loop, {"question": "x" * 17_000}, ["x" * 17_000]):
        with pytest.raises(TurnFailed, match="cannot be shown"):
            asked(value)


def test_a_review_of_one_call_is_a_question_with_choices() -> None:
    value = review(SEND)
    assert asked(value) == {
        "stage": "action_review",
        "title": "Allow send?",
        "question": "Send it?",
        "choices": [{"id": "approve", "label": "Approve"}, {"id": "reject", "label": "Reject", "default": True}],
        "free_text": False,
        **value,
        "interrupt_id": "i0",
        "checkpoint_id": "run",
    }


def test_a_long_text_about_a_call_is_cut_and_the_call_is_not() -> None:
    long = {**SEND, "args": {"text": "x" * 5_000}, "description": "x" * 5_000}
    payload = asked(review(long))
    assert payload["question"] == "x" * 4_000 + "…"
    assert payload["action_requests"] == [long]
    assert len(asked(["x" * 6_000])["question"]) == 4_001


def test_only_what_every_call_allows_is_a_choice() -> None:
    payload = asked(review(SEND, DROP, drop=["reject"]))
    assert payload["title"] == "Allow 2 calls?"
    assert payload["question"] == "Send it?\n\nThe agent wants to call drop."
    assert [choice["id"] for choice in payload["choices"]] == ["reject"]
    assert "choices" not in asked(review(SEND, send=["edit"]))
    words = asked(review(SEND, send=["respond"]))
    assert words["free_text"] is True
    assert answers_for(words, {"text": "42"}) == {"i0": {"decisions": [{"type": "respond", "message": "42"}]}}
    # A call that no configuration names may be approved or rejected, and is not edited.
    bare = asked({"action_requests": [SEND], "review_configs": []})
    assert answers_for(bare, {"choice_id": "approve"}) == {"i0": {"decisions": [{"type": "approve"}]}}
    edit = {"type": "edit", "edited_action": {"name": "send", "args": {}}}
    assert refused_field(bare, {"decisions": [edit]}) == "decisions[0].type"


def test_a_choice_is_a_decision_on_every_call() -> None:
    payload = asked(review(SEND, DROP))
    assert answers_for(payload, {"choice_id": "approve", "checkpoint_id": "run"}) == {
        "i0": {"decisions": [{"type": "approve"}] * 2}
    }
    for words in ("answer", "text"):
        assert answers_for(payload, {"choice_id": "reject", words: "why"}) == {
            "i0": {"decisions": [{"type": "reject", "message": "why"}] * 2}
        }
    assert answers_for(payload, {"choice_id": "reject", "answer": " "}) == {
        "i0": {"decisions": [{"type": "reject"}] * 2}
    }


def test_decisions_are_passed_on() -> None:
    decisions = [
        {"type": "edit", "edited_action": {"name": "send", "args": {"to": "bob"}}},
        {"type": "reject", "message": "No."},
    ]
    assert answers_for(asked(review(SEND, DROP)), {"decisions": decisions}) == {"i0": {"decisions": decisions}}
    old = {"name": "send", "arguments": {}}
    edited = [{"type": "edit", "edited_action": {"name": "send", "arguments": {"to": "bob"}}}]
    assert answers_for(asked(review(old)), {"decisions": edited}) == {"i0": {"decisions": edited}}


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        ("approve", "choice_id"),
        ({}, "choice_id"),
        ({"choice_id": "allow"}, "choice_id"),
        ({"choice_id": ["approve"]}, "choice_id"),
        ({"choice_id": "edit"}, "choice_id"),
        ({"text": "yes"}, "text"),
        ({"decisions": []}, "decisions"),
        ({"decisions": {"type": "approve"}}, "decisions"),
        ({"decisions": [{"type": "approve"}] * 3}, "decisions"),
        ({"decisions": [{"type": "approve"}, "reject"]}, "decisions[1].type"),
        ({"decisions": [{"type": "approve"}, {"type": "edit"}]}, "decisions[1].type"),
        ({"decisions": [{"type": {}}, {"type": "reject"}]}, "decisions[0].type"),
        ({"decisions": [{"type": "edit"}, {"type": "reject"}]}, "decisions[0].edited_action"),
        ({"decisions": [{"type": "edit", "edited_action": {"args": {}}}, {"type": "reject"}]},
         "decisions[0].edited_action"),
        ({"decisions": [{"type": "edit", "edited_action": {"name": "send", "args": "x"}}, {"type": "reject"}]},
         "decisions[0].edited_action.args"),
        ({"decisions": [{"type": "approve"}, {"type": "reject", "message": 7}]}, "decisions[1].message"),
        ({"decisions": [{"type": "respond"}, {"type": "reject"}]}, "decisions[0].message"),
    ],
)  # fmt: skip
def test_a_decision_that_the_graph_could_not_take_is_refused_by_its_field(answer: Any, field: str) -> None:
    assert refused_field(asked(review(SEND, DROP, drop=["approve", "reject"])), answer) == field


def test_a_choice_that_a_call_does_not_allow_is_refused() -> None:
    assert refused_field(asked(review(SEND, send=["reject"])), {"choice_id": "approve"}) == "choice_id"


def test_langchains_request_about_one_call_takes_one_decision() -> None:
    payload = asked({"type": "tool_approval", "tool_call_id": "c1", **SEND})
    assert payload["title"] == "Allow send?"
    assert payload["action_requests"] == [SEND]
    assert "review_configs" not in payload
    assert answers_for(payload, {"choice_id": "approve"}) == {"i0": {"type": "approve"}}
    edit = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "bob"}}}
    assert answers_for(payload, {"decisions": [edit]}) == {"i0": edit}
    assert asked({"type": "other", "tool_call_id": "c1", **SEND})["stage"] == "value"


def test_several_questions_are_asked_at_once_and_answered_by_their_ids() -> None:
    payload = asked({"question": "Sure?", "choices": [{"id": "y", "label": "Yes"}]}, review(SEND), 7)
    assert (payload["interrupt_id"], payload["question"]) == ("i0", "Sure?")
    assert [one["id"] for one in payload["questions"]] == ["i0", "i1", "i2"]
    assert payload["questions"][1] | {"id": ""} == {
        key: item for key, item in asked(review(SEND)).items() if key not in ("interrupt_id", "checkpoint_id")
    } | {"id": ""}
    answers = {"i1": {"choice_id": "approve"}, "i2": {"text": "8"}}
    assert answers_for(payload, {"answers": answers, "checkpoint_id": "run"}) == {
        "i1": {"decisions": [{"type": "approve"}]},
        "i2": "8",
    }
    # In the shape of one question it answers the first.
    assert answers_for(payload, {"choice_id": "y"}) == {"i0": {"choice_id": "y"}}
    unknown: list[Any] = [{}, {"i9": "x"}, {"i0": "x", "i9": "x"}, "x", []]
    for answer in unknown:
        assert refused_field(payload, {"answers": answer}) == "answers"
    assert refused_field(payload, {"answers": {"i1": {"decisions": [{}]}}}) == "answers.i1.decisions[0].type"


def test_one_question_may_be_answered_by_its_id_too() -> None:
    assert answers_for(asked("Sure?"), {"answers": {"i0": "yes"}}) == {"i0": "yes"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"choice_id": "y", "checkpoint_id": "run"}, "Yes"),
        ({"choice_id": "unknown"}, "unknown"),
        ({"choice_id": "y", "text": "but soon"}, "Yes\nbut soon"),
        ({"text": "Perhaps"}, "Perhaps"),
        ("Perhaps", "Perhaps"),
        ({"decisions": [{"type": "approve"}, {"type": "edit"}]}, "approve\nedit"),
        ({"a": "é", "checkpoint_id": "run"}, '{"a": "é"}'),
        ({"choice_id": [1]}, '{"choice_id": [1]}'),
        ({}, "{}"),
    ],
)
def test_an_answer_in_words(answer: Any, words: str) -> None:
    assert answer_in_words(asked({"question": "Sure?", "choices": [{"id": "y", "label": "Yes"}]}), answer) == words


def test_answers_to_several_questions_in_words() -> None:
    payload = asked("Sure?", review(SEND))
    assert answer_in_words(
        payload, {"answers": {"i0": {"text": "Yes"}, "i1": {"choice_id": "reject", "answer": "No."}}}
    ) == ("Yes\nReject\nNo.")
