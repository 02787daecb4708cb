"""Which tool a question asks for, and what the tool is called with."""

import json
from typing import Any

import pytest

from tests.ws_bench.fakes.conftest import Model
from tests.ws_bench.fakes.test_mock_llm import CHAT, ask
from ws_bench.fakes.answers import Turn
from ws_bench.fakes.tools import arguments_for, requested_tool

DAYS = ["today", "tomorrow", "monday", "friday"]


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    required = [name for name, one in properties.items() if "default" not in one]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("current_time", "Say what time it is now, and the date: which day it is today."),
    tool("canteen_menu", "Say what the canteen has for lunch.", day={"enum": DAYS, "default": "today"}),
    tool("list_notes", "List the notes: show which ones are kept, read them."),
    tool("addNote", "Add a note: write down a text.", text={"type": "string"}),
    tool("delete_note", "Delete a note, remove it for good, by its number.", number={"type": "integer"}),
]


def call(question: str, tools: list[Any] | None = None) -> tuple[str, Any] | None:
    turns = [Turn("user", "Delete note 7"), Turn("assistant", "Done."), Turn("user", question)]
    messages = [{"role": turn.role, "content": turn.text} for turn in turns]
    function = requested_tool({"messages": messages, "tools": TOOLS if tools is None else tools}, turns)
    return None if function is None else (function["name"], json.loads(arguments_for(function, turns)))


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What is on the menu today?", "canteen_menu", {"day": "today"}),
        ("What is on the menu on Friday?", "canteen_menu", {"day": "friday"}),
        ("What's for lunch on Friday?", "canteen_menu", {"day": "friday"}),
        ("The menu, please", "canteen_menu", {}),
        ("What time is it?", "current_time", {}),
        ("What day is it today?", "current_time", {}),
        ("Which notes are there?", "list_notes", {}),
        ("Add a note: buy milk", "addNote", {"text": "buy milk"}),
        ("Add a note that the milk is sour", "addNote", {"text": "the milk is sour"}),
        ('Please write the note "call Ada" down', "addNote", {"text": "call Ada"}),
        ("Delete note 2", "delete_note", {"number": 2}),
        ("Remove the third note", "delete_note", {"number": 3}),
    ],
)
def test_a_question_for_what_a_tool_does_calls_it(question: str, name: str, arguments: dict[str, Any]) -> None:
    assert call(question) == (name, arguments)


@pytest.mark.parametrize("question", ["Hello", "What is Turnwise?", "", "How do I connect a real model?"])
def test_no_other_question_calls_a_tool(question: str) -> None:
    assert call(question) is None
    assert call("What time is it?", []) is None
    assert call("What time is it?", ["nonsense", {"function": {"name": 3}}]) is None


@pytest.mark.servers
async def test_the_model_calls_it_and_answers_with_its_result(model: Model) -> None:
    body = ask("mock", "What is on the menu today?", tools=TOOLS)
    _, whole = await model.post(CHAT, body)
    (asked,) = whole["choices"][0]["message"]["tool_calls"]
    assert asked["function"] == {"name": "canteen_menu", "arguments": '{"day":"today"}'}
    result = {"role": "tool", "tool_call_id": asked["id"], "content": "Today there is soup."}
    body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [asked]}, result]
    _, whole = await model.post(CHAT, body)
    assert whole["choices"][0]["message"]["content"] == "Today there is soup."


@pytest.mark.servers
async def test_an_answer_of_a_fixed_length_calls_nothing(model: Model) -> None:
    _, whole = await model.post(CHAT, ask("mock;tokens=4", "What is on the menu today?", tools=TOOLS))
    assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("stop", 4)
