"""The client of JSON over HTTP: what each fault of a server is, what is tried again, and what a breaker makes of it."""

import asyncio
from collections.abc import AsyncIterator
from math import inf

import pytest
from aiohttp import web

from backend_kit.aio import Breaker
from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import CallFailed, CallTimedOut, FailureKind, HttpRequest, JsonClient, guarded
from tests.backend_kit.client.server import serving
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

CANARY = "canary-body"
TWICE = Retries(max_retries=2, budget_s=inf, base_s=0.001)


@pytest.fixture
async def client() -> AsyncIterator[JsonClient]:
    made = JsonClient(Connections())
    yield made
    await made.aclose()


class Scripted:
    """A handler that answers in turn, the last answer again and again; `asked` are the requests."""

    def __init__(self, *answers: web.Response | type[ConnectionError]) -> None:
        self._answers = list(answers)
        self.asked: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Any request."""
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, web.Response):
            # A response is for one use.
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


def status(code: int, **headers: str) -> web.Response:
    return web.Response(status=code, text=CANARY, headers=headers)


async def test_a_json_body_goes_out_and_the_answer_comes_back(client: JsonClient) -> None:
    bodies: list[bytes] = []

    async def echo(request: web.Request) -> web.Response:
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["Accept-Encoding"] == "identity"
        assert request.headers["X-For"] == "ann"
        bodies.append(await request.read())
        return web.json_response({"a": 1}, headers={"Server-Timing": "total;dur=1"})

    async with serving(echo) as url:
        answer = await client.call(HttpRequest(url, data=b"{}", headers={"X-For": "ann"}))
        await client.call(HttpRequest(url, data=b" " * (3 << 20), headers={"X-For": "ann"}))
    assert (answer.status, answer.json(), answer.headers["Server-Timing"]) == (200, {"a": 1}, "total;dur=1")
    assert answer.began < answer.ended
    assert bodies == [b"{}", b" " * (3 << 20)]


@pytest.mark.parametrize(
    ("code", "kind", "down"),
    [(204, "refused", False), (302, "refused", False), (400, "refused", False), (401, "refused", False),
     (429, "busy", False), (500, "failed", True), (503, "failed", True)],
)  # fmt: skip
async def test_a_status_that_is_not_good_is_a_failure_whose_body_is_not_shown(
    client: JsonClient, code: int, kind: FailureKind, down: bool
) -> None:
    handler = Scripted(status(code, Location="/elsewhere"))
    async with serving(handler.answer) as url:
        with pytest.raises(CallFailed) as caught:
            await client.call(HttpRequest(url))
    failure = caught.value
    assert (str(failure), failure.status, failure.kind, failure.down) == (f"HTTP {code}", code, kind, down)
    assert CANARY not in repr(failure)
    assert [request.path for request in handler.asked] == ["/"]


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("99999", 99999.0), ("soon", None), ("-1", None), ("1.5", None)]
)
async def test_the_wait_that_a_server_asks_for_is_read(client: JsonClient, header: str, seconds: float | None) -> None:
    async with serving(Scripted(status(503, **{"Retry-After": header})).answer) as url:
        with pytest.raises(CallFailed) as caught:
            await client.call(HttpRequest(url))
    assert caught.value.wait_s == seconds


async def test_what_the_caller_calls_good_is_an_answer(client: JsonClient) -> None:
    async with serving(Scripted(status(413)).answer) as url:
        answer = await client.call(HttpRequest(url, "DELETE", good=frozenset({204, 413})))
    assert (answer.status, answer.body) == (413, CANARY.encode())
    with pytest.raises(CallFailed, match="not JSON") as caught:
        answer.json()
    assert (caught.value.kind, caught.value.status, caught.value.down) == ("broken", 413, False)


@pytest.mark.parametrize("declared", [True, False])
async def test_an_answer_above_its_bound_is_left(client: JsonClient, declared: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "2001"} if declared else {})
        await response.prepare(request)
        await response.write(b" " * 2001)
        return response

    async with serving(answer) as url:
        assert len((await client.call(HttpRequest(url, max_bytes=2001))).body) == 2001
        with pytest.raises(CallFailed, match="too large") as caught:
            await client.call(HttpRequest(url, max_bytes=2000), retries=TWICE)
    assert (caught.value.kind, caught.value.status) == ("broken", 200)


@pytest.mark.parametrize("passing", [(ConnectionError, status(503)), (status(429), status(500)), (status(503),)])
async def test_what_may_pass_is_tried_again(
    client: JsonClient, passing: tuple[web.Response | type[ConnectionError], ...]
) -> None:
    handler = Scripted(*passing, web.json_response([]))
    async with serving(handler.answer) as url:
        assert (await client.call(HttpRequest(url), retries=TWICE)).json() == []
    assert len(handler.asked) == len(passing) + 1


async def test_what_does_not_pass_and_what_is_refused_is_given_up(client: JsonClient) -> None:
    for code, tries in ((503, 3), (400, 1)):
        handler = Scripted(status(code))
        async with serving(handler.answer) as url:
            with pytest.raises(CallFailed, match=f"HTTP {code}"):
                await client.call(HttpRequest(url), retries=TWICE)
        assert len(handler.asked) == tries


async def test_only_the_kinds_that_were_named_are_tried_again(client: JsonClient) -> None:
    handler = Scripted(ConnectionError, status(503))
    async with serving(handler.answer) as url:
        with pytest.raises(CallFailed, match="HTTP 503"):
            await client.call(HttpRequest(url), retries=TWICE, again=frozenset({"reset"}))
    assert len(handler.asked) == 2


async def test_an_answer_that_is_cut_off_is_a_failure_of_the_server(client: JsonClient) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"[")
        assert request.transport is not None
        request.transport.close()
        return response

    async with serving(cut) as url:
        with pytest.raises(CallFailed, match="cut off") as caught:
            await client.call(HttpRequest(url))
    assert (caught.value.kind, caught.value.fault, caught.value.status) == ("failed", "ClientPayloadError", 0)


async def test_nobody_there(client: JsonClient) -> None:
    with pytest.raises(CallFailed) as caught:
        await client.call(HttpRequest(f"http://127.0.0.1:{free_port()}/"))
    assert str(caught.value) == "no answer: ClientConnectorError"
    assert (caught.value.kind, caught.value.down, caught.value.fault) == ("reset", True, "ClientConnectorError")


async def test_an_address_that_cannot_be_called_says_nothing_of_a_server(client: JsonClient) -> None:
    with pytest.raises(CallFailed) as caught:
        await client.call(HttpRequest("http://"), retries=TWICE)
    assert (caught.value.kind, caught.value.status, caught.value.down) == ("refused", 0, False)


async def test_silence_and_a_deadline_are_lateness() -> None:
    arrived = asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    silent, patient = JsonClient(Connections(read_s=0.05)), JsonClient(Connections(read_s=PATIENCE_S))
    async with serving(hold) as url:
        for calling, deadline_s in ((silent, None), (patient, 0.05)):
            with pytest.raises(CallTimedOut) as caught:
                await calling.call(HttpRequest(url), deadline_s=deadline_s)
            assert (caught.value.kind, caught.value.down, str(caught.value)) == ("late", True, "no answer in time")
            assert isinstance(caught.value, TimeoutError)
            await calling.aclose()
    assert arrived.is_set()


class Open(Exception):
    pass


def is_open_after(*ends: Exception | None, times: int = 5) -> bool:
    """Whether a breaker is open after calls that ended so, in turn."""
    breaker = Breaker(lambda: 0.0, lambda _wait_s: Open())
    for number in range(times):
        end = ends[number % len(ends)]
        try:
            with guarded(breaker):
                if end is not None:
                    raise end
        except (CallFailed, TimeoutError, ValueError, asyncio.CancelledError):
            pass
    return not breaker.closed


@pytest.mark.parametrize(
    ("ends", "opens"),
    [
        ((CallFailed("x", "failed"),), True),
        ((CallFailed("x", "reset"),), True),
        ((CallTimedOut(),), True),
        ((TimeoutError(),), True),
        ((CallFailed("x", "busy"),), False),
        ((CallFailed("x", "refused"),), False),
        ((CallFailed("x", "broken"),), False),
        ((ValueError(),), False),
        ((CallFailed("x", "failed"), None), False),
    ],
)  # fmt: skip
async def test_what_is_down_opens_the_breaker_and_what_is_odd_does_not(
    ends: tuple[Exception | None, ...], opens: bool
) -> None:
    assert is_open_after(*ends, times=10 if not opens else 5) == opens


async def test_an_open_breaker_refuses_before_anything_is_sent() -> None:
    breaker = Breaker(lambda: 0.0, lambda _wait_s: Open())
    for _ in range(5):
        breaker.failed()
    with pytest.raises(Open), guarded(breaker):
        pytest.fail("the call was let through")


async def test_the_caller_may_know_better_what_a_failure_says() -> None:
    breaker = Breaker(lambda: 0.0, lambda _wait_s: Open())
    for _ in range(4):
        breaker.failed()
    with pytest.raises(CallFailed), guarded(breaker, lambda _failure: True):
        raise CallFailed("HTTP 404", "refused", status=404)
    breaker.failed()
    assert breaker.closed
    for _ in range(4):
        with pytest.raises(CallFailed), guarded(breaker, lambda _failure: False):
            raise CallFailed("x", "refused")
    assert not breaker.closed
