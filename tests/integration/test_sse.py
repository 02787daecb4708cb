"""The same turns over plain HTTP: an event stream that can be cut, resumed, and mixed with sockets."""

import asyncio
import json
import signal
import socket
from contextlib import aclosing

import pytest

from backend_kit.wire import Code, message_for
from tests.integration.test_cancel import SLOW, stats, until_open
from tests.integration.test_resume import EVENTS, MODEL
from tests.support.agentic import start_process
from tests.support.following import (
    after,
    ask_frame,
    heard,
    last_seq,
    over_socket,
    over_stream,
    resume_frame,
    stream_events,
    transcript,
)
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear_until, say

__all__ = ["start_process"]

STREAM = f"{BASE}/chatbot/query/stream"


@pytest.mark.parametrize(
    ("before", "then"),
    [(over_stream, over_stream), (over_socket, over_stream), (over_stream, over_socket)],
    ids=["stream", "socket-stream", "stream-socket"],
)
async def test_a_turn_cut_at_any_event_and_resumed_is_what_an_uncut_one_is(start_service, before, then):
    async def cut_at(index):
        session_id = await service.create_session(title=None)
        frame = ask_frame(session_id, f"e{index}")
        uncut = group.create_task(heard((over_socket, over_stream)[index % 2](service, frame)))
        first = await heard(before(service, frame), up_to=index)
        again = after(first, frame)
        rest = await heard(then(service, again)) if again else []
        assert transcript(first + rest) == transcript(await uncut)
        return last_seq(first)

    async with start_service(MODEL) as service:
        async with asyncio.TaskGroup() as group:
            cuts = [group.create_task(cut_at(index)) for index in range(EVENTS)]
        assert len({cut.result() for cut in cuts}) > EVENTS / 3


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_last_event_id_goes_on_with_the_same_ask_and_wins_over_the_body(service):
    session_id = await service.create_session(title=None)
    frame = ask_frame(session_id)
    whole = await heard(over_stream(service, frame))
    for again in (frame, resume_frame(session_id, after_seq=1)):
        rest = await heard(over_stream(service, again, last_event_id=3))
        assert transcript(whole[:3] + rest) == transcript(whole)
    assert await heard(over_stream(service, frame, last_event_id=last_seq(whole))) == []


async def test_after_a_restart_the_stream_tells_the_turn_from_history(start_service):
    async with start_service() as service:
        session_id = await service.create_session()
        first = await heard(over_stream(service, ask_frame(session_id)))
    async with start_service("mock;status=500") as service:
        told = await heard(over_stream(service, resume_frame(session_id), last_event_id=last_seq(first)))
        assert [json.loads(text)["type"] for text in told] == ["accepted", "message", "delta", "final"]
        assert json.loads(told[-1])["messages"] == json.loads(first[-1])["messages"]


async def test_the_answer_is_neither_buffered_nor_compressed(service):
    session_id = await service.create_session()
    headers = {"Accept-Encoding": "gzip, zstd"}
    async with service.http.post(STREAM, json=ask_frame(session_id), headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "no-store" in response.headers["Cache-Control"]
        assert "Content-Encoding" not in response.headers
        assert [event["event"] async for event in stream_events(response)][-1] == "final"


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"{", 422, "bad_request", None),
        (b"\xff", 422, "bad_request", None),
        (b"[]", 422, "bad_request", None),
        (json.dumps(ask_frame("s", if_busy="later")).encode(), 422, "bad_request", "if_busy"),
        (json.dumps(ask_frame("s", message="x" * 40_000)).encode(), 422, "message_too_long", "message"),
        (b'{"type":"ping"}', 422, "unknown_type", "type"),
        (b'{"type":"cancel","exchange_id":"e"}', 422, "unknown_type", "type"),
        (b'{"type":"other"}', 422, "unknown_type", "type"),
        (json.dumps(ask_frame("no-such-session")).encode(), 403, "session_not_found", None),
        (json.dumps(resume_frame("no-such-session")).encode(), 404, "exchange_not_found", None),
    ],
)
async def test_what_stands_against_a_turn_before_it_begins_is_an_http_error(service, body, status, code, field):
    async with service.http.post(STREAM, data=body) as response:
        assert response.status == status
        detail = (await response.json())["detail"]
        assert detail == {
            "code": code,
            "message": message_for(Code(code)),
            **({} if field is None else {"field": field}),
        }


async def test_a_number_that_is_none_is_a_bad_request(service):
    for value in ("x", "-1", "1.5", "99999999999", "²"):
        headers = {"Last-Event-ID": value}
        async with service.http.post(STREAM, json=ask_frame("s"), headers=headers) as response:
            assert (response.status, (await response.json())["detail"]["code"]) == (422, "bad_request")


async def test_a_busy_session_is_409_and_a_foreign_page_403(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask_frame(session_id))
            await hear_until(socket, "message")
            async with service.http.post(STREAM, json=ask_frame(session_id, "e2")) as response:
                assert (response.status, (await response.json())["detail"]["code"]) == (409, "session_busy")
                assert response.headers["Retry-After"] == "1"
            origin = {"Origin": "https://evil.example"}
            async with service.http.post(STREAM, json=ask_frame(session_id, "e3"), headers=origin) as response:
                assert (response.status, (await response.json())["detail"]["code"]) == (403, "forbidden")
            model.go.set()
            queued = await heard(over_stream(service, ask_frame(session_id, "e4", if_busy="queue")))
            assert json.loads(queued[-1])["messages"][0]["rank"] == 2


async def test_without_credentials_there_is_no_stream(start_service):
    security = {"user": {"enabled": True}, "hs256_secret": "a secret of at least thirty-two bytes"}
    async with start_service(security=security) as service, service.http.post(STREAM, json=ask_frame("s")) as response:
        assert response.status == 401


async def test_a_failure_in_the_turn_is_an_event(start_service):
    async with start_service("mock;tokens=20;truncate=5") as service:
        session_id = await service.create_session()
        frames = [json.loads(text) for text in await heard(over_stream(service, ask_frame(session_id)))]
    assert (frames[-1]["type"], frames[-1]["partial"]) == ("error", True)
    assert frames[-1]["seq"] > 0


@pytest.mark.parametrize("policy", ["continue", "cancel"])
async def test_a_reader_that_leaves_stops_the_turn_only_where_the_ask_says_so(start_service, mock_llm, policy):
    async with start_service("mock;ttft=500;tokens=3" if policy == "continue" else SLOW) as service:
        before = (await stats(service, mock_llm))["streams"]["open"]
        session_id = await service.create_session()
        await heard(over_stream(service, ask_frame(session_id, on_disconnect=policy)), up_to=2)
        turn = service.turn("e1")
        await turn.wait_ended()
        await until_open(service, mock_llm, before)
        answer = (await service.history(session_id))[1]
        assert answer["metadata"]["finish_reason"] == ("stop" if policy == "continue" else "cancelled")
        assert service.running_turns == 0


async def test_silence_is_broken_by_comments(start_service):
    async with held_model() as model, start_service(ai=model.ai, deadlines={"heartbeat_s": 1}) as service:
        session_id = await service.create_session()
        async with service.http.post(STREAM, json=ask_frame(session_id)) as response:
            kinds = []
            async for event in stream_events(response):
                kinds.append(event.get("event") or event[""])
                if kinds[-1] == "heartbeat":
                    model.go.set()
    # Until it came, the model was held; a machine that hesitates has more of them.
    assert "heartbeat" in kinds
    told = [kind for kind in kinds if kind != "heartbeat"]
    assert (told[:2], told[-1]) == (["accepted", "message"], "final")


async def test_a_drain_ends_a_stream_after_its_turn_and_refuses_new_ones(start_process):
    async with held_model() as model, start_process(ai=model.ai, deadlines={"drain_s": 600}) as service:
        session_id, other_id = [await service.create_session() for _ in range(2)]
        async with aclosing(over_stream(service, ask_frame(session_id))) as frames:
            await anext(frames)
            service.process.send(signal.SIGTERM)
            await service.line("drain 2/5")
            async with service.http.post(STREAM, json=ask_frame(other_id)) as response:
                assert (response.status, (await response.json())["detail"]["code"]) == (503, "draining")
                assert response.headers["Retry-After"] == "2"
            model.go.set()
            rest = [json.loads(text)["type"] async for text in frames]
        assert rest[-1] == "final"
        assert await service.ended() == 0
        assert ", 0 of them cut" in service.process.output


async def test_limits_of_sockets_count_streams(start_service):
    limits = {"max_sockets": 2, "per_user": {"sockets": 1}}
    async with held_model() as model, start_service(ai=model.ai, limits=limits) as service:
        session_id, other_id = [await service.create_session() for _ in range(2)]
        async with aclosing(over_stream(service, ask_frame(session_id))) as frames:
            await anext(frames)
            async with service.http.post(STREAM, json=ask_frame(other_id)) as response:
                assert (response.status, (await response.json())["detail"]["code"]) == (429, "rate_limited")
            async with service.native() as socket:  # an older socket would have made room: a stream does not
                await say(socket, type="ping")
                async with service.http.post(STREAM, json=ask_frame(other_id)) as response:
                    assert response.status == 429
            model.go.set()
            assert [json.loads(text)["type"] async for text in frames][-1] == "final"
        assert [await each.running.hub.wait_empty(PATIENCE_S) for each in service.instances] == [0] * len(
            service.instances
        )
        # Other instances are told a moment later.
        async with asyncio.timeout(PATIENCE_S):
            while (again := await asked(service, other_id)) == 429:
                pass
        assert again == 200


async def asked(service, session_id):
    """How an ask was answered, whose stream was read to its end."""
    async with service.http.post(STREAM, json=ask_frame(session_id, "e2")) as response:
        await response.read()
        return response.status


async def test_a_reader_that_takes_nothing_is_cut_and_its_turn_ends_in_history(start_service):
    """The answer is more than the buffers on the way hold, and ends at the bound of an answer."""
    async with start_service("mock;tokens=100000", deadlines={"send_s": 1, "drain_s": 5}) as service:
        session_id = await service.create_session()
        body = json.dumps(ask_frame(session_id)).encode()
        head = f"POST {STREAM} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", service.port))
            await loop.sock_sendall(client, head + body)
            async with asyncio.timeout(PATIENCE_S):
                while (turn := service.turn("e1")) is None:
                    await service.get("/ready")
                await turn.wait_ended()
            assert await service.wait_empty() == 0
        assert (await service.history(session_id))[1]["metadata"]["finish_reason"] == "length"
