"""What a model is asked where a client sent the conversation, tool calls and their results among it."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from agentic_backend.llm.prompt import EarlierCall, HistoryItem, Prompt
from backend_kit.wire import loads

CALL = EarlierCall("c1", "weather", '{"city": "Oslo"}')
CALLED = HistoryItem("assistant", "", calls=(CALL,))
RESULT = HistoryItem("tool", "Rain.", call_id="c1")
ASKED = HistoryItem("user", "Weather in Oslo?")


def encoded(prompt: Prompt) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = loads(prompt.encode("system"))
    return messages


def test_calls_and_results_are_those_of_a_chat_completions_request() -> None:
    prompt = Prompt("Be brief.", [ASKED, CALLED, RESULT], "And tomorrow?")
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert encoded(prompt) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "c1"},
        {"role": "user", "content": "And tomorrow?"},
    ]
    assert list(prompt) == [
        SystemMessage("Be brief."),
        HumanMessage("Weather in Oslo?"),
        AIMessage("", tool_calls=[{"id": "c1", "name": "weather", "args": {"city": "Oslo"}, "type": "tool_call"}]),
        ToolMessage("Rain.", tool_call_id="c1"),
        HumanMessage("And tomorrow?"),
    ]
    assert len(prompt) == 5


def test_without_a_question_it_goes_on_from_a_result() -> None:
    prompt = Prompt("Be brief.", [ASKED, CALLED, RESULT], "")
    assert (encoded(prompt)[-1]["role"], prompt[-1].type, len(prompt)) == ("tool", "tool", 4)
    assert encoded(Prompt("Be brief.", [ASKED], ""))[-1] == {"role": "user", "content": ""}


def test_system_text_of_a_client_is_added_to_the_one_system_message() -> None:
    given = [HistoryItem("system", "Rhyme."), ASKED, HistoryItem("system", "In French.")]
    prompt = Prompt("Be brief.", given, "Hi")
    assert [(one["role"], one["content"]) for one in encoded(prompt)] == [
        ("system", "Be brief.\n\nRhyme.\n\nIn French."),
        ("user", "Weather in Oslo?"),
        ("user", "Hi"),
    ]
    assert prompt[0] == SystemMessage("Be brief.\n\nRhyme.\n\nIn French.")


def test_an_answer_without_words_is_left_out_and_one_with_calls_is_not() -> None:
    assert len(Prompt("", [HistoryItem("assistant", ""), CALLED, RESULT], "Hi")) == 4


def test_what_a_model_wrote_that_is_no_json_is_kept_as_it_is() -> None:
    item = HistoryItem("assistant", "", calls=(EarlierCall("c1", "weather", "{oops"),))
    message = item.message()
    assert isinstance(message, AIMessage)
    assert (message.tool_calls, message.invalid_tool_calls[0]["args"]) == ([], "{oops")


@pytest.mark.parametrize(
    "item", [ASKED, CALLED, RESULT, HistoryItem("system", "Rhyme."), HistoryItem("assistant", "Rain.")]
)
def test_it_comes_back_from_what_is_stored_of_it(item: HistoryItem) -> None:
    again = HistoryItem.of_stored(item.stored())
    assert (again, again.json, hash(again)) == (item, item.json, hash(item))


def test_items_differ_by_their_calls() -> None:
    assert HistoryItem("assistant", "") != CALLED
    assert HistoryItem("tool", "Rain.", call_id="c2") != RESULT


def test_images_are_parts_and_those_of_earlier_questions_only_where_they_are_shown() -> None:
    asked = HistoryItem("user", "What is this?", images=("i1", "i2"))
    history = [asked.showing({"i2": "data:image/png;base64,eQ=="}), HistoryItem("assistant", "A map.")]
    prompt = Prompt("Be brief.", history, "And this?", ["data:image/png;base64,eA=="])

    def parts(text: str, url: str) -> list[dict[str, object]]:
        return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]

    earlier, newest = (
        parts("What is this?", "data:image/png;base64,eQ=="),
        parts("And this?", "data:image/png;base64,eA=="),
    )
    assert [one["content"] for one in encoded(prompt)] == ["Be brief.", earlier, "A map.", newest]
    assert [message.content for message in prompt] == ["Be brief.", earlier, "A map.", newest]
    assert encoded(Prompt("", [asked], "Hi"))[1]["content"] == "What is this?"
    assert HistoryItem.of_stored(asked.stored()).images == ("i1", "i2")
    assert asked == HistoryItem("user", "What is this?"), "by what was said"
