import json

import pytest

from agentic_backend.surfaces.openai.chat_request import MAX_TOOLS
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import MAX_MESSAGES
from agentic_backend.surfaces.openai.response_input import read_input
from agentic_backend.surfaces.openai.response_request import read_response_request

ASKED = {"model": "Georges", "input": "What is a turn?"}
USER = {"role": "user", "content": "What?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": '{"zone":"UTC"}', "id": "fc_1"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
TOOL = {
    "type": "function",
    "name": "clock",
    "description": "The time.",
    "parameters": {"type": "object"},
    "strict": True,
}


def read(**more):
    return read_response_request(json.dumps({**ASKED, **more}).encode())


def refusal(**more):
    with pytest.raises(Refused) as caught:
        read_input(read(**more).input)
    return caught.value.field, caught.value.their_code


def said(conversation):
    return [(item.role, item.text) for item in conversation.history]


def test_a_text_is_the_question():
    conversation = read_input(read().input)
    assert (conversation.history, conversation.question, conversation.at) == ((), "What is a turn?", "input")


def test_of_items_the_newest_is_the_question():
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    items = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yes."}], "id": "msg_1", "phase": "x"},
        USER,
    ]
    conversation = read_input(items)
    assert said(conversation) == [("system", "Be brief."), ("user", "one\ntwo"), ("assistant", "Yes.")]
    assert (conversation.question, conversation.at) == ("What?", "input[3].content")


def test_calls_belong_to_the_answer_before_them_and_what_our_responses_have_beside_is_left_out():
    second = {**CALL, "call_id": "c2"}
    answer = {"role": "assistant", "content": "Let me look."}
    items = [USER, {"type": "reasoning", "summary": []}, answer, CALL, second, {"type": "mcp_call"}, RESULT]
    conversation = read_input(items)
    assert conversation.question == ""
    assert said(conversation) == [("user", "What?"), ("assistant", "Let me look."), ("tool", "noon")]
    assert [call.id for call in conversation.history[1].calls] == ["c1", "c2"]
    assert conversation.left_out == frozenset()
    alone = read_input([USER, CALL, RESULT])
    assert said(alone) == [("user", "What?"), ("assistant", ""), ("tool", "noon")]


def test_a_result_may_be_of_a_call_of_the_response_before():
    assert read_input([RESULT], ["c1"]).history[0].call_id == "c1"
    output = [{"type": "input_text", "text": "noon"}]
    assert read_input([{**RESULT, "output": output}], ["c1"]).history[0].text == "noon"


def test_what_other_servers_make_is_left_out_with_a_word():
    image = {"type": "input_image", "image_url": "data:"}
    items = [{"type": "web_search_call"}, {"role": "user", "content": [image]}, USER]
    conversation = read_input(items)
    assert conversation.left_out == {"web_search_call", "image"}
    assert said(conversation) == [("user", "[image]")]


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        (7, "input", "invalid_type"),
        (" ", "input", "invalid_value"),
        ([], "input", "invalid_value"),
        ([USER] * (MAX_MESSAGES + 1), "input", "array_above_max_length"),
        ([{"type": "reasoning"}], "input", "invalid_value"),
        (["x"], "input[0]", "invalid_type"),
        ([{"content": "x"}], "input[0].role", "missing_required_parameter"),
        ([{"role": "king", "content": "x"}], "input[0].role", "invalid_value"),
        ([{"role": "user"}], "input[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": " "}], "input[0].content", "invalid_value"),
        ([USER, {"role": "assistant", "content": "x"}], "input[1].role", "invalid_value"),
        ([{"type": "item_reference", "id": "msg_1"}, USER], "input[0].type", "invalid_value"),
        ([RESULT], "input[0].call_id", "invalid_value"),
        ([CALL, {**RESULT, "output": None}], "input[1].output", "missing_required_parameter"),
        ([{**CALL, "name": ""}, RESULT], "input[0].name", "invalid_value"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0]", "unsupported_content"),
    ],
)
def test_an_input_that_cannot_be_read_is_refused_by_its_place(given, field, code):
    assert refusal(input=given) == (field, code)


@pytest.mark.parametrize(
    ("more", "field", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type", "invalid_value"),
        ({"prompt": {"id": "p"}}, "prompt", "invalid_value"),
        ({"previous_response_id": "x" * 257}, "previous_response_id", "string_above_max_length"),
        ({"previous_response_id": "a", "conversation": "b"}, "conversation", "invalid_value"),
        ({"conversation": {"id": ""}}, "conversation.id", "invalid_value"),
        ({"conversation": 7}, "conversation", "invalid_type"),
        ({"background": True, "store": False}, "background", "invalid_value"),
        ({"store": "yes"}, "store", "invalid_type"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools", "array_above_max_length"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "object_above_max_properties"),
        ({"metadata": {"k" * 65: ""}}, "metadata", "string_above_max_length"),
        ({"metadata": {"k": "v" * 513}}, "metadata", "string_above_max_length"),
        ({"metadata": {"k": 1}}, "metadata", "invalid_type"),
        ({"instructions": 1}, "instructions", "invalid_type"),
    ],
)
def test_a_request_with_a_fault_is_refused_by_its_field(more, field, code):
    assert refusal(**more) == (field, code)


def test_what_a_request_says_is_read():
    wanted = read(
        instructions="Be brief.",
        conversation={"id": "c"},
        stream=True,
        background=True,
        metadata={"a": "b"},
        tools=[TOOL, {"type": "web_search"}],
        tool_choice="auto",
    )
    assert (wanted.instructions, wanted.conversation, wanted.metadata) == ("Be brief.", "c", {"a": "b"})
    assert (wanted.stream, wanted.background, wanted.store) == (True, True, True)
    assert wanted.tools == ({"name": "clock", "description": "The time.", "parameters": {"type": "object"}},)
    assert wanted.ignored == ("tools[1]",)
    assert read(conversation="c", store=None).conversation == "c"


def test_parameters_that_nothing_comes_of_are_named_where_they_ask_for_something():
    neutral = {"temperature": 1, "truncation": "disabled", "reasoning": {"summary": "auto", "effort": None}}
    assert read(**neutral, text={"format": {"type": "text"}, "verbosity": "medium"}, include=[]).ignored == ()
    asking = read(truncation="auto", reasoning={"effort": "low"}, text={"verbosity": "low"}, max_tool_calls=1)
    assert asking.ignored == ("max_tool_calls", "truncation", "reasoning.effort", "text.verbosity")
    choosing = {"tool_choice": "required", "parallel_tool_calls": False}
    assert read(**choosing).ignored == ()
    assert read(**choosing, tools=[TOOL]).ignored == ("tool_choice", "parallel_tool_calls")
    assert read(tools=[TOOL], tool_choice="none").tools == ()
