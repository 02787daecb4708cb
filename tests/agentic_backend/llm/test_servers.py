"""What differs between servers that call themselves compatible with OpenAI's."""

import json
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage

from agentic_backend import settings
from agentic_backend.agent.answering import Reply, stream_answer, stream_reply
from agentic_backend.errors import LlmProtocol
from agentic_backend.events import AgentEvent, Delta, Thought
from agentic_backend.llm import Endpoint, ModelPool, TokenUse, endpoint_of
from agentic_backend.llm.prompt import Prompt
from tests.agentic_backend.llm.conftest import Watched
from tests.agentic_backend.llm.scripted import (
    DONE,
    event,
    finish,
    scripted,
    status,
    streams,
    token,
    usage,
)

pytestmark = pytest.mark.servers

PROMPT = Prompt("Be brief.", (), "Why?")
GOOD = streams(token("Hel"), token("lo"), finish(), DONE)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


async def asked(pool: ModelPool, base_url: str, told: list[AgentEvent] | None = None) -> Reply:
    events: list[AgentEvent] = [] if told is None else told
    return await stream_reply(pool.chat_model(Endpoint(base_url, "m")), PROMPT, events.append, tools=TOOLS)


def knows(body: Any) -> bool:
    return "stream_options" in body


@pytest.mark.parametrize("refusal", [400, 422])
async def test_a_server_without_stream_options_is_asked_with_them_once(
    pool: ModelPool, watched: Watched, refusal: int
) -> None:
    async with scripted(status(refusal), GOOD) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        assert (await stream_answer(model, PROMPT, lambda _event: None)).text == "Hello"
        assert (await stream_answer(model, PROMPT, lambda _event: None)).text == "Hello"
        assert (await stream_answer(model, [HumanMessage("Why?")], lambda _event: None)).text == "Hello"
        assert (await model.ainvoke("Why?")).content == "Hello"
    first, *others = (request.body for request in server.requests)
    assert knows(first)
    assert [knows(body) for body in others] == [False] * 4
    assert others[0] == {key: value for key, value in first.items() if key != "stream_options"}
    assert watched.requests == [("m", "ok")] * 4


async def test_a_request_that_is_refused_either_way_teaches_nothing(pool: ModelPool) -> None:
    async with scripted(status(400), status(400), GOOD, status(400)) as server:
        with pytest.raises(LlmProtocol):
            await asked(pool, server.base_url)
        assert (await asked(pool, server.base_url)).answer.text == "Hello"
        # It has shown that it takes them: what it refuses now is something else.
        with pytest.raises(LlmProtocol):
            await asked(pool, server.base_url)
    assert [knows(request.body) for request in server.requests] == [True, False, True, True]


async def test_usage_that_nobody_asked_for_is_counted(pool: ModelPool, watched: Watched) -> None:
    async with scripted(status(400), streams(token("Hi"), finish(), usage(3, 2), DONE)) as server:
        await asked(pool, server.base_url)
    assert watched.used == [TokenUse(3, 2)]


def whole(message: dict[str, Any], reason: str | None = "stop", **more: Any) -> Any:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return status(200, body=json.dumps({"model": "scripted", "choices": [choice], **more}).encode())


async def test_tools_that_are_not_streamed_come_through(pool: ModelPool, watched: Watched) -> None:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": f'{{"n": {n}}}'}} for n in (1, 2)
    ]
    told: list[AgentEvent] = []
    counts = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    answer = whole({"content": None, "reasoning": "Hm", "tool_calls": calls}, "tool_calls", usage=counts)
    async with scripted(answer) as server:
        reply = await asked(pool, server.base_url, told)
        chunks = [chunk async for chunk in pool.chat_model(Endpoint(server.base_url, "m")).astream("Why?", tools=TOOLS)]
    assert [(call.id, call.arguments) for call in reply.calls] == [("c1", {"n": 1}), ("c2", {"n": 2})]
    assert (reply.answer.metadata["model"], reply.answer.metadata["finish_reason"]) == ("scripted", "tool_calls")
    assert told == [Thought("Hm")]
    assert watched.used == [TokenUse(3, 2)] * 2
    assert watched.requests == [("m", "ok")] * 2
    merged = reduce(add, chunks)
    assert isinstance(merged, AIMessageChunk)
    assert [call["args"] for call in merged.tool_calls] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("reason", ["stop", None])
async def test_a_text_that_is_not_streamed_is_one_piece(pool: ModelPool, reason: str | None) -> None:
    told: list[AgentEvent] = []
    async with scripted(whole({"content": "<think>Hm</think>Hello"}, reason)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        answer = await stream_answer(model, PROMPT, told.append)
        assert (await model.ainvoke("Why?")).content == "Hello"
    assert (answer.text, answer.metadata["finish_reason"]) == ("Hello", "stop")
    assert told == [Thought("Hm"), Delta("Hello")]


@pytest.mark.parametrize(
    "body", [b"lorem", b'{"choices": []}', b'{"error": {"message": "x"}}', b'{"x": "' + b"x" * 3000 + b'"}']
)
async def test_a_whole_answer_that_is_none_is_a_protocol_failure(pool: ModelPool, body: bytes) -> None:
    async with scripted(status(200, body=body)) as server:
        with pytest.raises(LlmProtocol):
            await pool.chat_model(Endpoint(server.base_url, "m", max_body_bytes=2000)).ainvoke("Hi")
        assert len(server.requests) == 1


async def test_calls_whole_and_without_an_index_in_a_stream(pool: ModelPool) -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": '{"n": 1}'}}
    answer = streams(event({"choices": [{"delta": {"tool_calls": [call]}}]}), finish("tool_calls"), DONE)
    async with scripted(answer) as server:
        assert [one.arguments for one in (await asked(pool, server.base_url)).calls] == [{"n": 1}]


def model_settings(**how: Any) -> settings.ChatModel:
    return settings.ChatModel.model_validate({"name": "m", "settings": how})


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ({"base_url": None}, "max_completion_tokens"),
        ({"base_url": "https://api.openai.com/v1"}, "max_completion_tokens"),
        ({"base_url": "http://api.openai.com.example/v1"}, "max_tokens"),
        ({"base_url": "http://127.0.0.1:8099/v1"}, "max_tokens"),
        ({"base_url": "http://127.0.0.1:8099/v1", "max_tokens_name": "max_completion_tokens"}, "max_completion_tokens"),
        ({"base_url": "https://api.openai.com/v1", "max_tokens_name": "max_tokens"}, "max_tokens"),
    ],
)
def test_the_longest_answer_has_the_name_that_the_server_knows(how: dict[str, Any], name: str) -> None:
    endpoint = endpoint_of(model_settings(max_tokens=7, **how), settings.Deadlines())
    assert (endpoint.max_tokens, endpoint.max_tokens_name) == (7, name)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_longest_answer_is_sent_under_that_name_alone(pool: ModelPool, name: Any) -> None:
    async with scripted(GOOD) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", max_tokens=7, max_tokens_name=name))
        await stream_answer(model, PROMPT, lambda _event: None)
        await model.ainvoke("Why?")
        await model.ainvoke("Why?", max_tokens=3)
        await pool.chat_model(Endpoint(server.base_url, "m")).ainvoke("Why?")
    sent = [{key: value for key, value in one.body.items() if key.startswith("max_")} for one in server.requests]
    assert sent == [{name: 7}, {name: 7}, {name: 3}, {}]


def test_a_further_model_leaves_its_longest_answer_to_the_default_one() -> None:
    default = model_settings(base_url="https://a.example/v1", max_tokens=7, max_tokens_name="max_completion_tokens")
    same = settings.OfferedModel.model_validate({"id": "a", "name": "a"}).called_as(default).settings
    elsewhere = settings.OfferedModel.model_validate(
        {"id": "b", "name": "b", "settings": {"base_url": "https://b.example/v1", "max_tokens": 9}}
    )
    other = elsewhere.called_as(default).settings
    assert (same.max_tokens, same.max_tokens_name) == (7, "max_completion_tokens")
    assert (other.max_tokens, other.max_tokens_name) == (9, None)
