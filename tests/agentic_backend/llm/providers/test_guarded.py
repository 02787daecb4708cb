"""Any model of LangChain's under guard: the deadlines, bounds, retries and counts that our own model has."""

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessageChunk, HumanMessage

from agentic_backend.agent.answering import stream_reply
from agentic_backend.errors import LlmProtocol, LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.events import AgentEvent, Delta, Thought
from agentic_backend.llm.providers import GuardedChatModel
from backend_kit.aio.retry import Retries
from tests.agentic_backend.llm.conftest import Watched
from tests.agentic_backend.llm.providers.conftest import Guarded, Piece, Scripted, end, text, thought
from tests.support.clock import Clock

ASKED = [HumanMessage("Hi")]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


class Refusal(Exception):
    """What an SDK raises."""

    def __init__(self, status_code: int) -> None:
        super().__init__("secret: the prompt")
        self.status_code = status_code


async def told(model: GuardedChatModel, **options: Any) -> tuple[str, str, list[AIMessageChunk]]:
    """Text, reasoning, and what is more."""
    texts: list[str] = []
    thoughts: list[str] = []
    more = [chunk async for chunk in model.astream_text(ASKED, texts.append, thoughts.append, **options)]
    assert all(isinstance(chunk, AIMessageChunk) for chunk in more)
    return "".join(texts), "".join(thoughts), more  # type: ignore[return-value]


async def test_text_and_reasoning_are_told_and_how_it_ended_is_a_message(guarded: Guarded, watched: Watched) -> None:
    named = text("", response_metadata={"model_name": "m-1"})
    inner = Scripted((named, thought("Hm."), text("Hel"), text("lo"), end("end_turn")))
    said, thoughts, [ending] = await told(guarded(inner))
    assert (said, thoughts) == ("Hello", "Hm.")
    assert ending.response_metadata == {"model_name": "m-1", "finish_reason": "stop"}
    assert watched.first_chunks == ["m"]
    assert watched.requests == [("m", "ok")]
    assert watched.tokens == [("m", 10, 4)]
    assert inner.open == 0


async def test_langchain_s_own_ways_to_call_it(guarded: Guarded) -> None:
    script = (text("Hel"), text("lo"), end("length"))
    model = guarded(Scripted(script, script, script))
    whole = await model.ainvoke("Hi", stop=["."], max_tokens=7)
    assert (whole.content, whole.response_metadata["finish_reason"]) == ("Hello", "length")
    assert "".join([str(chunk.content) async for chunk in model.astream("Hi")]) == "Hello"
    assert (await model.bind_tools(TOOLS).ainvoke("Hi")).content == "Hello"
    inner = model.inner
    assert isinstance(inner, Scripted)
    asked = [{key: value for key, value in one.items() if key != "messages"} for one in inner.asked]
    assert asked == [
        {"stop": ["."], "max_words": 7},
        {"stop": None, "max_words": None},
        {"stop": None, "max_words": None, "instruments": ["add"]},
    ]
    with pytest.raises(RuntimeError, match="async only"):
        model.invoke("Hi")


async def test_tools_are_offered_as_the_provider_names_them(guarded: Guarded) -> None:
    call = {"name": "add", "args": "{}", "id": "c1", "index": 0, "type": "tool_call_chunk"}
    inner = Scripted((text("", tool_call_chunks=[call]), end()))
    _, _, (calling, ending) = await told(guarded(inner), tools=TOOLS)
    assert inner.asked[0]["instruments"] == ["add"]
    assert "tools" not in inner.asked[0]
    assert calling.tool_call_chunks == [call]
    # Not every provider has a word for it.
    assert ending.response_metadata["finish_reason"] == "tool_calls"


class Listener(AsyncCallbackHandler):
    """A tracer, such as a caller or a configuration brings."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_llm_new_token(self, token: Any, **_kwargs: Any) -> None:
        self.heard.append(str(token))


async def test_who_listens_to_langchain_hears_each_chunk_and_the_reader_the_same(guarded: Guarded) -> None:
    listener, events = Listener(), list[AgentEvent]()
    model = guarded(Scripted((thought("Hm."), text("Hel"), text("lo"), end())))
    model.callbacks = [listener]
    reply = await stream_reply(model, ASKED, events.append)
    assert events == [Thought("Hm."), Delta("Hel"), Delta("lo")]
    assert (reply.answer.text, reply.answer.metadata["finish_reason"]) == ("Hello", "stop")
    assert listener.heard[1:3] == ["Hel", "lo"]


@pytest.mark.parametrize(
    ("failure", "error"),
    [(Refusal(429), LlmRateLimited), (Refusal(503), LlmUnavailable), (ConnectionResetError("secret"), LlmUnavailable)],
)
async def test_what_may_pass_is_tried_again_before_the_first_token(
    guarded: Guarded, clock: Clock, failure: Exception, error: type[TurnFailed], caplog: pytest.LogCaptureFixture
) -> None:
    again = Retries(max_retries=1)
    inner = Scripted((failure,), (text("Hello"), end()))
    assert (await told(guarded(inner, retries=again)))[0] == "Hello"
    assert len(clock.slept) == 1
    inner = Scripted((failure,), (failure,), (text("Hello"), end()))
    with pytest.raises(error) as raised:
        await told(guarded(inner, retries=again))
    assert len(inner.asked) == 2
    assert raised.value.__cause__ is None
    assert "secret" not in caplog.text
    assert "model m failed: " in caplog.text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ((Refusal(400),), ""),
        ((KeyError("choices"),), ""),
        ((), ""),
        ((text(""), text("")), ""),
        ((text("Hel"), ConnectionResetError()), "Hel"),
        ((text("Hel"), ValueError()), "Hel"),
        ((text("Hel"),), "Hel"),
    ],
    ids=["refused", "not readable", "empty", "nothing", "lost", "garbage", "cut"],
)
async def test_what_is_no_answer_is_not_tried_again(
    guarded: Guarded, watched: Watched, script: tuple[Piece, ...], said: str
) -> None:
    inner, texts = Scripted(script, (text("Hello"), end())), []
    with pytest.raises(LlmProtocol):
        async for _ in guarded(inner, retries=Retries()).astream_text(ASKED, texts.append):
            pass
    assert "".join(texts) == said
    assert len(inner.asked) == 1
    assert watched.requests == [("m", "error")]
    assert inner.open == 0


@pytest.mark.parametrize(
    ("script", "deadline", "reason"),
    [
        ((asyncio.Event(),), "first_token_s", "no first token"),
        # What brings nothing is no token: a stall that is kept alive is still a stall.
        ((text(""), asyncio.Event()), "first_token_s", "no first token"),
        ((text("Hel"), text(""), asyncio.Event()), "inter_token_s", "no next token"),
    ],
)
async def test_silence_has_a_deadline_and_closes_the_stream(
    guarded: Guarded, watched: Watched, script: tuple[Piece, ...], deadline: str, reason: str
) -> None:
    inner = Scripted(script)
    with pytest.raises(LlmTimeout, match=reason):
        await told(guarded(inner, deadlines={deadline: 0.01}))
    assert watched.requests == [("m", "timeout")]
    assert inner.open == 0


async def test_a_whole_answer_has_a_deadline_of_its_own(guarded: Guarded) -> None:
    inner = Scripted((text("Hel"), asyncio.Event()))
    with pytest.raises(LlmTimeout, match="no answer"):
        await guarded(inner, deadlines={"answer_s": 0.01}).ainvoke("Hi")
    assert inner.open == 0


async def test_a_silent_model_opens_its_circuit_and_one_answer_closes_it(guarded: Guarded, clock: Clock) -> None:
    """However long each call has waited: one caller alone would never fail five times in ten seconds."""

    def wait() -> None:
        clock.now += 30

    silent: list[tuple[Piece, ...]] = [(wait, asyncio.Event())] * 5
    inner = Scripted(*silent, (text("Hello"), end()), (text("Hello"), end()))
    model = guarded(inner, deadlines={"first_token_s": 0.01})
    for _ in silent:
        with pytest.raises(LlmTimeout):
            await told(model)
    with pytest.raises(LlmUnavailable) as refused:
        await told(model)
    assert refused.value.retry_after_s == pytest.approx(5, abs=0.1)
    assert len(inner.asked) == 5
    clock.now += 5
    for _ in range(2):
        assert (await told(model))[0] == "Hello"


async def test_a_model_that_falls_silent_after_its_first_token_is_asked_again(guarded: Guarded) -> None:
    stalls: list[tuple[Piece, ...]] = [(text("Hel"), asyncio.Event())] * 6
    inner = Scripted(*stalls)
    model = guarded(inner, deadlines={"inter_token_s": 0.01})
    for _ in stalls:
        with pytest.raises(LlmTimeout):
            await told(model)
    assert len(inner.asked) == 6


async def test_an_answer_without_an_end_is_cut_at_its_bound(guarded: Guarded) -> None:
    inner = Scripted((text("12345"), text("67890"), text("no more"), end()))
    said, _, [ending] = await told(guarded(inner, max_answer_chars=8))
    assert said == "12345678"
    assert ending.response_metadata["finish_reason"] == "length"
    assert inner.open == 0


async def test_so_is_reasoning_and_a_stream_of_nothing(guarded: Guarded) -> None:
    inner = Scripted((thought("12345"), thought("67890"), text("no"), end()), (text("a"), *[text("")] * 9, end()))
    model = guarded(inner, max_answer_chars=8, max_reasoning_chars=8)
    for said, thoughts in (("", "12345"), ("a", "")):
        heard, reasoned, [ending] = await told(model)
        assert (heard, reasoned) == (said, thoughts)
        assert ending.response_metadata["finish_reason"] == "length"


async def test_what_cannot_be_stored_is_replaced(guarded: Guarded) -> None:
    lone = "a\ud83d"
    inner = Scripted(
        (thought(f"{lone}\0"), text(f"\0{lone}"), AIMessageChunk(content=[{"type": "text", "text": lone}]), end())
    )
    said, thoughts, _ = await told(guarded(inner))
    assert said == "\ufffda\ufffda\ufffd"
    assert thoughts == "a\ufffd\ufffd"


async def test_a_stop_closes_the_stream(guarded: Guarded, watched: Watched) -> None:
    inner = Scripted((text("Hel"), asyncio.Event()))
    async with asyncio.TaskGroup() as group:
        call = group.create_task(told(guarded(inner)))
        await inner.waiting.wait()
        call.cancel()
    assert inner.open == 0
    assert watched.requests == [("m", "cancelled")]


async def test_who_leaves_closes_it_too(guarded: Guarded, watched: Watched) -> None:
    inner = Scripted((text("Hel"), text("lo"), end()))
    stream = guarded(inner).astream("Hi")
    await anext(stream)
    assert inner.open == 1
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator
    assert inner.open == 0
    assert watched.requests == [("m", "cancelled")]
