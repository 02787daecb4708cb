"""The seam to langchain-openai: what it must go on doing with dict chunks, whatever its version."""

import asyncio
import json
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables.config import set_config_context
from langchain_openai import ChatOpenAI

from agentic_backend.agent.answering import stream_answer
from agentic_backend.errors import LlmProtocol, LlmTimeout, LlmUnavailable
from agentic_backend.llm import CallDeadlines, Endpoint, ModelPool
from agentic_backend.llm.models import StreamingChatModel
from agentic_backend.llm.prompt import HistoryItem, Prompt
from backend_kit.aio.retry import Retries
from tests.agentic_backend.llm.conftest import Watched
from tests.agentic_backend.llm.scripted import (
    DONE,
    SSE_HEAD,
    Write,
    event,
    finish,
    scripted,
    sends,
    status,
    streams,
    token,
    usage,
)

pytestmark = pytest.mark.servers


def tool_chunk(index: int, **call: Any) -> bytes:
    return event({"choices": [{"delta": {"tool_calls": [{"index": index, **call}]}}]})


TOOL_CALLS = streams(
    event({"choices": [{"delta": {"role": "assistant", "content": None}}]}),
    tool_chunk(0, id="call_1", type="function", function={"name": "add", "arguments": ""}),
    tool_chunk(0, function={"arguments": '{"a": 1,'}),
    tool_chunk(0, function={"arguments": ' "b": 2}'}),
    tool_chunk(1, id="call_2", type="function", function={"name": "add", "arguments": '{"a": 3, "b": 4}'}),
    finish("tool_calls"),
    usage(11, 7),
    DONE,
)


def add_tool(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_text_reason_model_and_usage_come_through(pool: ModelPool) -> None:
    async with scripted(streams(token("Hel"), token("lo"), finish(), usage(3, 2), DONE)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", coalesce=False))
        chunks = [chunk async for chunk in model.astream("Hi")]
    assert [chunk.content for chunk in chunks if chunk.content] == ["Hel", "lo"]
    whole = reduce(add, chunks)
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == "Hello"
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.response_metadata["model_name"] == "scripted"
    assert whole.usage_metadata is not None
    assert [whole.usage_metadata[key] for key in ("input_tokens", "output_tokens", "total_tokens")] == [3, 2, 5]  # type: ignore[literal-required]


async def test_texts_that_waited_together_are_one_chunk(pool: ModelPool) -> None:
    heard = asyncio.Event()

    async def in_two_writes(write: Write) -> None:
        await write(SSE_HEAD + token("a"))
        await heard.wait()
        role = event({"choices": [{"delta": {"role": "assistant", "content": "e"}}]})
        await write(
            token("b") + token("c") + b": x\n\n" + token("d") + role + token("f") + token("g") + finish() + DONE
        )

    async with scripted(in_two_writes) as server:
        texts = []
        async for chunk in pool.chat_model(Endpoint(server.base_url, "m")).astream("Hi"):
            texts.append(chunk.content)
            heard.set()
    assert [text for text in texts if text] == ["a", "bcd", "e", "fg"]


async def test_tool_calls_come_through(pool: ModelPool) -> None:
    async with scripted(TOOL_CALLS) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m")).bind_tools([add_tool])
        whole = reduce(add, [chunk async for chunk in model.astream("1 + 2, 3 + 4")])
    assert isinstance(whole, AIMessageChunk)
    calls = [(call["id"], call["name"], call["args"]) for call in whole.tool_calls]
    assert calls == [("call_1", "add", {"a": 1, "b": 2}), ("call_2", "add", {"a": 3, "b": 4})]
    assert whole.response_metadata["finish_reason"] == "tool_calls"
    assert server.requests[0].body["tools"][0]["function"]["name"] == "add_tool"


async def test_ainvoke_streams_underneath(pool: ModelPool) -> None:
    async with scripted(streams(token("Hello"), finish(), usage(3, 2), DONE)) as server:
        answer = await pool.chat_model(Endpoint(server.base_url, "m")).ainvoke("Hi")
    assert isinstance(answer, AIMessage)
    assert answer.content == "Hello"
    assert server.requests[0].body["stream"] is True


WHOLE = {
    "id": "x",
    "model": "scripted",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "A title"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


async def test_an_answer_in_one_piece(pool: ModelPool, watched: Watched) -> None:
    async with scripted(status(200, body=json.dumps(WHOLE).encode())) as server:
        answer = await pool.chat_model(Endpoint(server.base_url, "m")).ainvoke("Hi", stream=False, max_tokens=5)
    assert answer.content == "A title"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] == 5
    assert server.requests[0].body["stream"] is False
    assert watched.requests == [("m", "ok")]
    assert watched.tokens == [("m", 3, 2)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(200, body=b"lorem"), LlmProtocol),
        (status(200, body=b'{"choices": []}'), LlmProtocol),
        (status(200, body=b'{"error": {"message": "x"}}'), LlmProtocol),
        (status(200, body=b'{"choices": [{"message": {"content": "' + b"x" * 3000 + b'"}}]}'), LlmProtocol),
        (sends(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nok"), LlmProtocol),
        (status(404), LlmProtocol),
        (status(500), LlmUnavailable),
        (sends(), LlmUnavailable),
    ],
)
async def test_a_broken_answer_in_one_piece(
    pool: ModelPool, watched: Watched, answer: Any, error: type[Exception]
) -> None:
    async with scripted(answer) as server:
        endpoint = Endpoint(server.base_url, "m", retries=Retries(base_s=0.001), max_body_bytes=2000)
        with pytest.raises(error) as raised:
            await pool.chat_model(endpoint).ainvoke("Hi", stream=False)
    assert type(raised.value) is error
    assert watched.requests == [("m", "error")]


async def test_an_answer_in_one_piece_has_a_deadline(pool: ModelPool) -> None:
    async def silent(_write: Write) -> None:
        await server.gone.wait()

    async with scripted(silent) as server:
        endpoint = Endpoint(server.base_url, "m", deadlines=CallDeadlines(answer_s=0.5))
        with pytest.raises(LlmTimeout):
            await pool.chat_model(endpoint).ainvoke("Hi", stream=False)
        await server.gone.wait()


async def test_cancelling_an_answer_in_one_piece_closes_the_connection(pool: ModelPool, watched: Watched) -> None:
    asked = asyncio.Event()

    async def silent(_write: Write) -> None:
        asked.set()
        await server.gone.wait()

    async with scripted(silent) as server:
        task = asyncio.ensure_future(pool.chat_model(Endpoint(server.base_url, "m")).ainvoke("Hi", stream=False))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.gone.wait()
    assert watched.requests == [("m", "cancelled")]


async def test_a_long_conversation_is_sent_in_pieces(pool: ModelPool) -> None:
    async with scripted(streams(token("x"), finish(), DONE)) as server:
        await pool.chat_model(Endpoint(server.base_url, "m")).ainvoke("y" * (2 << 20))
    assert len(server.requests[0].body["messages"][0]["content"]) == 2 << 20


async def test_sdk_only_parameters_stay_out_of_the_body(pool: ModelPool) -> None:
    async with scripted(streams(token("x"), finish(), DONE)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", temperature=0.5))
        await model.ainvoke("Hi", extra_body={"top_k": 3}, timeout=5)
    body = server.requests[0].body
    assert body["top_k"] == 3
    assert body["temperature"] == 0.5
    assert not {"extra_body", "timeout"} & set(body)


async def test_response_headers_do_not_break_the_stream(pool: ModelPool) -> None:
    async with scripted(streams(token("x"), finish(), DONE)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m")).model_copy(update={"include_response_headers": True})
        assert (await model.ainvoke("Hi")).content == "x"


async def test_a_blocking_call_is_refused(pool: ModelPool) -> None:
    model = pool.chat_model(Endpoint("http://127.0.0.1:1/v1", "m"))
    with pytest.raises(RuntimeError, match="async only"):
        model.invoke("Hi")
    with pytest.raises(RuntimeError, match="async only"):
        model.invoke("Hi", stream=False)


async def test_one_model_an_endpoint_and_no_key_in_it(pool: ModelPool) -> None:
    one = pool.chat_model(Endpoint("http://127.0.0.1:1/v1", "m"))
    assert pool.chat_model(Endpoint("http://127.0.0.1:1/v1", "m")) is one
    assert pool.chat_model(Endpoint("http://127.0.0.1:1/v1", "n")) is not one
    assert isinstance(one, ChatOpenAI)
    assert one.root_async_client is None
    assert one.max_retries == 0
    assert one.stream_chunk_timeout is None


class Listener(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.heard: list[object] = []

    async def on_llm_new_token(self, token: object, **_more: Any) -> None:
        self.heard.append(token)


def told(piece: Any) -> AIMessageChunk:
    """A piece as the message that langchain would have made of it."""
    if isinstance(piece, str):
        return AIMessageChunk(content=piece, response_metadata={"model_provider": "openai"})
    return piece.model_copy(update={"id": None})


@pytest.mark.parametrize("coalesce", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(streams(token("Hel"), token("lo"), finish(), usage(3, 2), DONE), id="text"),
        pytest.param(streams(token(""), token("lo"), finish("length"), DONE), id="empty text"),
        pytest.param(TOOL_CALLS, id="tools"),
    ],
)
async def test_pieces_are_the_chunks_that_a_handler_gets(pool: ModelPool, answer: Any, coalesce: bool) -> None:
    listener = Listener()
    asked = [HumanMessage("Hi")]
    async with scripted(answer) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", coalesce=coalesce))
        pieces = await collected(model, asked, tools=[])
        with set_config_context({"callbacks": [listener]}) as context:
            watched = await asyncio.create_task(collected(model, asked, tools=[]), context=context)
    assert len(listener.heard) == len(watched)
    assert all(isinstance(piece, AIMessageChunk) for piece in watched)
    # Langchain says at the end that it has ended; here the end of the iteration does.
    assert [told(piece) for piece in pieces] == [told(piece) for piece in watched[:-1]]
    assert server.requests[0].body == server.requests[1].body


async def collected(model: StreamingChatModel, messages: Sequence[BaseMessage], **options: Any) -> list[Any]:
    """Text and whatever else comes, in its order."""
    pieces: list[Any] = []
    async for piece in model.astream_text(messages, pieces.append, **options):
        pieces.append(piece)  # noqa: PERF401 # texts come in between
    return pieces


HISTORY = [
    HistoryItem("user", "Héllo \U0001f600"),
    HistoryItem("assistant", 'said "so"\n\ud800'),
    HistoryItem("user", ""),
]


@pytest.mark.parametrize("name", ["m", "o3-mini"])
@pytest.mark.parametrize("history", [[], HISTORY], ids=["new", "remembered"])
async def test_a_prompt_is_sent_as_langchain_would_send_it(
    pool: ModelPool, history: list[HistoryItem], name: str
) -> None:
    prompt = Prompt("Be brief.", history, "Why?")
    async with scripted(streams(token("Hi"), finish(), DONE)) as server:
        model = pool.chat_model(Endpoint(server.base_url, name, temperature=0.5))
        await collected(model, prompt)
        await collected(model, list(prompt))
        with set_config_context({"callbacks": [Listener()]}) as context:
            await asyncio.create_task(collected(model, prompt), context=context)
    ours, plain, langchains = (request.body for request in server.requests)
    assert ours == plain == langchains
    assert len(ours["messages"]) == len(prompt) == len(history) + 2
    assert ours["messages"][0]["role"] == ("system" if name == "m" else "developer")


def test_an_answer_without_words_is_not_told_to_a_model() -> None:
    history = [HistoryItem("user", "First"), HistoryItem("assistant", "", "c.s/Graph/t"), *HISTORY]
    prompt = Prompt("Be brief.", history, "Why?")
    assert [message.text for message in prompt[1:3]] == ["First", HISTORY[0].text]
    assert len(prompt) == len(history) + 1
    assert b'"content":"",' not in Prompt("Be brief.", history[:2], "Why?").encode("system")


def reasoning(text: str) -> bytes:
    return event({"choices": [{"delta": {"reasoning_content": text}}]})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(streams(token("Hel"), token("lo"), finish(), usage(3, 2), DONE), id="text"),
        pytest.param(streams(token("Hi"), finish("length"), DONE), id="cut"),
        pytest.param(streams(reasoning("Hm"), token("Hi"), finish("content_filter"), usage(0, 0), DONE), id="reasoned"),
        pytest.param(streams(usage(1, 1), token("Hi"), usage(3, 2), finish(), DONE), id="growing count"),
        pytest.param(
            streams(
                event(
                    {"model": "told", "choices": [{"delta": {"role": "assistant", "content": "Hi", "refusal": None}}]}
                ),
                event({"model": "told", "choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]}),
                event({"model": "told", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": None}}),
                DONE,
            ),
            id="names its model",
        ),
        pytest.param(TOOL_CALLS, id="calls tools that it was not offered"),
    ],
)
async def test_an_answer_is_the_same_with_and_without_a_handler(pool: ModelPool, answer: Any) -> None:
    prompt = Prompt("Be brief.", (), "Why?")
    told: list[list[Any]] = [[], []]
    async with scripted(answer) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        ours = await stream_answer(model, prompt, told[0].append, fallback_model_name="m")
        with set_config_context({"callbacks": [Listener()]}) as context:
            langchains = await asyncio.create_task(
                stream_answer(model, prompt, told[1].append, fallback_model_name="m"), context=context
            )
    assert ours == langchains
    assert told[0] == told[1]


async def test_an_option_that_langchain_keeps_for_itself_is_not_sent(pool: ModelPool) -> None:
    kept = {"kwargs": {}, "schema": add_tool}
    async with scripted(TOOL_CALLS) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        assert await collected(model, [HumanMessage("1 + 2")], ls_structured_output_format=kept)
    assert "ls_structured_output_format" not in server.requests[0].body
