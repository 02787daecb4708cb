import json

import pytest

from agentic_backend.llm.prompt import EarlierCall, HistoryItem
from agentic_backend.surfaces.openai.chat_request import MAX_TOOLS, read_chat_request
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import MAX_MESSAGES, MAX_PARTS, with_results
from tests.agentic_backend.surfaces.openai.front_ends import libre_chat, open_webui, with_image

USER = {"role": "user", "content": "What is a turn?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object"}}}


def read(*messages, **more):
    return read_chat_request(json.dumps({"model": "Georges", "messages": messages or [USER], **more}).encode())


def refusal(body):
    with pytest.raises(Refused) as caught:
        read_chat_request(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value


def said(request):
    return [(item.role, item.text) for item in request.conversation.history]


def test_the_newest_message_is_the_question_and_the_others_are_the_history():
    request = read({"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "A "}, USER)
    assert request.conversation.question == "What is a turn?"
    assert request.conversation.at == "messages[3].content"
    assert said(request) == [("system", "Be brief."), ("user", "What is a turn?"), ("assistant", "A ")]


def test_a_developer_is_a_system_and_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    request = read({"role": "developer", "content": parts}, {"role": "user", "content": parts})
    assert said(request) == [("system", "one\ntwo")]
    assert request.conversation.question == "one\ntwo"


def test_results_of_the_clients_tools_end_the_history_and_there_is_no_question():
    request = read(USER, CALLED, {"role": "tool", "tool_call_id": "c1", "content": "noon"}, tools=[TOOL])
    assert request.conversation.question == ""
    called, result = request.conversation.history[1:]
    assert [(call.id, call.name, call.arguments) for call in called.calls] == [("c1", "clock", '{"zone":"UTC"}')]
    assert (result.role, result.text, result.call_id) == ("tool", "noon", "c1")
    assert request.tools == ({"name": "clock", "description": "The time.", "parameters": {"type": "object"}},)


def test_calls_without_a_result_and_further_results_are_left_out():
    first, second = EarlierCall("c1", "clock", "{}"), EarlierCall("c2", "clock", "{}")
    user, noon, night = (
        HistoryItem("user", "When?"),
        *(HistoryItem("tool", text, call_id="c1") for text in ("12", "24")),
    )
    both = HistoryItem("assistant", "Let me see.", calls=(first, second))
    one = HistoryItem("assistant", "Let me see.", calls=(first,))
    assert with_results([user, both, noon, night, user]) == (user, one, noon, user)
    assert with_results([user, both, user]) == (user, HistoryItem("assistant", "Let me see."), user)
    assert with_results([user, HistoryItem("assistant", "", calls=(first,)), user]) == (user, user)
    assert with_results([user, one, noon]) == (user, one, noon)
    assert with_results([one]) == (HistoryItem("assistant", "Let me see."),)
    assert with_results([]) == ()


def test_tools_that_are_not_to_be_called_are_not_offered():
    assert read(tools=[TOOL], tool_choice="none").tools == ()


@pytest.mark.parametrize("body", [open_webui("And then?", "a", "b"), libre_chat("And then?", "a", "b")])
def test_requests_of_front_ends_are_read_without_a_warning(body):
    request = read_chat_request(json.dumps(body).encode())
    assert (request.stream, request.include_usage, request.ignored) == (True, True, ())
    assert said(request) == [("user", "a"), ("assistant", "b")]


def test_what_nothing_comes_of_is_named_only_where_it_asks_for_something():
    assert read(temperature=1, top_p=1.0, n=1, presence_penalty=0, stop=None, user="x", store=True).ignored == ()
    request = read(temperature=0.2, max_tokens=5, stop=["a"], logprobs=True, tools=[TOOL], tool_choice="required")
    assert request.ignored == ("temperature", "max_tokens", "stop", "logprobs", "tool_choice")


def test_an_image_is_refused_where_it_is_new_and_left_out_where_it_is_not():
    error = refusal(with_image(open_webui("Look.")))
    assert (error.field, error.their_code) == ("messages[0].content[1]", "unsupported_content")
    request = read_chat_request(json.dumps(with_image(open_webui("And now?", "Look.", "No."), 0)).encode())
    assert said(request)[0] == ("user", "Look.\n[image]")
    assert request.ignored == ("image",)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * (MAX_PARTS + 1)}]},
            "messages[0].content",
        ),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [CALLED, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [CALLED, {"role": "tool", "content": "x", "tool_call_id": "c2"}]}, "messages[1].tool_call_id"),
        (
            {"messages": [CALLED, USER, {"role": "tool", "content": "x", "tool_call_id": "c1"}]},
            "messages[2].tool_call_id",
        ),
        ({"messages": [{**CALLED, "tool_calls": [{}]}, USER]}, "messages[0].tool_calls[0].id"),
        ({"messages": [{**CALLED, "tool_calls": 3}, USER]}, "messages[0].tool_calls"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"n": 2}, "n"),
        ({"n": "1"}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"metadata": "x"}, "metadata"),
        ({"tools": {}}, "tools"),
        ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": 3}}]}, "tools[0].function.parameters"),
    ],
)
def test_a_fault_names_its_field(changes, field):
    error = refusal({"model": "Georges", "messages": [USER], **changes})
    assert error.field == field
    assert field in error.sentence


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b'{"a":NaN}', b"\xff", b'{"model":"a\\u0000b"}', b'{"model":"\\ud800"}', b'{"a\\u0000":1}',
     b'{"a":' * 70 + b"1" + b"}" * 70],
)  # fmt: skip
def test_what_is_no_readable_object_is_refused(body):
    assert refusal(body).field is None


def test_no_sentence_quotes_what_was_sent():
    secret = "Zimtschnecke"
    for body in (
        {"model": "Georges", "messages": [{"role": secret}]},
        {"model": [secret]},
        {"model": "x", "n": secret},
    ):
        assert secret not in refusal(body).sentence
