"""How each failure looks on each channel (docs/protocol.md#how-a-failure-looks-by-channel).

A row is an event; what is to be seen of it on a channel follows from its kind and from the closed list of codes. Each
test makes its rows happen in one service, over real connections, and compares whole tables.
"""

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from agentic_backend.app import Parts
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import Session
from agentic_backend.session.stream import TextDelta
from agentic_backend.spool.spool import DiskUsage, Spool
from backend_kit.wire import CODES, Code, message_for
from tests.agentic_backend.records import until
from tests.support.following import ask_frame, stream_events
from tests.support.odd_agent import odd
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, token_of
from tests.support.ports import free_port
from tests.support.schema import validate_native
from tests.support.service import BASE, NATIVE, PATIENT_CLIENT, RunningService, StartService, hear, say

Frame = dict[str, Any]
STREAM: Final = f"{BASE}/chatbot/query/stream"
SLOW: Final = "mock;ttft=600000"
STALLS: Final = "mock;tokens=9;stall=3"
PLAIN: Final = "agentic_backend.agent.plain"
ENDS: Final = {"final", "error", "cancelled"}
STAYS: Final = "stays"
ENDED: Final = "ended"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client sees of one event: the types of what it hears, without fragments; the code; the connection after
    it (stays, ended, or the code it was closed with); the HTTP status; whether it is told when to come again."""

    types: tuple[str, ...] = ()
    code: str = ""
    then: str | int = STAYS
    status: int = 200
    later: bool = False
    told: Frame = field(default_factory=dict)


Row = dict[str, Seen]


def refused(code: Code, *, later: bool = False, field: str | None = None) -> Row:
    """An ask that became no turn, for a fault in `field`, which the compatible protocol has no word for."""
    error = {"retryable": CODES[code].retryable, "numbered": False, "partial": False}
    named = {} if field is None else {"field": field}
    return {
        "native": Seen(("error",), code, later=later, told=error | named),
        "compatible": Seen(("error",), code, 1011),
        "stream": Seen((), code, ENDED, CODES[code].status, later, named),
    }


def failed(code: Code, *, partial: bool = False, later: bool = False) -> Row:
    """A turn that began and could not end well."""
    error = {"retryable": CODES[code].retryable, "numbered": True, "partial": partial}
    return {
        "native": Seen(("accepted", "message", "error"), code, later=later, told=error),
        "compatible": Seen(("stream", "final"), code, told={"finish_reason": "other", "partial": partial}),
        "stream": Seen(("accepted", "message", "error"), code, ENDED, later=later, told=error),
    }


def stopped(then: str | int = STAYS) -> Row:
    """A turn that was stopped."""
    told = {"finish_reason": "cancelled", "partial": True}
    return {
        "native": Seen(("accepted", "message", "cancelled"), "", then, told=told),
        "compatible": Seen(("stream", "final"), "", then, told=told),
        "stream": Seen(("accepted", "message", "cancelled"), "", ENDED, told=told),
    }


ANSWERED: Final[Row] = {
    "native": Seen(("accepted", "message", "final"), told={"finish_reason": "stop", "partial": True}),
    "compatible": Seen(("stream", "stream", "final"), told={"finish_reason": "stop", "partial": True}),
    "stream": Seen(("accepted", "message", "final"), then=ENDED, told={"finish_reason": "stop", "partial": True}),
}


def of_end(frames: list[Frame], then: str | int) -> Seen:
    """What the frames of a turn or of a refusal come to."""
    end = frames[-1]
    types = tuple(frame["type"] for frame in frames if frame["type"] not in {"delta", "heartbeat"})
    if end["type"] != "error":
        return _of_answer(end["messages"][-1], types, then)
    code = Code(end["code"])
    if "content" in end:
        assert end["content"] == message_for(code)
        return Seen(types, code, then)
    assert end["message"] == message_for(code)
    told = {"retryable": end["retryable"], "numbered": "seq" in end, "partial": end.get("partial", False)}
    told |= {"field": end["field"]} if "field" in end else {}
    return Seen(types, code, then, later="retry_after_ms" in end, told=told)


def _of_answer(answer: Frame, types: tuple[str, ...], then: str | int) -> Seen:
    metadata = answer["metadata"]
    code = metadata["extras"].get("error", "")
    texts = [part["text"] for part in answer["parts"]]
    if code:
        assert texts.pop() == message_for(Code(code))
    return Seen(types, code, then, told={"finish_reason": metadata["finish_reason"], "partial": bool("".join(texts))})


async def over_socket(socket: ClientConnection, sent: str, then: str | int) -> Seen:
    """Say something and hear all there is to it; `then` is what is to become of the socket."""
    await socket.send(sent)
    heard = [await hear(socket)]
    while heard[-1]["type"] not in ENDS:
        heard.append(await hear(socket))
    async with asyncio.timeout(PATIENCE_S):
        if then == STAYS:
            await (await socket.ping())
            return of_end(heard, STAYS)
        await socket.wait_closed()
    assert socket.close_code is not None
    return of_end(heard, socket.close_code)


async def over_stream(service: RunningService, sent: str, **headers: str) -> Seen:
    """The same over REST."""
    async with service.http.post(STREAM, data=sent, headers=headers) as response:
        later = "Retry-After" in response.headers
        if response.status != 200:
            detail = (await response.json())["detail"]
            named = {"field": detail.pop("field")} if "field" in detail else {}
            assert detail == {"code": detail["code"], "message": message_for(Code(detail["code"]))}
            return Seen((), detail["code"], ENDED, response.status, later, named)
        frames = [json.loads(event["data"]) async for event in stream_events(response) if "data" in event]
    for frame in frames:
        validate_native(frame)
    return of_end(frames, ENDED)


async def see(service: RunningService, channel: str, sent: Frame | str, expected: Seen) -> Seen:
    """What is seen of a frame on a connection of its own."""
    text = sent if isinstance(sent, str) else json.dumps(sent)
    if channel == "stream":
        return await over_stream(service, text)
    async with service.native() if channel == "native" else service.compatible() as socket:
        return await over_socket(socket, text, expected.then)


async def table(
    service: RunningService, rows: dict[str, Row], frame_of: Callable[[str, str], Frame | str]
) -> dict[str, Row]:
    """Every row on every channel, all at once."""
    async with asyncio.TaskGroup() as group:
        seen = {
            name: {
                channel: group.create_task(see(service, channel, frame_of(name, channel), expected))
                for channel, expected in row.items()
            }
            for name, row in rows.items()
        }
    return {name: {channel: task.result() for channel, task in row.items()} for name, row in seen.items()}


async def sessions_for(service: RunningService, rows: dict[str, Row], agent: Callable[[str], str]) -> dict[str, str]:
    """A session for each cell."""
    return {
        f"{name}/{channel}": await service.create_session(agent_id=agent(name))
        for name, row in rows.items()
        for channel in row
    }


async def test_what_cannot_be_read_or_is_refused(service: RunningService) -> None:
    bad, no_model = refused(Code.BAD_REQUEST), refused(Code.BAD_REQUEST, field="runtime_context.model")
    rows = {
        "unreadable": bad,
        "missing field": refused(Code.BAD_REQUEST, field="message"),
        "wrong field": refused(Code.BAD_REQUEST, field="runtime_context.deep_search"),
        "model": {**ANSWERED, **{name: of for name, of in no_model.items() if name != "compatible"}},
        "unknown type": refused(Code.UNKNOWN_TYPE, field="type"),
        "unknown key": {**ANSWERED, "native": refused(Code.BAD_REQUEST, field="runtime_context")["native"]},
        "unknown session": refused(Code.SESSION_NOT_FOUND),
        "unknown agent": refused(Code.AGENT_NOT_FOUND),
        "another text": refused(Code.CONFLICT),
    }
    sessions = await sessions_for(service, rows, lambda _name: "Georges")
    for channel in ANSWERED:
        first = ask_frame(sessions[f"another text/{channel}"], f"another text/{channel}", "The first text")
        assert await see(service, "native", first, ANSWERED["native"]) == ANSWERED["native"]

    def frame_of(name: str, channel: str) -> Frame | str:
        cell = f"{name}/{channel}"
        frame = ask_frame(sessions[cell], cell)
        special: dict[str, Frame | str] = {
            "unreadable": "{",
            "missing field": {key: value for key, value in frame.items() if key != "message"},
            "wrong field": {**frame, "runtime_context": {"deep_search": "yes"}},
            "model": {**frame, "runtime_context": {"model": "none of ours"}},
            "unknown type": {**frame, "type": "dance"},
            "unknown key": {**frame, "colour": "blue", "runtime_context": {"user_id": "mallory"}},
            "unknown session": {**frame, "session_id": f"none-{channel}"},
            "unknown agent": {**frame, "agent_id": "Nobody"},
        }
        return special.get(name, frame)

    assert await table(service, rows, frame_of) == rows
    history = await service.history(sessions["unknown key/stream"])
    assert "mallory" not in json.dumps(history)


BOUNDS: Final[dict[str, tuple[Frame, Row]]] = {
    "turns": ({"max_turns": 1, "queue_length": 0}, refused(Code.OVERLOADED, later=True)),
    "turns of a user": ({"per_user": {"turns": 1}}, refused(Code.TOO_MANY_TURNS, later=True)),
    "asks of a user": ({"per_user": {"asks_per_min": 1, "burst": 1}}, refused(Code.RATE_LIMITED, later=True)),
}


@pytest.mark.one_instance("its limit is of one process")
@pytest.mark.parametrize(("limits", "row"), BOUNDS.values(), ids=BOUNDS)
async def test_what_is_over_a_limit(start_service: StartService, limits: Frame, row: Row) -> None:
    async with start_service(SLOW, limits=limits) as service, service.native() as busy:
        await say(busy, **ask_frame(await service.create_session(), "busy"))
        assert [(await hear(busy))["type"] for _ in range(2)] == ["accepted", "message"]
        session_id = await service.create_session()
        seen = await table(service, {"": row}, lambda _name, channel: ask_frame(session_id, channel))
        assert seen == {"": row}
        await say(busy, type="cancel", exchange_id="busy")
        assert (await hear(busy))["type"] == "cancelled"


def statements(service: RunningService, operation: str) -> float:
    """How often a statement has been run."""
    labels = {"pool": "main", "op": operation}
    return service.service._registry.get_sample_value("app_db_statement_seconds_count", labels) or 0.0


@pytest.mark.one_instance("fills the pool and the disk of one process")
async def test_what_storage_stands_against(start_service: StartService) -> None:
    small = {"postgres": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.2}}
    free = [1 << 40]

    def usage(directory: Path) -> DiskUsage:
        return SimpleNamespace(total=shutil.disk_usage(directory).total, free=free[0])

    parts = Parts(persistence=partial(Persistence, spool=partial(Spool, disk_usage=usage)))
    async with start_service(storage=small) as service:
        persistence = service.service.running.persistence
        # The first look at the tables' sizes takes the one connection too.
        await until(lambda: statements(service, "table_sizes") > 0)
        # Made behind the back of the process, so that they have to be read.
        sessions = {channel: Session.new("admin", "Georges", "A title") for channel in ANSWERED}
        for session in sessions.values():
            assert await persistence.store.create(session)
        cells = {channel: ask_frame(session.id, channel) for channel, session in sessions.items()}
        row = refused(Code.HISTORY_UNAVAILABLE)
        async with persistence.database.main.connection():
            seen = await table(service, {"": row}, lambda _name, channel: cells[channel])
        assert seen == {"": row}
    async with start_service(parts=parts) as service:
        persistence = service.service.running.persistence
        row = refused(Code.STORAGE_FULL, later=True)
        assert persistence.spool is not None
        free[0] = 0
        await asyncio.to_thread(persistence.spool.look_at_disk)
        seen = await table(service, {"": row}, lambda _name, channel: cells[channel])
        assert seen == {"": row}
        free[0] = 1 << 40
        await asyncio.to_thread(persistence.spool.look_at_disk)
        for session in sessions.values():
            assert await service.history(session.id) == []
        assert await table(service, {"": ANSWERED}, lambda _name, channel: cells[channel]) == {"": ANSWERED}


FAILURES: Final[dict[str, tuple[str, Row]]] = {
    "refusal": ("mock;status=500", failed(Code.LLM_UNAVAILABLE)),
    "too many": ("mock;status=429;retry=20", failed(Code.LLM_RATE_LIMITED, later=True)),
    "silence": (SLOW, failed(Code.LLM_TIMEOUT)),
    "stall": (STALLS, failed(Code.LLM_TIMEOUT, partial=True)),
    "cut": ("mock;tokens=9;truncate=3", failed(Code.LLM_PROTOCOL, partial=True)),
    "garbage": ("mock;tokens=9;garbage=0", failed(Code.LLM_PROTOCOL)),
}
"""Faults of a model, each the only one of an agent."""
OTHERS: Final = {"raise": failed(Code.INTERNAL), "Rico": failed(Code.KF_UNAVAILABLE)}


def failing_agents() -> Frame:
    """The section `ai` with an agent for each way to fail in a turn."""
    required = {"fields": [{"key": "rag.require_documents", "default": True}]}
    return {
        "knowledge_flow_url": f"http://127.0.0.1:{free_port()}/knowledge-flow/v1",
        "default_chat_model": {"settings": {"max_retries": 0}},
        "chat_models": [{"id": name.replace(" ", "-"), "name": knobs} for name, (knobs, _) in FAILURES.items()],
        "agents": [
            *({"name": name, "class_path": PLAIN, "model": name.replace(" ", "-")} for name in FAILURES),
            {"name": "Rico", "class_path": "agentic_backend.agent.rag", "tuning": required},
            odd("raise"),
        ],
    }


async def kept(service: RunningService, sessions: dict[str, str]) -> dict[str, Seen]:
    """What history has of each cell's turn."""
    found = {}
    for cell, session_id in sessions.items():
        question, answer = await service.history(session_id)
        assert (question["role"], question["rank"], answer["rank"]) == ("user", 0, 1)
        found[cell] = _of_answer(answer, (), STAYS)
        status = answer["metadata"]["extras"].get("status")
        assert status == ("interrupted" if answer["metadata"]["finish_reason"] == "cancelled" else None)
    return found


def kept_of(rows: dict[str, Row]) -> dict[str, Seen]:
    """What it should have: the same on every channel."""
    cells = {}
    for name, row in rows.items():
        mark = row["compatible"]
        cells |= {f"{name}/{channel}": Seen((), mark.code, told=mark.told) for channel in row}
    return cells


WAITED_FOR: Final = {"silence": {"first_token_s": 1}, "stall": {"inter_token_s": 1}}
"""Failures that only a deadline ends, which the others must not meet."""


@pytest.mark.parametrize("late", [None, *WAITED_FOR])
async def test_what_fails_in_a_turn(start_service: StartService, late: str | None) -> None:
    rows = {name: row for name, (_, row) in FAILURES.items()} | OTHERS
    rows = {name: row for name, row in rows.items() if (name == late if late else name not in WAITED_FOR)}
    waits = WAITED_FOR[late] if late else {}
    async with start_service(ai=failing_agents(), deadlines=waits) as service:
        sessions = await sessions_for(service, rows, lambda name: name)

        def frame_of(name: str, channel: str) -> Frame:
            cell = f"{name}/{channel}"
            return {**ask_frame(sessions[cell], cell), "agent_id": name}

        assert await table(service, rows, frame_of) == rows
        assert await kept(service, sessions) == kept_of(rows)


async def test_what_takes_too_long(start_service: StartService) -> None:
    rows = {"deadline": failed(Code.TURN_DEADLINE, partial=True)}
    async with start_service(STALLS, deadlines={"turn_s": 10}) as service:
        sessions = await sessions_for(service, rows, lambda _name: "Georges")
        cells = {channel: ask_frame(sessions[f"deadline/{channel}"], channel) for channel in ANSWERED}
        assert await table(service, rows, lambda _name, channel: cells[channel]) == rows
        assert await kept(service, sessions) == kept_of(rows)


async def told_something(service: RunningService, exchange_id: str) -> None:
    """Return once a turn has a part of its answer."""
    async with asyncio.timeout(PATIENCE_S):
        while (turn := service.turn(exchange_id)) is None:  # noqa: ASYNC110 - it is on its way
            await asyncio.sleep(0.01)
        heard = asyncio.Event()
        turn.follow(heard.set)
        while not any(isinstance(event.payload, TextDelta) for event in turn.events):
            await heard.wait()
            heard.clear()
        turn.unfollow(heard.set)


@pytest.mark.one_instance("its process drains")
@pytest.mark.parametrize("drained", [False, True], ids=["cancel", "drain deadline"])
async def test_what_is_stopped(start_service: StartService, drained: bool) -> None:
    rows = {"stopped": stopped(1012 if drained else STAYS)}
    async with start_service(STALLS, deadlines={"drain_s": 0.2}) as service:
        sessions = await sessions_for(service, rows, lambda _name: "Georges")
        cells = {channel: ask_frame(sessions[f"stopped/{channel}"], channel) for channel in ANSWERED}
        seeing = asyncio.ensure_future(table(service, rows, lambda _name, channel: cells[channel]))
        for channel in ANSWERED:
            await told_something(service, channel)
        if drained:
            await service.service.drain()
        else:
            async with service.native() as other:
                for channel in ANSWERED:
                    await say(other, type="cancel", exchange_id=channel)
        assert await seeing == rows
        assert await kept(service, sessions) == kept_of(rows)
        if drained:
            assert await knocked(service) == dict.fromkeys(ANSWERED, (503, "draining", True))
            async with service.http.get(f"{BASE}/ready") as response:
                assert response.status == 503


async def test_a_second_ask_on_a_busy_session(start_service: StartService) -> None:
    row = refused(Code.SESSION_BUSY, later=True)
    del row["compatible"]
    async with start_service(SLOW) as service, service.native() as stopper, service.compatible() as socket:
        session_id = await service.create_session()
        for number in range(3):
            await say(socket, **ask_frame(session_id, f"e{number}"))
        assert (await hear(socket))["type"] == "stream"
        assert await table(service, {"": row}, lambda _name, channel: ask_frame(session_id, channel)) == {"": row}
        ends = []
        for number in range(3):
            await say(stopper, type="cancel", exchange_id=f"e{number}")
            while (frame := await hear(socket))["type"] != "final":
                assert frame["message"]["exchange_id"] == f"e{number}"
            ends.append(frame["messages"][0]["exchange_id"])
            if number < 2:
                assert (await hear(socket))["type"] == "stream"
        assert ends == ["e0", "e1", "e2"]


Knock = tuple[int, str, bool]


def door(service: RunningService, channel: str, token: str | None, origin: str | None = None) -> connect:
    """A handshake, with or without a token, from this service's own page or another."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    page = Origin(origin) if origin else None
    protocols = [NATIVE] if channel == "native" else None
    return connect(service.ws_url, additional_headers=headers, subprotocols=protocols, origin=page, **PATIENT_CLIENT)


async def knocked(service: RunningService, origin: str | None = None) -> dict[str, Knock]:
    """Status, code and whether a refused client is told when to come again, on each channel."""
    found: dict[str, Knock] = {}
    for channel in ("native", "compatible"):
        with pytest.raises(InvalidStatus) as refusal:
            await door(service, channel, "local", origin)
        answer = refusal.value.response
        assert answer.body is not None
        detail = json.loads(answer.body)["detail"]
        found[channel] = (answer.status_code, detail["code"], "Retry-After" in answer.headers)
    seen = await over_stream(service, json.dumps(ask_frame("any")), **({"Origin": origin} if origin else {}))
    found["stream"] = (seen.status, seen.code, seen.later)
    return found


@pytest.mark.one_instance("its limit is of one process")
async def test_what_is_turned_away_at_the_door(start_service: StartService) -> None:
    async with start_service(limits={"max_sockets": 1}) as service, service.native():
        assert await knocked(service) == dict.fromkeys(ANSWERED, (503, "overloaded", True))
        assert await knocked(service, "https://evil.example") == dict.fromkeys(ANSWERED, (403, "forbidden", False))
    async with start_service(limits={"per_address": {"sockets": 1}}) as service, service.native():
        assert await knocked(service) == dict.fromkeys(ANSWERED, (429, "rate_limited", True))


@pytest.mark.one_instance("of two sockets that are opened at once instances do not know which is older")
async def test_one_socket_too_many_of_a_user(start_service: StartService) -> None:
    async with start_service(limits={"per_user": {"sockets": 1}}) as service, AsyncExitStack() as stack:
        session_id = await service.create_session()
        oldest = await stack.enter_async_context(service.compatible())
        for channel in ("native", "compatible"):
            newest = await stack.enter_async_context(door(service, channel, "local"))
            async with asyncio.timeout(PATIENCE_S):
                await oldest.wait_closed()
                await (await newest.ping())
            assert oldest.close_code == 4409
            oldest = newest
        seen = await over_stream(service, json.dumps(ask_frame(session_id)))
        assert (seen.status, seen.code, seen.later) == (429, "rate_limited", True)
        await (await oldest.ping())


@pytest.mark.parametrize("token", [None, "bad", "forged"])
async def test_without_credentials(start_service: StartService, token: str | None) -> None:
    async with start_service(security=SECURITY) as service:
        shown = token_of("ann")[:-3] + "abc" if token == "forged" else token
        for channel in ("native", "compatible"):
            async with door(service, channel, shown) as socket, asyncio.timeout(PATIENCE_S):
                await socket.wait_closed()
            assert socket.close_code == 4401
        headers = {"Authorization": f"Bearer {shown}" if shown else ""}
        for method, path in (("POST", STREAM), ("GET", f"{BASE}/chatbot/sessions")):
            async with service.http.request(method, path, headers=headers) as response:
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
