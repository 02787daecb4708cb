"""An endpoint that is down, coming back or stalled holds up nobody who need not wait for it
(docs/trust.md#C2 and C11)."""

import asyncio

import pytest

from agentic_backend.errors import LlmTimeout, LlmUnavailable
from agentic_backend.llm import CallDeadlines, Endpoint, ModelPool
from agentic_backend.llm.models import StreamingChatModel
from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections
from tests.agentic_backend.llm.scripted import (
    DONE,
    SSE_HEAD,
    Write,
    finish,
    scripted,
    stalls_after,
    status,
    streams,
    token,
)
from tests.support.clock import Clock

pytestmark = pytest.mark.servers

GOOD = streams(token("Hello"), finish(), DONE)


async def about_to_probe(clocked_pool: ModelPool, base_url: str, clock: Clock) -> StreamingChatModel:
    """A model whose circuit five failures opened, and whose pause is over: its next call is the probe."""
    model = clocked_pool.chat_model(Endpoint(base_url, "m", retries=Retries(max_retries=0)))
    for _ in range(5):
        with pytest.raises(LlmUnavailable):
            await model.ainvoke("Hi")
    clock.now += 5
    return model


async def test_the_first_token_of_a_probe_lets_the_others_through(clocked_pool: ModelPool, clock: Clock) -> None:
    """An answer takes a minute: who asks in that minute must not be told that the model is unavailable."""
    go_on = asyncio.Event()

    async def long_answer(write: Write) -> None:
        await write(SSE_HEAD)
        await write(token("Hel"))
        await go_on.wait()
        await write(token("lo") + finish() + DONE)

    async with scripted(*[status(500)] * 5, long_answer, GOOD) as server:
        model = await about_to_probe(clocked_pool, server.base_url, clock)
        probe = model.astream("Hi")
        assert (await anext(probe)).content == "Hel"
        assert (await model.ainvoke("Hi")).content == "Hello"
        go_on.set()
        assert "".join([str(chunk.content) async for chunk in probe]) == "lo"
        assert len(server.requests) == 7


async def test_until_a_probe_has_a_token_the_others_fail_at_once(clocked_pool: ModelPool, clock: Clock) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(write: Write) -> None:
        asked.set()
        await go_on.wait()
        await GOOD(write)

    async with scripted(*[status(500)] * 5, late) as server:
        model = await about_to_probe(clocked_pool, server.base_url, clock)
        async with asyncio.TaskGroup() as group:
            probe = group.create_task(model.ainvoke("Hi"))
            await asked.wait()
            for _ in range(20):
                with pytest.raises(LlmUnavailable) as refused:
                    await model.ainvoke("Hi")
                assert refused.value.retry_after_s == 1
            assert len(server.requests) == 6
            go_on.set()
        assert probe.result().content == "Hello"


async def test_a_server_that_stalls_uses_up_no_connections_to_another() -> None:
    pool = ModelPool(Connections(max_connections=2))
    async with scripted(stalls_after(token("Hel"))) as stalled, scripted(GOOD) as other:
        streams_held = [pool.chat_model(Endpoint(stalled.base_url, "m")).astream("Hi") for _ in range(2)]
        for stream in streams_held:
            assert (await anext(stream)).content == "Hel"
        assert (await pool.chat_model(Endpoint(other.base_url, "m")).ainvoke("Hi")).content == "Hello"
        await pool.aclose()
        for stream in streams_held:
            await stream.aclose()  # type: ignore[attr-defined]  # an async generator


async def test_a_silent_model_is_not_waited_for_again_and_again(clocked_pool: ModelPool, clock: Clock) -> None:
    async with scripted(*[stalls_after()] * 6, GOOD) as server:
        model = clocked_pool.chat_model(
            Endpoint(server.base_url, "m", deadlines=CallDeadlines(first_token_s=0.1), retries=Retries(max_retries=0))
        )
        for _ in range(5):
            with pytest.raises(LlmTimeout):
                await model.ainvoke("Hi")
        with pytest.raises(LlmUnavailable) as refused:
            await model.ainvoke("Hi")
        assert refused.value.retry_after_s == 5
        assert len(server.requests) == 5
        clock.now += 5
        with pytest.raises(LlmTimeout):  # a probe, in vain
            await model.ainvoke("Hi")
        with pytest.raises(LlmUnavailable):
            await model.ainvoke("Hi")
        clock.now += 5
        assert [(await model.ainvoke("Hi")).content for _ in range(2)] == ["Hello", "Hello"]


async def test_a_model_that_falls_silent_after_its_first_token_is_asked_again(clocked_pool: ModelPool) -> None:
    async with scripted(stalls_after(token("Hel"))) as server:
        model = clocked_pool.chat_model(
            Endpoint(server.base_url, "m", deadlines=CallDeadlines(inter_token_s=0.05), retries=Retries(max_retries=0))
        )
        for _ in range(6):
            with pytest.raises(LlmTimeout):
                await model.ainvoke("Hi")
        assert len(server.requests) == 6
