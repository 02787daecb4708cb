"""The official clients of each wire, as they are, against the fake model."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import ollama
import openai
import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock

from tests.ws_bench.fakes.conftest import Model

pytestmark = pytest.mark.servers

ASKED: Any = [{"role": "user", "content": "Add a note: the milk is sour"}]
SCHEMA: Any = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTE = {"name": "add_note", "description": "Add a note"}
THINKS: Any = {"type": "enabled", "budget_tokens": 1024}
SUMMARY: Any = {"effort": "low", "summary": "auto"}
PATHS = {
    "/v1/chat/completions": {"messages": ASKED},
    "/openai/deployments/mock/chat/completions": {"messages": ASKED},
    "/v1/responses": {"input": "Hello", "reasoning": SUMMARY},
    "/v1/messages": {"messages": ASKED, "max_tokens": 4096, "thinking": THINKS},
    "/api/chat": {"messages": ASKED},
}


@pytest.fixture
async def of_openai(model: Model) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{model.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def of_anthropic(model: Model) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=model.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def of_ollama(model: Model) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(model.base_url)
    yield client
    await client.close()


def _build_its_schemas(of_openai: openai.AsyncOpenAI) -> None:
    """In a thread: what the client builds at its first answer takes up to half a second of a loop."""
    with (
        openai.OpenAI(base_url=of_openai.base_url, api_key=of_openai.api_key) as client,
        client.responses.stream(model="mock;tokens=1", input="Hello") as stream,
    ):
        stream.get_final_response()


async def test_responses_are_streamed_as_their_client_puts_them_together(of_openai: openai.AsyncOpenAI) -> None:
    name = "mock;think=2;tokens=3;cached=1"
    await asyncio.to_thread(_build_its_schemas, of_openai)
    async with of_openai.responses.stream(model=name, input="Hello there", reasoning=SUMMARY) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    thought, message = response.output
    assert thought.type == "reasoning"
    assert thought.summary[0].text == "Each turn"
    assert (message.type, response.output_text) == ("message", "Each turn is")
    whole = await of_openai.responses.create(model=name, input="Hello there", reasoning=SUMMARY)
    for one in (response, whole):
        assert (one.status, one.output_text) == ("completed", "Each turn is")
        assert one.usage is not None
        assert (one.usage.input_tokens, one.usage.output_tokens) == (2, 5)
        assert one.usage.input_tokens_details.cached_tokens == 1
        assert one.usage.output_tokens_details.reasoning_tokens == 2
    silent = await of_openai.responses.create(model=name, input="Hello")
    assert [item.type for item in silent.output] == ["message"]


async def test_responses_call_tools_and_answer_with_their_results(of_openai: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "parameters": SCHEMA, **NOTE}]
    async with of_openai.responses.stream(model="mock", input=ASKED, tools=tools) as stream:
        called = await stream.get_final_response()
    [call] = called.output
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("add_note", '{"text":"the milk is sour"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Note 1 is kept."}
    asked: Any = [*ASKED, call.to_dict(), result]
    answer = await of_openai.responses.create(model="mock", input=asked, tools=tools, instructions="Be brief.")
    assert answer.output_text == "Note 1 is kept."
    cut = await of_openai.responses.create(model="mock;tokens=9", input="Hello", max_output_tokens=4)
    assert (cut.status, cut.output_text) == ("incomplete", "Each turn is timed")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


async def test_messages_are_streamed_as_their_client_puts_them_together(of_anthropic: anthropic.AsyncAnthropic) -> None:
    asked: Any = {"model": "mock;think=2;tokens=3;cached=1", "messages": [{"role": "user", "content": "Hello there"}]}
    async with of_anthropic.messages.stream(**asked, max_tokens=4096, thinking=THINKS) as stream:
        message = await stream.get_final_message()
    whole = await of_anthropic.messages.create(**asked, max_tokens=4096, thinking=THINKS)
    for one in (message, whole):
        thinking, text = one.content
        assert isinstance(thinking, ThinkingBlock)
        assert (thinking.thinking, bool(thinking.signature)) == ("Each turn", True)
        assert isinstance(text, TextBlock)
        assert text.text == "Each turn is"
        assert (one.stop_reason, one.usage.output_tokens) == ("end_turn", 5)
        assert (one.usage.input_tokens, one.usage.cache_read_input_tokens) == (1, 1)
    silent = await of_anthropic.messages.create(**asked, max_tokens=4)
    assert [block.type for block in silent.content] == ["text"]


async def test_messages_call_tools_and_answer_with_their_results(of_anthropic: anthropic.AsyncAnthropic) -> None:
    tools: Any = [{"input_schema": SCHEMA, **NOTE}]
    async with of_anthropic.messages.stream(
        model="mock", messages=ASKED, max_tokens=99, tools=tools, system="Be brief."
    ) as stream:
        called = await stream.get_final_message()
    [call] = called.content
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input, called.stop_reason) == ("add_note", {"text": "the milk is sour"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Note 1 is kept."}]}
    asked: Any = [*ASKED, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    answer = await of_anthropic.messages.create(model="mock", messages=asked, max_tokens=99, tools=tools)
    assert isinstance(answer.content[0], TextBlock)
    assert answer.content[0].text == "Note 1 is kept."
    cut = await of_anthropic.messages.create(model="mock;tokens=9", messages=ASKED, max_tokens=4)
    assert cut.stop_reason == "max_tokens"


async def test_ollama_s_lines(of_ollama: ollama.AsyncClient) -> None:
    parts = [part async for part in await of_ollama.chat("mock;think=2;tokens=3", ASKED, stream=True, think=True)]
    assert "".join(part.message.thinking or "" for part in parts) == "Each turn"
    assert "".join(part.message.content or "" for part in parts) == "Each turn is"
    assert [part.done for part in parts] == [False] * 5 + [True]
    assert (parts[-1].done_reason, parts[-1].eval_count, parts[-1].prompt_eval_count) == ("stop", 5, 7)
    whole = await of_ollama.chat("mock;think=2;tokens=3", ASKED)
    assert (whole.message.thinking, whole.message.content, whole.eval_count) == ("Each turn", "Each turn is", 5)
    silent = await of_ollama.chat("mock;think=2;tokens=3", ASKED, think=False, options={"num_predict": 2})
    assert (silent.message.thinking, silent.message.content, silent.done_reason) == (None, "Each turn", "length")


async def test_ollama_s_tools(of_ollama: ollama.AsyncClient) -> None:
    tools: Any = [{"type": "function", "function": {"parameters": SCHEMA, **NOTE}}]
    parts = [part async for part in await of_ollama.chat("mock", ASKED, tools=tools, stream=True)]
    [call] = [call for part in parts for call in part.message.tool_calls or ()]
    assert (call.function.name, call.function.arguments) == ("add_note", {"text": "the milk is sour"})
    result = {"role": "tool", "tool_name": "add_note", "content": "Note 1 is kept."}
    assert (await of_ollama.chat("mock", [*ASKED, parts[0].message, result], tools=tools)).message.content == result[
        "content"
    ]


async def test_each_client_knows_a_refusal(
    of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic, of_ollama: ollama.AsyncClient
) -> None:
    name = "mock;status=429;retry=7"
    with pytest.raises(openai.RateLimitError) as one:
        await of_openai.responses.create(model=name, input="Hello")
    with pytest.raises(anthropic.RateLimitError) as other:
        await of_anthropic.messages.create(model=name, messages=ASKED, max_tokens=9)
    for refused in (one.value, other.value):
        assert refused.response.headers["retry-after"] == "7"
    with pytest.raises(ollama.ResponseError) as third:
        await of_ollama.chat(name, ASKED)
    assert third.value.status_code == 429


@pytest.mark.parametrize("path", PATHS)
async def test_reasoning_counts_among_the_tokens_of_the_knobs(model: Model, path: str) -> None:
    """Two tokens of reasoning and one of the text, then nothing until the client leaves."""
    body = {"model": "mock;think=2;tokens=9;stall=3", "stream": True, **PATHS[path]}
    async with model.http.post(model.base_url + path, json=body) as response:
        assert response.status == 200
        assert b"Each" in await response.content.readany()
    while (stats := await model.stats())["streams"]["open"]:
        pass
    assert (stats["streams"]["cut"], stats["tokens"]) == (1, 3)


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_no_request_is_refused_in_the_wire_s_own_form(model: Model, path: str) -> None:
    for body in ({"model": "mock"}, {"model": "mock", "messages": [], "input": []}, {**PATHS[path], "model": "m;x=1"}):
        status, answer = await model.post(path, body)
        assert (status, "error" in answer) == (400, True)
    assert model.server.stats.refused == 3
