"""Questions as interrupts, and what `resume` says as a person's answer."""

import pytest

from agentic_backend.agent.people import answers_for, question_for
from agentic_backend.errors import BadRequest
from agentic_backend.surfaces.agui.people import InterruptId, answered, hash_of, interrupts, known_calls, unique_call
from tests.agentic_backend.surfaces.agui.turns import QUESTION
from tests.support.telling_agent import REVIEW

ODD = InterruptId("run:1", "review", "send/mail ü", "i/1", hash_of("Hello"), 12, "an/exchange of/anybody")


def asked(payload, calls=None):
    return interrupts(payload, "e1", "Hello", 4, calls or {})


def entry(interrupt, payload=None, status="resolved"):
    return {"interruptId": interrupt["id"], "status": status, "payload": payload}


def said(question, payload=None, status="resolved"):
    (interrupt,) = asked(question)
    answer = answered([entry(interrupt, payload, status)])
    assert answer.payload.pop("checkpoint_id") == question["checkpoint_id"]
    return answer.payload


def test_an_id_says_all_that_an_answer_needs():
    assert InterruptId.read(str(ODD)) == ODD
    (interrupt,) = asked(QUESTION)
    answer = answered([entry(interrupt, {"approved": True})])
    assert (answer.exchange, answer.rank, answer.asked, answer.abandoned) == ("e1", 4, hash_of("Hello"), False)
    assert answer.payload == {"choice_id": "allow", "checkpoint_id": "k:1"}


@pytest.mark.parametrize("text", ["", "a/b", "k/approval///x/4", "k/other////4/e", "k/words////-4/e", "k/words////x/e"])
def test_an_id_of_another_make_is_none(text):
    assert InterruptId.read(text) is None


def test_a_question_about_a_tool_call_names_the_call_as_the_client_knows_it():
    (interrupt,) = asked(QUESTION, {"c1": "c1~3"})
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", "c1~3")
    assert interrupt["message"] == "Allow?"
    assert interrupt["metadata"] == {"turnwise": QUESTION}
    (other,) = asked(QUESTION)
    assert (other["reason"], "toolCallId" in other) == ("turnwise:tool_approval", False)


@pytest.mark.parametrize(
    ("payload", "status", "answer"),
    [
        ({"approved": True}, "resolved", "allow"),
        (True, "resolved", "allow"),
        ({"approved": False}, "resolved", "deny"),
        (False, "resolved", "deny"),
        (None, "cancelled", "deny"),
        ({"choice_id": "allow"}, "resolved", "allow"),
    ],
)
def test_a_tool_is_allowed_by_a_clear_yes(payload, status, answer):
    assert said(QUESTION, payload, status) == {"choice_id": answer}


def test_a_review_takes_yes_no_and_edited_arguments_where_they_may_be():
    one = {"action_requests": REVIEW["action_requests"][:1], "review_configs": REVIEW["review_configs"][:1]}
    may_edit = question_for([("i1", one)], "run")
    (interrupt,) = asked(may_edit)
    assert set(interrupt["responseSchema"]["properties"]) == {"approved", "editedArgs"}
    edited = said(may_edit, {"approved": True, "editedArgs": {"to": "bob"}})
    assert edited == {"decisions": [{"type": "edit", "edited_action": {"name": "send", "args": {"to": "bob"}}}]}
    assert said(may_edit, {"approved": False, "reason": "No mail"}) == {"choice_id": "reject", "answer": "No mail"}
    assert said(may_edit, status="cancelled") == {"choice_id": "reject"}
    for payload in (edited, {"choice_id": "approve"}):
        answers_for(may_edit, payload)  # as the service checks it

    for question in (question_for([("i1", REVIEW)], "run"), question_for([("i1", one | _only("approve"))], "run")):
        (interrupt,) = asked(question)
        assert set(interrupt["responseSchema"]["properties"]) == {"approved"}
        assert said(question, {"approved": True, "editedArgs": {}}) == {"choice_id": "approve"}


def _only(*kinds):
    return {"review_configs": [{"action_name": "send", "allowed_decisions": list(kinds)}]}


def test_words_choices_and_values():
    words = question_for([("i1", "Where to?")], "run")
    assert asked(words)[0]["responseSchema"]["required"] == ["text"]
    assert asked(words)[0]["reason"] == "input_required"
    assert said(words, "Oslo") == {"text": "Oslo"}
    assert said(words, {"text": "Oslo"}) == {"text": "Oslo"}
    assert said(words, 7) == {"value": 7}
    assert said(words, status="cancelled") == {"value": None}
    colors = [{"id": "r", "label": "Red"}, {"id": "g", "label": "Green", "default": True}]
    choices = question_for([("i1", {"question": "Which?", "choices": colors})], "run")
    assert asked(choices)[0]["responseSchema"]["properties"] == {"choice_id": {"type": "string", "enum": ["r", "g"]}}
    assert said(choices, {"choice_id": "r"}) == {"choice_id": "r"}
    assert said(choices, status="cancelled") == {"choice_id": "g"}
    both = question_for([("i1", {"question": "Which?", "choices": colors, "free_text": True})], "run")
    assert len(asked(both)[0]["responseSchema"]["anyOf"]) == 2


def test_of_several_questions_each_answer_goes_to_its_own():
    payload = question_for([("i1", "Where to?"), ("i2", REVIEW)], "run")
    first, second = asked(payload)
    assert first["id"] != second["id"]
    both = answered([entry(second, True), entry(first, "Oslo")])
    assert both.payload == {
        "answers": {"i2": {"choice_id": "approve"}, "i1": {"text": "Oslo"}},
        "checkpoint_id": payload["checkpoint_id"],
    }
    assert answered([entry(first, status="cancelled"), entry(second, True)]).abandoned is False
    assert answered([entry(one, status="cancelled") for one in (first, second)]).abandoned is True


def test_answers_to_questions_of_two_runs_are_not_one_answer():
    (first,) = asked(question_for([("i1", "Where to?")], "run"))
    (second,) = asked(question_for([("i1", "Where to?")], "run"))
    with pytest.raises(BadRequest) as refusal:
        answered([entry(first), entry(second)])
    assert refusal.value.field == "resume[1].interruptId"


def test_tool_calls_of_a_thread_by_the_ids_that_agents_gave():
    assert known_calls(["a", "a~3", "b~x", "~2"]) == {"a": "a~3", "b~x": "b~x", "": "~2"}
    assert unique_call("a", 3, 0, {"b"}) == "a"
    assert unique_call("a", 3, 0, {"a"}) == "a~3"
    assert unique_call("a", 3, 2, {"a", "a~3"}) == "a~3002"
