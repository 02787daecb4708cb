"""What a model says while it reasons is told as it comes, is no text, and keeps a stream alive."""

import asyncio
import json
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.runnables.config import set_config_context

from agentic_backend.agent.answering import stream_answer, stream_reply
from agentic_backend.errors import LlmTimeout
from agentic_backend.events import AgentEvent, Delta, Thought
from agentic_backend.llm import CallDeadlines, Endpoint, ModelPool, TokenUse
from agentic_backend.llm.prompt import Prompt
from tests.agentic_backend.llm.conftest import Watched
from tests.agentic_backend.llm.scripted import (
    DONE,
    SSE_HEAD,
    Step,
    Write,
    event,
    finish,
    scripted,
    stalls_after,
    status,
    streams,
    token,
)
from tests.agentic_backend.llm.test_seam import Listener

pytestmark = pytest.mark.servers

PROMPT = Prompt("Be brief.", (), "Why?")


def delta(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def in_tokens(text: str, size: int = 3) -> list[bytes]:
    return [token(text[place : place + size]) for place in range(0, len(text), size)]


DEEPSEEK = streams(
    delta(role="assistant", content=None, reasoning_content=""),
    delta(content=None, reasoning_content="Let me "),
    delta(content=None, reasoning_content="see."),
    delta(content="He", reasoning_content=None),
    delta(content="llo", reasoning_content=None),
    finish(),
    DONE,
)
SAID = {
    "deepseek": DEEPSEEK,
    "vllm": streams(
        delta(reasoning_content="Let me "), delta(reasoning_content="see."), token("Hello"), finish(), DONE
    ),
    "two names": streams(
        delta(reasoning="Let me see.", reasoning_content="Let me see."), token("Hello"), finish(), DONE
    ),
    "openrouter": streams(
        delta(role="assistant", content="", reasoning="Let me see.", reasoning_details=[{"type": "x", "text": "y"}]),
        delta(role="assistant", content="Hello"),
        finish(),
        DONE,
    ),
    "mistral": streams(
        delta(role="assistant", content=""),
        delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}]),
        delta(content=[{"type": "text", "text": "Hel"}, {"type": "reference", "reference_ids": [1]}]),
        token("lo"),
        finish(),
        DONE,
    ),
    "block": streams(*in_tokens("<think>\nLet me see.</think>\n\nHello"), finish(), DONE),
    "block in one token": streams(token("<think>Let me see.</think>Hello"), finish(), DONE),
    "block with the end": streams(
        event({"choices": [{"delta": {"content": "<think>Let me see.</think>Hello"}, "finish_reason": "stop"}]}), DONE
    ),
}


@pytest.mark.parametrize("coalesce", [True, False])
@pytest.mark.parametrize("answer", [pytest.param(step, id=name) for name, step in SAID.items()])
async def test_it_is_told_beside_the_text(pool: ModelPool, answer: Step, coalesce: bool) -> None:
    told: list[AgentEvent] = []
    heard: list[AgentEvent] = []
    async with scripted(answer) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", coalesce=coalesce))
        ours = await stream_answer(model, PROMPT, told.append)
        with set_config_context({"callbacks": [Listener()]}) as context:
            theirs = await asyncio.create_task(stream_answer(model, PROMPT, heard.append), context=context)
        whole = reduce(add, [chunk async for chunk in model.astream("Why?")])
        invoked = await model.ainvoke("Why?")
    assert ours == theirs
    assert ours.text == "Hello"
    for events in (told, heard):
        assert "".join(one.text for one in events if isinstance(one, Thought)) == "Let me see."
        assert "".join(one.text for one in events if isinstance(one, Delta)) == "Hello"
        kinds = [type(one) for one in events]
        assert kinds == sorted(kinds, key=(Thought, Delta).index)
    assert isinstance(whole, AIMessageChunk)
    for message in (whole, invoked):
        assert (message.content, message.additional_kwargs["reasoning_content"]) == ("Hello", "Let me see.")


async def test_with_tools_it_is_told_and_the_calls_come_through(pool: ModelPool) -> None:
    told: list[AgentEvent] = []
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answer = streams(
        token("<think>I must"),
        token(" look.</think>"),
        delta(reasoning_content=" So", tool_calls=[call]),
        finish("tool_calls"),
        DONE,
    )
    async with scripted(answer) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        reply = await stream_reply(
            model, PROMPT, told.append, tools=[{"type": "function", "function": {"name": "look"}}]
        )
    assert [one.name for one in reply.calls] == ["look"]
    assert reply.answer.text == ""
    assert all(isinstance(one, Thought) for one in told)
    assert "".join(one.text for one in told if isinstance(one, Thought)) == "I must look. So"


@pytest.mark.parametrize(
    ("pieces", "thought", "text"),
    [
        ([token("<think>I can")], "I can", ""),
        ([token("<thi")], "", "<thi"),
        ([token("<think>a</thi"), token("nk> b")], "a", "b"),
    ],
)
@pytest.mark.parametrize("end", [finish("length") + DONE, DONE])
async def test_what_was_held_back_is_told_at_the_end(
    pool: ModelPool, pieces: list[bytes], thought: str, text: str, end: bytes
) -> None:
    told: list[AgentEvent] = []
    async with scripted(streams(*pieces, end)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        assert (await stream_answer(model, PROMPT, told.append)).text == text
        message = await model.ainvoke("Why?")
    assert "".join(one.text for one in told if isinstance(one, Thought)) == thought
    assert message.content == text
    assert message.additional_kwargs.get("reasoning_content", "") == thought


async def test_a_model_that_only_reasons_does_not_stall(pool: ModelPool) -> None:
    """Each wait is shorter than the deadline, all of them together are longer."""

    async def slow(write: Write) -> None:
        await write(SSE_HEAD + token("<think>"))
        for _ in range(5):
            for thinks in (delta(reasoning_content="hm "), token("hm ")):
                await write(thinks)
                await asyncio.sleep(0.5)
        await write(token("</think>Hi") + finish() + DONE)

    told: list[AgentEvent] = []
    async with scripted(slow) as server:
        deadlines = CallDeadlines(first_token_s=30.0, inter_token_s=4.0)
        model = pool.chat_model(Endpoint(server.base_url, "m", deadlines=deadlines))
        assert (await stream_answer(model, PROMPT, told.append)).text == "Hi"
    assert "".join(one.text for one in told if isinstance(one, Thought)).count("hm ") == 10


async def test_reasoning_that_stops_is_a_stall(pool: ModelPool) -> None:
    told: list[AgentEvent] = []
    async with scripted(stalls_after(delta(reasoning_content="Hm"))) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", deadlines=CallDeadlines(inter_token_s=0.2)))
        with pytest.raises(LlmTimeout):
            await stream_answer(model, PROMPT, told.append)
    assert told == [Thought("Hm")]


@pytest.mark.parametrize("thinks", [delta(reasoning_content="x" * 30), token("x" * 30)])
async def test_endless_reasoning_is_cut_at_a_bound_of_its_own(pool: ModelPool, thinks: bytes) -> None:
    async def endless(write: Write) -> None:
        await write(SSE_HEAD + token("<think>"))
        while True:
            await write(thinks)

    told: list[AgentEvent] = []
    async with scripted(endless) as server:
        endpoint = Endpoint(server.base_url, "m", max_answer_chars=100, max_reasoning_chars=1000)
        answer = await stream_answer(pool.chat_model(endpoint), PROMPT, told.append)
        await server.gone.wait()
    assert (answer.text, answer.metadata["finish_reason"]) == ("", "length")
    assert 900 < sum(len(one.text) for one in told if isinstance(one, Thought)) <= 1030


async def test_long_reasoning_leaves_the_answer_its_room(pool: ModelPool) -> None:
    thoughts = [delta(reasoning_content="hm ")] * 200
    async with scripted(streams(*thoughts, *in_tokens("x" * 90), finish(), DONE)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m", max_answer_chars=300))
        answer = await stream_answer(model, PROMPT, lambda _event: None)
    assert (answer.text, answer.metadata["finish_reason"]) == ("x" * 90, "stop")


async def test_an_answer_in_one_piece_has_it_too(pool: ModelPool) -> None:
    message = {"role": "assistant", "content": "<think>Hm</think>A title", "reasoning": "First. "}
    body = {"model": "scripted", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    async with scripted(status(200, body=json.dumps(body).encode())) as server:
        answer = await pool.chat_model(Endpoint(server.base_url, "m")).ainvoke("Hi", stream=False)
    assert (answer.content, answer.additional_kwargs["reasoning_content"]) == ("A title", "First. Hm")


@pytest.mark.parametrize(
    ("counts", "used"),
    [
        ({}, TokenUse(30, 20)),
        ({"prompt_tokens_details": {"cached_tokens": 16}}, TokenUse(30, 20, 16)),
        ({"prompt_cache_hit_tokens": 12, "prompt_cache_miss_tokens": 18}, TokenUse(30, 20, 12)),
        ({"completion_tokens_details": {"reasoning_tokens": 15, "audio_tokens": None}}, TokenUse(30, 20, 0, 15)),
        ({"prompt_tokens_details": None, "completion_tokens_details": {}}, TokenUse(30, 20)),
        # Counted beside the others, not among them.
        ({"completion_tokens_details": {"reasoning_tokens": 99}}, TokenUse(30, 20, 0, 20)),
    ],
)
async def test_cached_and_reasoning_tokens_are_counted(
    pool: ModelPool, watched: Watched, counts: dict[str, Any], used: TokenUse
) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50, **counts}
    async with scripted(streams(token("Hi"), finish(), event({"choices": [], "usage": usage}), DONE)) as server:
        model = pool.chat_model(Endpoint(server.base_url, "m"))
        answer = await stream_answer(model, PROMPT, lambda _event: None)
        await model.ainvoke([HumanMessage("Why?")])
    assert watched.used == [used, used]
    assert answer.metadata["token_usage"] == {"input_tokens": 30, "output_tokens": 20, "total_tokens": 50}
