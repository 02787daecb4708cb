"""Each fault of a model server, byte for byte, and what a turn is told (docs/trust.md#C1 to C7)."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from langchain_core.messages import HumanMessage
from pydantic import SecretStr

from agentic_backend import settings
from agentic_backend.errors import LlmProtocol, LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.llm import CallDeadlines, Endpoint, ModelPool
from agentic_backend.llm.client import CompletionStream
from agentic_backend.llm.endpoint import endpoint_of
from agentic_backend.llm.failures import AttemptFailed
from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections
from backend_kit.kpi import Kpi, Ledger
from tests.agentic_backend.llm.conftest import Watched
from tests.agentic_backend.llm.scripted import (
    DONE,
    SSE_HEAD,
    Step,
    Write,
    event,
    finish,
    scripted,
    sends,
    stalls_after,
    status,
    streams,
    token,
    usage,
)
from tests.support.clock import Clock
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

QUICK = Retries(base_s=0.001, cap_s=0.002)
GOOD = streams(token("Hel"), token("lo"), finish(), usage(3, 2), DONE)
KEY = "sk-canary-4711"


async def ask(
    pool: ModelPool,
    base_url: str,
    said: list[str] | None = None,
    *,
    retries: Retries = QUICK,
    deadlines: CallDeadlines | None = None,
    max_answer_chars: int = 1000,
) -> str:
    """The whole text of one streamed answer; `said` has what came before a failure."""
    said = [] if said is None else said
    endpoint = Endpoint(
        base_url,
        "m",
        SecretStr(KEY),
        retries=retries,
        deadlines=deadlines or CallDeadlines(),
        max_answer_chars=max_answer_chars,
    )
    async for chunk in pool.chat_model(endpoint).astream("Hi"):
        assert isinstance(chunk.content, str)
        said.append(chunk.content)
    return "".join(said)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What lies in a cycle when the test begins is gone, what it leaves there stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_good_stream_is_observed(pool: ModelPool, watched: Watched) -> None:
    async with scripted(GOOD) as model:
        assert await ask(pool, model.base_url) == "Hello"
    assert (watched.first_chunks, watched.requests, watched.tokens) == (["m"], [("m", "ok")], [("m", 3, 2)])
    assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert model.requests[0].body["stream_options"] == {"include_usage": True}
    assert "traceparent" not in model.requests[0].headers


async def test_a_turn_s_call_carries_its_trace(pool: ModelPool, kpi: Kpi) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with scripted(GOOD) as model:
        with Ledger(kpi, traceparent=trace).activate():
            await ask(pool, model.base_url)
    assert model.requests[0].headers["traceparent"] == trace


@pytest.mark.parametrize("fault", [status(429), status(429, "Retry-After: 0"), status(500), status(502), status(503)])
async def test_a_passing_refusal_is_tried_again(pool: ModelPool, fault: Step) -> None:
    async with scripted(fault, fault, GOOD) as model:
        assert await ask(pool, model.base_url) == "Hello"
        assert len(model.requests) == 3
        assert model.requests[0].body == model.requests[2].body


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (status(429), LlmRateLimited),
        (status(500), LlmUnavailable),
        (sends(), LlmUnavailable),
        (sends(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\nda"), LlmUnavailable),
        (streams(event({"error": {"message": "x", "code": 503}})), LlmUnavailable),
        (streams(event({"error": {"message": "x", "code": "rate_limit_exceeded"}})), LlmRateLimited),
        (streams(event({"error": "x"})), LlmUnavailable),
    ],
)
async def test_a_lasting_fault_fails_after_two_retries(
    pool: ModelPool, watched: Watched, fault: Step, error: type[TurnFailed]
) -> None:
    async with scripted(fault) as model:
        with pytest.raises(error) as raised:
            await ask(pool, model.base_url)
        assert type(raised.value) is error
        assert len(model.requests) == 3
    assert watched.requests == [("m", "error")]
    assert watched.first_chunks == []


async def test_a_refused_connection_is_unavailable(pool: ModelPool) -> None:
    with pytest.raises(LlmUnavailable):
        await ask(pool, f"http://127.0.0.1:{free_port()}/v1")


async def test_retry_after_is_waited_for(clocked_pool: ModelPool, clock: Clock) -> None:
    async with scripted(status(429, "Retry-After: 3"), GOOD) as model:
        assert await ask(clocked_pool, model.base_url) == "Hello"
    assert [round(wait) for wait in clock.slept] == [3]


async def test_a_retry_after_beyond_the_budget_fails_at_once_and_is_passed_on(pool: ModelPool) -> None:
    async with scripted(status(429, "Retry-After: 30")) as model:
        with pytest.raises(LlmRateLimited) as raised:
            await ask(pool, model.base_url)
        assert len(model.requests) == 1
    assert raised.value.retry_after_s == 30


async def test_waits_that_together_leave_the_budget_are_not_begun(clocked_pool: ModelPool, clock: Clock) -> None:
    async with scripted(status(429, "Retry-After: 6")) as model:
        with pytest.raises(LlmRateLimited) as raised:
            await ask(clocked_pool, model.base_url)
        assert len(model.requests) == 2
    assert raised.value.retry_after_s == 6
    assert 6 <= sum(clock.slept) <= 10


@pytest.mark.parametrize("code", [301, 400, 401, 404])
async def test_another_status_is_final_and_logged_without_body_or_key(
    pool: ModelPool, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted(
        status(code, "Location: http://127.0.0.1:1/", body=b'{"error": "the prompt was: Hi"}')
    ) as model:
        with pytest.raises(LlmProtocol) as raised:
            await ask(pool, model.base_url)
        # A malformed request may be one whose stream_options the server does not know.
        assert len(model.requests) == (2 if code == 400 else 1)
    assert str(code) in caplog.text
    for secret in (KEY, "the prompt"):
        assert secret not in caplog.text + str(raised.value) + repr(pool.__dict__)


BROKEN: dict[str, Step] = {
    "garbage": streams(token("Hel"), b"data: lorem ipsum\n\n"),
    "bad JSON": streams(token("Hel"), b'data: {"choices": [\n\n'),
    "no object": streams(token("Hel"), b"data: []\n\n"),
    "cut in a UTF-8 sequence": streams(token("Hel"), b'data: {"choices": [{"delta": {"content": "\xe2\x82"}}]}\n\n'),
    "cut in an event": streams(token("Hel"), b'data: {"choices": [{"delta": {"conte'),
    "no end": streams(token("Hel")),
    "connection lost": sends(SSE_HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked"), b"5\r\nda"),
    "huge event": streams(token("Hel"), b"data: ", b"x" * (1 << 20), b"x\n\n"),
    "error in the stream": streams(token("Hel"), event({"error": {"code": 400}})),
}


@pytest.mark.parametrize("fault", [pytest.param(fault, id=name) for name, fault in BROKEN.items()][:6])
async def test_a_stream_that_breaks_keeps_its_text_and_is_not_tried_again(
    pool: ModelPool, watched: Watched, fault: Step
) -> None:
    said: list[str] = []
    async with scripted(fault) as model:
        with pytest.raises(LlmProtocol):
            await ask(pool, model.base_url, said)
        assert len(model.requests) == 1
    assert "".join(said) == "Hel"
    assert watched.requests == [("m", "error")]


@pytest.mark.parametrize("name", ["huge event", "error in the stream"])
async def test_what_follows_text_is_not_tried_again(pool: ModelPool, name: str) -> None:
    async with scripted(BROKEN[name]) as model:
        with pytest.raises(LlmProtocol):
            await ask(pool, model.base_url)
        assert len(model.requests) == 1


async def test_a_server_that_fails_in_its_stream_says_which_way(pool: ModelPool) -> None:
    said: list[str] = []
    async with scripted(streams(token("Hel"), event({"error": {"code": 500}}))) as model:
        with pytest.raises(LlmUnavailable):
            await ask(pool, model.base_url, said)
        assert len(model.requests) == 1
    assert said == ["Hel"]


@pytest.mark.parametrize(
    "fault",
    [
        status(200, body=b'{"choices": []}'),
        sends(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<ok>"),
        sends(b"SSH-2.0-OpenSSH\r\n\r\n"),
        streams(b"<html></html>"),
        streams(b"\xff\xfe\xfd"),
        streams(DONE),
    ],
)
async def test_an_answer_that_is_no_stream_is_a_protocol_failure(pool: ModelPool, fault: Step) -> None:
    async with scripted(fault) as model:
        with pytest.raises(LlmProtocol):
            await ask(pool, model.base_url)
        assert len(model.requests) == 1


async def test_an_endless_event_is_refused_at_the_bound(pool: ModelPool) -> None:
    async def endless(write: Write) -> None:
        await write(SSE_HEAD + b"data: ")
        while True:
            await write(b"x" * 65536)

    async with scripted(endless) as model:
        with pytest.raises(LlmProtocol):
            await ask(pool, model.base_url)
        await model.gone.wait()
        # What the kernel buffers of a loopback connection is some megabytes; 100 are not among them.
        assert model.written < 32 << 20


async def test_an_endless_answer_is_cut_at_its_bound_and_says_so(pool: ModelPool, watched: Watched) -> None:
    async def endless(write: Write) -> None:
        piece = token("x" * 30)
        await write(SSE_HEAD)
        while True:
            await write(piece)

    async with scripted(endless) as model:
        endpoint = Endpoint(model.base_url, "m", max_answer_chars=1000)
        answer = await pool.chat_model(endpoint).ainvoke("Hi")
        await model.gone.wait()
    assert answer.content == "x" * 1000
    assert answer.response_metadata["finish_reason"] == "length"
    assert watched.requests == [("m", "ok")]


async def test_events_without_text_are_bounded_too(pool: ModelPool) -> None:
    async def endless(write: Write) -> None:
        piece = event({"choices": [], "x": "x" * 100})
        await write(SSE_HEAD)
        while True:
            await write(piece)

    async with scripted(endless) as model:
        assert await ask(pool, model.base_url) == ""
        await model.gone.wait()


async def test_no_first_token_in_time(pool: ModelPool, watched: Watched) -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    async with scripted(stalls_after(role)) as model:
        with pytest.raises(LlmTimeout):
            await ask(pool, model.base_url, deadlines=CallDeadlines(first_token_s=0.5))
        await model.gone.wait()
        assert len(model.requests) == 1
    assert watched.requests == [("m", "timeout")]


async def test_no_headers_in_time(pool: ModelPool) -> None:
    async def silent(_write: Write) -> None:
        await asyncio.Event().wait()

    async with scripted(silent) as model:
        with pytest.raises(LlmTimeout):
            await ask(pool, model.base_url, deadlines=CallDeadlines(first_token_s=0.5))
        await model.gone.wait()


async def test_the_first_tokens_deadline_holds_over_retries(pool: ModelPool) -> None:
    async with scripted(status(503)) as model:
        with pytest.raises(LlmTimeout):
            await ask(
                pool,
                model.base_url,
                retries=Retries(max_retries=10**6, base_s=0.001, cap_s=0.001),
                deadlines=CallDeadlines(first_token_s=0.1),
            )


async def test_a_stream_that_stalls(pool: ModelPool, watched: Watched) -> None:
    said: list[str] = []
    async with scripted(stalls_after(token("Hel"), token("lo"))) as model:
        with pytest.raises(LlmTimeout):
            await ask(pool, model.base_url, said, deadlines=CallDeadlines(inter_token_s=0.5))
        await model.gone.wait()
    assert "".join(said) == "Hello"
    assert watched.requests == [("m", "timeout")]


async def test_comments_are_no_tokens(pool: ModelPool) -> None:
    async def kept_alive(write: Write) -> None:
        await write(SSE_HEAD + token("Hel"))
        while True:
            await write(b": keep-alive\n\n")
            await asyncio.sleep(0.01)

    async with scripted(kept_alive) as model:
        with pytest.raises(LlmTimeout):
            await ask(pool, model.base_url, deadlines=CallDeadlines(inter_token_s=0.1))
        await model.gone.wait()


async def test_a_slow_but_steady_stream_outlives_the_deadline(pool: ModelPool) -> None:
    async def slow(write: Write) -> None:
        await write(SSE_HEAD)
        for _ in range(10):
            await write(token("x"))
            await asyncio.sleep(0.5)
        await write(finish() + DONE)

    async with scripted(slow) as model:
        assert await ask(pool, model.base_url, deadlines=CallDeadlines(inter_token_s=4.0)) == "x" * 10


async def test_a_consumer_that_takes_its_time_is_no_stall(pool: ModelPool) -> None:
    taken = asyncio.Event()

    async def on_demand(write: Write) -> None:
        await write(SSE_HEAD)
        for _ in range(3):
            await write(token("x"))
            await taken.wait()
            taken.clear()
        await write(finish() + DONE)

    text = ""
    async with scripted(on_demand) as model:
        endpoint = Endpoint(model.base_url, "m", deadlines=CallDeadlines(inter_token_s=4.0))
        async for chunk in pool.chat_model(endpoint).astream("Hi"):
            if not text:
                await asyncio.sleep(4.5)
            text += str(chunk.content)
            taken.set()
    assert text == "xxx"


async def test_a_token_is_handed_on_whatever_came_with_it(pool: ModelPool) -> None:
    said: list[str] = []
    async with scripted(stalls_after(token("Hel") + usage(3, 1))) as model:
        with pytest.raises(LlmTimeout):
            await ask(pool, model.base_url, said, deadlines=CallDeadlines(first_token_s=30, inter_token_s=0.1))
    assert "".join(said) == "Hel"


async def test_what_is_broken_before_the_end_is_broken(pool: ModelPool) -> None:
    async with scripted(streams(token("Hel") + b"data: lorem\n\n" + finish() + DONE)) as model:
        with pytest.raises(LlmProtocol):
            await ask(pool, model.base_url)


async def test_an_end_that_is_lost_after_the_finish_reason_is_an_answer(pool: ModelPool) -> None:
    chunked = SSE_HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
    body = token("Hello") + finish()
    async with scripted(sends(chunked + b"%x\r\n%s\r\n" % (len(body), body), b"9\r\nda")) as model:
        assert await ask(pool, model.base_url) == "Hello"
    async with scripted(streams(token("Hello"), finish())) as model:
        assert await ask(pool, model.base_url) == "Hello"


async def test_a_server_that_keeps_the_stream_open_after_its_end_holds_nobody_up(pool: ModelPool) -> None:
    async with scripted(stalls_after(token("Hello"), finish(), DONE)) as model:
        assert await ask(pool, model.base_url) == "Hello"
        await model.gone.wait()


async def test_an_address_that_speaks_no_tls_is_not_tried_again(pool: ModelPool) -> None:
    connections = 0

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"220 hello\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LlmUnavailable):
            await ask(pool, f"https://127.0.0.1:{port}/v1")
    assert connections == 1


async def test_an_address_that_is_none_is_not_tried_again(pool: ModelPool) -> None:
    with pytest.raises(LlmUnavailable):
        await ask(pool, "nonsense", retries=Retries(base_s=60.0, cap_s=60.0, budget_s=1000.0))


async def test_a_connection_that_is_not_made_in_time_is_unavailable(dead_end: str) -> None:
    pool = ModelPool(Connections(connect_s=0.1))
    with pytest.raises(LlmUnavailable):
        await ask(pool, dead_end)
    await pool.aclose()


@pytest.mark.parametrize("before", [b"", SSE_HEAD, SSE_HEAD + token("Hel")])
async def test_cancelling_closes_the_connection_at_once(pool: ModelPool, watched: Watched, before: bytes) -> None:
    reached = asyncio.Event()

    async def stall(write: Write) -> None:
        if before:
            await write(before)
        reached.set()
        await asyncio.Event().wait()

    async with scripted(stall) as model:
        task = asyncio.ensure_future(ask(pool, model.base_url))
        await reached.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await model.gone.wait()
    assert watched.requests == [("m", "cancelled")]


async def test_no_byte_for_the_time_of_a_read_ends_a_stream(pool: ModelPool, watched: Watched) -> None:
    said: list[str] = []
    silent = CallDeadlines(read_s=0.2, first_token_s=3600, inter_token_s=3600)
    async with scripted(stalls_after(token("Hel"))) as model:
        with pytest.raises(LlmTimeout, match=r"timeout\.read"):
            await ask(pool, model.base_url, said, deadlines=silent)
        await model.gone.wait()
    assert said == ["Hel"]
    assert watched.requests == [("m", "timeout")]


async def test_no_byte_before_the_first_token_is_tried_again(pool: ModelPool) -> None:
    silent = CallDeadlines(read_s=0.2, first_token_s=3600, inter_token_s=3600)
    async with scripted(stalls_after(), GOOD) as model:
        assert await ask(pool, model.base_url, deadlines=silent) == "Hello"
        assert len(model.requests) == 2


async def test_a_server_that_takes_no_more_of_a_prompt_ends_the_call(pool: ModelPool) -> None:
    slow = CallDeadlines(write_s=0.1, first_token_s=3600)
    done = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined] # nothing else leaves a body where it is
        await done.wait()
        writer.transport.abort()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        endpoint = Endpoint(url, "m", retries=Retries(max_retries=0), deadlines=slow)
        with pytest.raises(LlmTimeout, match=r"timeout\.write"):
            async for _ in pool.chat_model(endpoint).astream("x" * (32 << 20)):
                pass
        done.set()


async def test_so_many_attempts_are_made_as_are_configured(clocked_pool: ModelPool) -> None:
    model = settings.ChatModel(name="m", settings=settings.ChatModelSettings(max_retries=10))
    retries = endpoint_of(model, settings.Deadlines()).retries
    async with scripted(status(500)) as server:
        with pytest.raises(LlmUnavailable):
            await ask(clocked_pool, server.base_url, retries=replace(retries, jitter=0.0))
        assert len(server.requests) == 11


async def test_leaving_a_stream_early_closes_the_connection(pool: ModelPool, watched: Watched) -> None:
    async with scripted(stalls_after(token("Hel"), token("lo"))) as model:
        stream = await pool.chat_model(Endpoint(model.base_url, "m")).async_client.create(stream=True)
        async with stream as chunks:
            async for _chunk in chunks:
                break
        await model.gone.wait()
    assert watched.requests == [("m", "cancelled")]


async def test_a_dead_endpoint_fails_fast_until_it_is_back(clocked_pool: ModelPool, clock: Clock) -> None:
    async with scripted(*[status(500)] * 15, GOOD) as model:
        for _ in range(5):
            with pytest.raises(LlmUnavailable):
                await ask(clocked_pool, model.base_url)
        assert len(model.requests) == 15
        with pytest.raises(LlmUnavailable) as raised:
            await ask(clocked_pool, model.base_url)
        assert raised.value.retry_after_s == 5
        assert len(model.requests) == 15
        clock.now += 5
        assert await ask(clocked_pool, model.base_url) == "Hello"
        assert await ask(clocked_pool, model.base_url) == "Hello"


@pytest.mark.parametrize(
    "fault",
    [status(400), streams(token("Hel")), streams(token("Hel") + b"data: lorem\n\n")],
    ids=["refused", "cut", "broken"],
)
@pytest.mark.usefixtures("uncollected")
async def test_a_call_that_failed_is_in_no_cycle(pool: ModelPool, fault: Step) -> None:
    """A turn that failed is gone at once: its frames hold the prompt, and full collections are hours apart."""
    async with scripted(fault) as model:
        chat = pool.chat_model(Endpoint(model.base_url, "m"))
        failed = 0
        for _ in range(3):
            try:
                async for _piece in chat.astream_text([HumanMessage("Hi")], lambda _text: None):
                    pass
            except TurnFailed:
                failed += 1
        kept = [one for one in gc.get_objects() if isinstance(one, CompletionStream | AttemptFailed | TurnFailed)]
    assert (failed, kept) == (3, [])


@pytest.mark.parametrize("tokens", [1, 2])
async def test_what_the_taker_of_text_raises_ends_the_call(pool: ModelPool, tokens: int) -> None:
    """For the first token it is called by the task that iterates, for further ones by the loop."""
    heard: list[str] = []
    first = asyncio.Event()

    def take(text: str) -> None:
        heard.append(text)
        first.set()
        if len(heard) == tokens:
            raise ZeroDivisionError("in the taker")

    async def answer(write: Write) -> None:
        await write(SSE_HEAD + token("one"))
        await first.wait()
        await write(token("two"))
        await asyncio.Event().wait()

    async with scripted(answer) as model:
        chat = pool.chat_model(Endpoint(model.base_url, "m"))
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            async for _ending in chat.astream_text([HumanMessage("Hi")], take):
                pass
        await model.gone.wait()
    assert heard == ["one", "two"][:tokens]


async def test_failures_are_logged_once_a_second_and_cause(pool: ModelPool, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(status(400)) as model:
        for _ in range(20):
            with pytest.raises(LlmProtocol):
                await ask(pool, model.base_url)
    assert 1 <= len([record for record in caplog.records if "http_status" in record.getMessage()]) < 20
