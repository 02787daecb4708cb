"""Questions to a person as forms and in words, and agents' names as tools."""

from typing import Any

import pytest
from mcp_types import ClientCapabilities, ElicitationCapability, ElicitResult, FormElicitationCapability
from mcp_types import UrlElicitationCapability as UrlCapability

from agentic_backend.surfaces.mcp.people import answer_in, answer_of, form_of, in_words, takes_forms
from agentic_backend.surfaces.mcp.tools import tool_name

ALLOW = [{"id": "allow", "label": "Yes, do it"}, {"id": "deny", "label": "No", "default": True}]
APPROVAL: dict[str, Any] = {
    "title": "Allow note?",
    "question": "It notes milk.",
    "choices": ALLOW,
    "checkpoint_id": "c",
}
WORDS: dict[str, Any] = {"question": "Which one?", "checkpoint_id": "c"}
EITHER = {**APPROVAL, "free_text": True}


@pytest.mark.parametrize(
    ("agent_id", "name"),
    [("Georges", "ask_Georges"), ("my-agent_2", "ask_my-agent_2"), ("a" * 60, "ask_" + "a" * 60)],
)
def test_a_plain_id_is_a_tools_name(agent_id: str, name: str) -> None:
    assert tool_name(agent_id) == name


@pytest.mark.parametrize("agent_id", ["two words", "été", "a/b", "a.b", "", "x" * 61, "\ud800"])
def test_any_other_id_has_a_name_of_its_own(agent_id: str) -> None:
    name = tool_name(agent_id)
    assert len(name) <= 64
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum()
    others = {"a b", "a_b", "a:b", agent_id}
    assert len({tool_name(other) for other in others}) == len(others)


@pytest.mark.parametrize(
    ("asks", "takes"),
    [
        (None, False),
        (ElicitationCapability(), True),
        (ElicitationCapability(form=FormElicitationCapability()), True),
        (ElicitationCapability(url=UrlCapability()), False),
    ],
)
def test_a_form_goes_to_clients_that_take_forms(asks: ElicitationCapability | None, takes: bool) -> None:
    assert takes_forms(ClientCapabilities(elicitation=asks)) is takes
    assert not takes_forms(None)


def test_a_form_has_the_choices_or_a_text() -> None:
    message, schema = form_of(APPROVAL)
    assert message == "Allow note?\n\nIt notes milk."
    choice = {"type": "string", "title": "Choice", "enum": ["allow", "deny"], "enumNames": ["Yes, do it", "No"]}
    assert schema == {"type": "object", "properties": {"choice": choice}, "required": ["choice"]}
    assert list(form_of(WORDS)[1]["properties"]) == ["text"]
    assert list(form_of(EITHER)[1]["properties"]) == ["choice", "text"]
    assert form_of(EITHER)[1]["required"] == []


@pytest.mark.parametrize(
    ("question", "result", "answer"),
    [
        (APPROVAL, {"action": "accept", "content": {"choice": "allow"}}, {"choice_id": "allow"}),
        (APPROVAL, {"action": "accept", "content": {"choice": "other"}}, None),
        (APPROVAL, {"action": "accept", "content": {"choice": 1}}, None),
        (APPROVAL, {"action": "accept", "content": {}}, None),
        (APPROVAL, {"action": "accept"}, None),
        (APPROVAL, {"action": "decline", "content": {"choice": "allow"}}, None),
        (APPROVAL, {"action": "cancel"}, None),
        (WORDS, {"action": "accept", "content": {"text": " the blue one "}}, {"text": "the blue one"}),
        (WORDS, {"action": "accept", "content": {"text": " "}}, None),
        (
            EITHER,
            {"action": "accept", "content": {"choice": "deny", "text": "why"}},
            {"choice_id": "deny", "answer": "why"},
        ),
    ],
)
def test_an_answer_in_a_form(question: dict[str, Any], result: dict[str, Any], answer: dict[str, Any] | None) -> None:
    found = answer_in(question, ElicitResult.model_validate(result))
    assert found == (None if answer is None else {**answer, "checkpoint_id": "c"})
    assert answer_in(question, None) is None


@pytest.mark.parametrize(
    ("question", "words", "answer"),
    [
        (APPROVAL, "Allow", {"choice_id": "allow"}),
        (APPROVAL, "yes, do it ", {"choice_id": "allow"}),
        (APPROVAL, "2", {"choice_id": "deny"}),
        (APPROVAL, "perhaps", None),
        (EITHER, "perhaps", {"text": "perhaps"}),
        (WORDS, "the blue one", {"text": "the blue one"}),
    ],
)
def test_an_answer_in_words(question: dict[str, Any], words: str, answer: dict[str, Any] | None) -> None:
    assert answer_of(question, words) == (None if answer is None else {**answer, "checkpoint_id": "c"})


def test_of_several_questions_the_first_is_asked() -> None:
    several = {**APPROVAL, "questions": [{**APPROVAL, "id": "i1"}, {**WORDS, "id": "i2"}]}
    assert in_words(several) == "Allow note?\n\nIt notes milk.\n\n1. Yes, do it\n2. No"
    assert form_of(several) == form_of(APPROVAL)
