"""Several endpoints and several models behind one: who is asked, when the next one is, and what a caller sees of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables.config import set_config_context

from agentic_backend import settings
from agentic_backend.agent.answering import stream_answer, stream_reply
from agentic_backend.errors import LlmProtocol, LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.events import AgentEvent, Delta, Thought
from agentic_backend.llm import Endpoint, ModelPool
from agentic_backend.llm.group import Member, ModelGroup
from agentic_backend.llm.prompt import Prompt
from agentic_backend.testing import FakeModel
from backend_kit.aio.retry import Retries
from tests.agentic_backend.llm.conftest import Watched
from tests.agentic_backend.llm.scripted import (
    DONE,
    SSE_HEAD,
    ScriptedModel,
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
from tests.agentic_backend.llm.test_seam import TOOL_CALLS, add_tool
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

PROMPT = Prompt("Be brief.", (), "Why?")
GOOD = streams(token("Hel"), token("lo"), finish(), DONE)
NAMELESS = streams(token("Hello"), event({"choices": [{"delta": {}, "finish_reason": "stop"}]}), DONE)
FAILS = event({"error": {"code": 500}})
ONCE = Retries(max_retries=0)


class Fallbacks:
    """What a group is told to count."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, str]] = []

    def __call__(self, model: str, cause: str) -> None:
        self.counted.append((model, cause))


@pytest.fixture
def fallbacks() -> Fallbacks:
    return Fallbacks()


def member(pool: ModelPool, base_url: str, name: str) -> Member:
    return Member(pool.chat_model(Endpoint(base_url, name, retries=ONCE)), name)


def group(fallbacks: Fallbacks, *models: tuple[Member, ...], first_token_s: float = 30.0) -> ModelGroup:
    return ModelGroup(models=models, first_token_s=first_token_s, on_fallback=fallbacks)


async def told(model: BaseChatModel) -> tuple[str, str]:
    """The answer that an agent of ours has, and who gave it."""
    events: list[AgentEvent] = []
    answer = await stream_answer(model, PROMPT, events.append, fallback_model_name="first")
    assert answer.text == "".join(one.text for one in events if isinstance(one, Delta))
    return answer.text, answer.metadata["model"]


async def streamed(model: BaseChatModel) -> tuple[str, str]:
    whole = reduce(add, [chunk async for chunk in model.astream("Why?")])
    return str(whole.content), str(whole.response_metadata.get("model_name"))


async def invoked(model: BaseChatModel) -> tuple[str, str]:
    answer = await model.ainvoke("Why?")
    return str(answer.content), str(answer.response_metadata.get("model_name"))


Ask = Callable[[BaseChatModel], Awaitable[tuple[str, str]]]
ASKED = pytest.mark.parametrize("ask", [told, streamed, invoked])


@ASKED
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (status(503), "llm_unavailable"),
        (stalls_after(), "llm_timeout"),
        (status(429, "Retry-After: 60"), "llm_rate_limited"),
        (streams(FAILS), "llm_unavailable"),
    ],
)
async def test_another_answers_where_one_cannot(
    pool: ModelPool, fallbacks: Fallbacks, ask: Ask, fault: Step, cause: str
) -> None:
    async with scripted(fault) as down, scripted(NAMELESS) as up:
        first, second = member(pool, down.base_url, "first"), member(pool, up.base_url, "second")
        asked = group(fallbacks, (first,), (second,), first_token_s=2.0)
        assert await ask(asked) == ("Hello", "second")
    assert fallbacks.counted == [("first", cause)]
    assert (first.outstanding, second.outstanding) == (0, 0)


@ASKED
async def test_who_answers_at_once_is_the_only_one_asked(pool: ModelPool, fallbacks: Fallbacks, ask: Ask) -> None:
    async with scripted(GOOD) as one, scripted(GOOD) as other:
        asked = group(fallbacks, (member(pool, one.base_url, "a"),), (member(pool, other.base_url, "b"),))
        assert await ask(asked) == ("Hello", "scripted")
        assert (len(one.requests), len(other.requests)) == (1, 0)
    assert fallbacks.counted == []


@ASKED
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (status(404), LlmProtocol),
        (streams(b"<html></html>"), LlmProtocol),
        # After the first token nobody else is asked, whatever it is that fails.
        (streams(token("Hel"), FAILS), LlmUnavailable),
        (
            streams(event({"choices": [{"delta": {"reasoning": "Hm"}}]}), FAILS),
            LlmUnavailable,
        ),
    ],
)
async def test_what_another_could_not_mend_is_the_failure(
    pool: ModelPool, fallbacks: Fallbacks, ask: Ask, fault: Step, error: type[TurnFailed]
) -> None:
    async with scripted(fault) as down, scripted(GOOD) as up:
        asked = group(fallbacks, (member(pool, down.base_url, "a"),), (member(pool, up.base_url, "b"),))
        with pytest.raises(error):
            await ask(asked)
        assert (len(down.requests), len(up.requests)) == (1, 0)
    assert fallbacks.counted == []


async def test_where_nobody_answers_the_last_one_says_why(pool: ModelPool, fallbacks: Fallbacks) -> None:
    async with scripted(status(503)) as down, scripted(status(429, "Retry-After: 60")) as busy:
        asked = group(fallbacks, (member(pool, down.base_url, "a"),), (member(pool, busy.base_url, "b"),))
        with pytest.raises(LlmRateLimited) as raised:
            await told(asked)
    assert raised.value.retry_after_s == 60
    assert fallbacks.counted == [("a", "llm_unavailable")]


async def test_a_silent_model_is_passed_over_at_once_when_its_circuit_is_open(
    pool: ModelPool, watched: Watched, fallbacks: Fallbacks
) -> None:
    """Its part of the deadline of all is what it is held to."""
    async with scripted(stalls_after()) as silent, scripted(GOOD) as up:
        models = (member(pool, silent.base_url, "silent"),), (member(pool, up.base_url, "up"),)
        asked = group(fallbacks, *models, first_token_s=1.0)
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(invoked(asked)) for _ in range(5)]
        assert {answer.result()[0] for answer in answers} == {"Hello"}
        assert watched.requests.count(("silent", "timeout")) == 5
        assert (await invoked(asked))[0] == "Hello"
        assert len(silent.requests) == 5
    assert fallbacks.counted[-1] == ("silent", "llm_unavailable")


async def test_two_that_are_silent_have_the_one_deadline(pool: ModelPool, fallbacks: Fallbacks) -> None:
    async with scripted(stalls_after()) as one, scripted(stalls_after()) as other:
        asked = group(
            fallbacks, (member(pool, one.base_url, "a"),), (member(pool, other.base_url, "b"),), first_token_s=0.4
        )
        with pytest.raises(LlmTimeout):
            await told(asked)
        assert (len(one.requests), len(other.requests)) == (1, 1)


class Silent(BaseChatModel):
    """A model of somebody else's that never says anything."""

    @property
    def _llm_type(self) -> str:
        return "silent"

    def _generate(self, *_args: Any, **_kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, *_args: Any, **_kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        await asyncio.Event().wait()
        yield ChatGenerationChunk(message=AIMessageChunk(content=""))


@ASKED
@pytest.mark.parametrize("model", [Silent(), FakeModel(*[LlmUnavailable("down")] * 3)], ids=["silent", "down"])
async def test_it_holds_for_any_model_of_langchains(
    pool: ModelPool, fallbacks: Fallbacks, ask: Ask, model: BaseChatModel
) -> None:
    async with scripted(GOOD) as up:
        asked = group(fallbacks, (Member(model, "first"),), (member(pool, up.base_url, "b"),), first_token_s=1.0)
        assert (await ask(asked))[0] == "Hello"
        asked = group(
            fallbacks, (member(pool, f"http://127.0.0.1:{free_port()}/v1", "a"),), (Member(FakeModel("Hi"), "c"),)
        )
        assert (await ask(asked))[0] == "Hi"
    assert [name for name, _ in fallbacks.counted] == ["first", "a"]


class Held:
    """A server that begins each answer, and ends it when it may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Semaphore(0)

    async def __call__(self, write: Write) -> None:
        await write(SSE_HEAD + token("Hel"))
        self.asked.release()
        await self.go.wait()
        await write(token("lo") + finish() + DONE)


async def three(held: Held, stack: AsyncExitStack) -> list[ScriptedModel]:
    return [await stack.enter_async_context(scripted(held)) for _ in range(3)]


async def test_the_endpoint_with_the_fewest_calls_is_asked(pool: ModelPool, fallbacks: Fallbacks) -> None:
    held = Held()
    async with AsyncExitStack() as stack:
        servers = await three(held, stack)
        members = tuple(member(pool, server.base_url, "m") for server in servers)
        asked = group(fallbacks, members)
        async with asyncio.TaskGroup() as tasks:
            for count in range(1, 7):
                tasks.create_task(told(asked))
                await held.asked.acquire()
                calls = sorted(one.outstanding for one in members)
                assert calls == sorted((count + place) // 3 for place in range(3))
            # One that has none, although it was asked last, is asked next.
            members[1].outstanding -= 2
            tasks.create_task(told(asked))
            await held.asked.acquire()
            assert len(servers[1].requests) == 3
            members[1].outstanding += 2
            held.go.set()
        assert [one.outstanding for one in members] == [0, 0, 0]


async def test_idle_endpoints_take_turns(pool: ModelPool, fallbacks: Fallbacks) -> None:
    async with scripted(GOOD) as one, scripted(GOOD) as other:
        asked = group(fallbacks, (member(pool, one.base_url, "m"), member(pool, other.base_url, "m")))
        for _ in range(4):
            await invoked(asked)
        assert (len(one.requests), len(other.requests)) == (2, 2)


async def test_a_dead_endpoint_is_left_out_and_is_no_fallback(pool: ModelPool, fallbacks: Fallbacks) -> None:
    async with scripted(status(503)) as down, scripted(GOOD) as up:
        asked = group(fallbacks, (member(pool, down.base_url, "m"), member(pool, up.base_url, "m")))
        for _ in range(30):
            assert (await told(asked))[0] == "Hello"
        # Its circuit is open: it costs nobody a request any more.
        assert len(down.requests) == 5
    assert fallbacks.counted == []


async def test_tools_are_offered_to_whoever_is_asked(pool: ModelPool, fallbacks: Fallbacks) -> None:
    async with scripted(status(503)) as down, scripted(TOOL_CALLS) as up:
        asked = group(fallbacks, (member(pool, down.base_url, "a"),), (member(pool, up.base_url, "b"),))
        bound = asked.bind_tools([add_tool], tool_choice="any")
        answer = await bound.ainvoke("1 + 2, 3 + 4")
        offered = [{"type": "function", "function": {"name": "add_tool", "parameters": {}}}]
        reply = await stream_reply(asked, PROMPT, lambda _event: None, tools=offered)
    assert [call["args"] for call in answer.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert [call.arguments for call in reply.calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    for server in (down, up):
        assert [request.body["tools"][0]["function"]["name"] for request in server.requests] == ["add_tool"] * 2
        assert server.requests[0].body["tool_choice"] == "required"


class Starts(AsyncCallbackHandler):
    """Counts the calls that a handler hears of."""

    def __init__(self) -> None:
        self.starts = 0
        self.tokens = ""

    async def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None:
        self.starts += 1

    async def on_llm_new_token(self, token: Any, **_kwargs: Any) -> None:
        self.tokens += str(token)


@ASKED
async def test_a_handler_hears_of_each_token_once(pool: ModelPool, fallbacks: Fallbacks, ask: Ask) -> None:
    async with scripted(GOOD) as up:
        asked = group(fallbacks, (member(pool, up.base_url, "a"),), (member(pool, up.base_url, "b"),))
        heard = Starts()
        with set_config_context({"callbacks": [heard]}) as context:
            assert (await asyncio.create_task(ask(asked), context=context))[0] == "Hello"  # type: ignore[arg-type]
    assert (heard.starts, heard.tokens) == (1, "Hello")


async def test_reasoning_comes_through(pool: ModelPool, fallbacks: Fallbacks) -> None:
    events: list[AgentEvent] = []
    async with scripted(streams(token("<think>Hm</think>Hello"), finish(), DONE)) as up:
        asked = group(fallbacks, (member(pool, up.base_url, "a"),), (member(pool, up.base_url, "b"),))
        await stream_answer(asked, PROMPT, events.append)
        chunks = [chunk async for chunk in asked.astream("Why?")]
    assert events == [Thought("Hm"), Delta("Hello")]
    assert reduce(add, chunks).additional_kwargs["reasoning_content"] == "Hm"


async def test_leaving_early_ends_the_call_of_the_member(pool: ModelPool, fallbacks: Fallbacks) -> None:
    async with scripted(stalls_after(token("Hel"))) as server:
        one = member(pool, server.base_url, "a")
        stream = group(fallbacks, (one,), (one,)).astream("Why?")
        assert (await anext(stream)).content == "Hel"
        assert one.outstanding == 1
        await stream.aclose()  # type: ignore[attr-defined] # an async generator
        await server.gone.wait()
        assert one.outstanding == 0


def test_a_blocking_call_is_refused(fallbacks: Fallbacks) -> None:
    with pytest.raises(RuntimeError, match="async only"):
        group(fallbacks, (Member(Silent(), "a"),)).invoke("Hi")


def configured(**how: Any) -> settings.ChatModel:
    return settings.ChatModel.model_validate({"name": "m", "settings": how})


@pytest.mark.parametrize(
    ("how", "urls"),
    [
        ({}, [None]),
        ({"base_url": "http://a/v1"}, ["http://a/v1"]),
        ({"base_url": "http://a/v1", "further_urls": ["http://b/v1", "http://a/v1"]}, ["http://a/v1", "http://b/v1"]),
        ({"further_urls": ["http://b/v1", "http://c/v1"]}, ["http://b/v1", "http://c/v1"]),
    ],
)
def test_a_model_has_all_its_endpoints(how: dict[str, Any], urls: list[str | None]) -> None:
    assert [one.settings.base_url for one in configured(**how).endpoints] == urls


@pytest.mark.parametrize(
    ("own", "urls", "key"),
    [
        ({}, ["http://a/v1", "http://b/v1"], "sk"),
        ({"base_url": "http://c/v1"}, ["http://c/v1"], None),
        ({"further_urls": ["http://c/v1", "http://d/v1"]}, ["http://c/v1", "http://d/v1"], None),
    ],
)
def test_a_further_model_at_its_own_endpoints_has_no_key_of_the_default_one(
    own: dict[str, Any], urls: list[str], key: str | None
) -> None:
    default = configured(base_url="http://a/v1", further_urls=["http://b/v1"], api_key="sk")
    called = settings.OfferedModel.model_validate({"id": "x", "name": "x", "settings": own}).called_as(default)
    keys = {one.settings.api_key.get_secret_value() if one.settings.api_key else None for one in called.endpoints}
    assert [one.settings.base_url for one in called.endpoints] == urls
    assert keys == {key}
