"""What clients of a door get where its cell says no."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

from tests.agentic_backend.llm.scripted import scripted
from tests.doors.cases import CUT, WHOLE, Case, Lab, held, stopped, text_in, until
from tests.doors.foreign import Chat
from tests.doors.native import Compatible, Rest, Stream
from tests.doors.talk import Event, Talk, hear, text_of, values
from tests.integration.test_human import NOTES, sections, used
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE
from tests.support.telling_agent import ANSWER, SECRET, telling


async def one_message(door: type[Talk], lab: Lab) -> None:
    """The question comes at once, the answer when it is whole."""
    async with held(lab, door) as (talk, go):
        events = talk.ask("Hello")
        first = await anext(events)
        assert text_of([first]) == ""
        waiting = asyncio.ensure_future(anext(events))
        async with asyncio.timeout(PATIENCE_S):
            while not talk.service.turns.running:  # noqa: ASYNC110 - a registry tells nobody
                await asyncio.sleep(0.01)
        assert not waiting.done()
        go.set()
        rest = [await waiting, *[event async for event in events]]
        assert [text for text in values(rest, "text") if text] == [WHOLE]


async def no_reasoning(door: type[Talk], lab: Lab) -> None:
    """Nothing of it is on the wire, and the answer is whole."""
    async with lab.start(ai={"agents": [telling()]}) as service:
        talk = await lab.open(door, service, "Teller")
        heard = await hear(talk.ask("tell"))
        assert text_of(heard) == ANSWER
        assert SECRET not in lab.wire


async def kept_reasoning(door: type[Talk], lab: Lab) -> None:
    """None, unless the service keeps it."""
    await no_reasoning(door, lab)
    settings: dict[str, Any] = {"ai": {"agents": [telling()]}, "history": {"keep_thoughts": True}}
    async with lab.start(**settings) as service:
        talk = await lab.open(door, service, "Teller")
        assert f"I look for {SECRET}." in values(await hear(talk.ask("tell")), "reasoning")
        lab.wire.note("history.keep_thoughts")


async def left_is_stopped(door: type[Talk], lab: Lab) -> None:
    """A cut ends the turn, wherever it comes; what was said is kept, and the same request is another turn. A client may
    leave its turn to end: then the whole answer is kept."""
    async with lab.start(CUT) as service:
        count = len(await hear((await lab.open(door, service)).ask("Hello")))
        for number in range(1, count):
            talk = await lab.open(door, service)
            first = await hear(talk.ask("Hello"), most=number)
            async with asyncio.timeout(PATIENCE_S):
                while service.turns.running:  # noqa: ASYNC110 - a registry tells nobody
                    await asyncio.sleep(0.01)
            answer = await talk.answer()
            assert text_in(answer).startswith(text_of(first))
            ended = bool(values(first, "end")) or answer["metadata"]["finish_reason"] == "stop"
            assert ended or answer["metadata"]["finish_reason"] == "cancelled"
    async with held(lab, door) as (talk, go):
        assert isinstance(talk, Chat)
        talk.headers = {"X-Turnwise-On-Disconnect": "continue"}
        heard: list[Event] = []
        events = talk.ask("Hello")
        await until(events, "zero", heard)
        await events.aclose()  # type: ignore[attr-defined]
        go.set()
        async with asyncio.timeout(PATIENCE_S):
            while talk.service.turns.running:  # noqa: ASYNC110 - a registry tells nobody
                await asyncio.sleep(0.01)
        assert text_in(await talk.answer()) == WHOLE
        before = (await talk.answer())["exchange_id"]
        await hear(talk.again(heard))
        assert (await talk.answer())["exchange_id"] != before


async def read_when_it_has_ended(door: type[Talk], lab: Lab) -> None:
    """History has nothing of a turn that runs, and all of it afterwards."""
    async with held(lab, Stream) as (talk, go):
        reader = door(talk.service, "Georges", lab.wire)
        reader.session_id = talk.session_id
        assert isinstance(reader, Rest)
        heard: list[Event] = []
        events = talk.ask("Hello")
        await until(events, "zero", heard)
        assert await reader.events() == []
        go.set()
        heard += [event async for event in events]
        assert text_of(await reader.events()) == text_of(heard) == WHOLE


async def read_at_any_time(door: type[Talk], lab: Lab) -> None:
    """Nothing to go on with: what was kept is whole, however often it is read, also after a restart."""
    async with lab.start() as service:
        talk = await lab.open(door, service)
        first = await hear(talk.ask("Hello"))
    async with lab.start("mock;status=500") as service:
        reader = door(service, "Georges", lab.wire)
        reader.session_id = talk.session_id
        assert isinstance(reader, Rest)
        assert [await reader.events() for _ in range(2)] == [first] * 2


async def deleted(door: type[Talk], lab: Lab) -> None:  # noqa: ARG001 - of REST alone
    """Deleting the session ends its turn, of which nothing is kept."""
    async with held(lab, Stream) as (talk, _):
        heard: list[Event] = []
        async with aclosing(talk.ask("Hello")) as events:  # type: ignore[type-var]
            await until(events, "zero", heard)
            path = f"/chatbot/session/{talk.session_id}"
            async with talk.service.http.delete(BASE + path) as response:
                lab.wire.note(f"DELETE {path}", response.status)
                assert response.status in (200, 204)
            heard += [event async for event in events]
        assert values(heard, "end") in ([], ["cancelled"])
        assert talk.service.turns.running == 0
        assert await talk.service.get("/chatbot/sessions") == []


async def shown_alone(door: type[Talk], lab: Lab) -> None:
    """History shows the question, and another door takes the answer."""
    async with scripted(NOTES) as model, lab.start(**sections(model, lab.tools)) as service:
        talk = await lab.open(door, service, "Sammy")
        noted = await used(lab.tools, "note")
        assert values(await hear(talk.ask("Note milk")), "question") == ["Sammy wants to call note of notes."]
        assert await used(lab.tools, "note") == noted


async def rest_errors(door: type[Talk], lab: Lab) -> None:  # noqa: ARG001 - of REST alone
    """Each request has its own."""
    async with lab.start() as service:
        cases: list[tuple[str, str, Any, int, str, str | None]] = [
            ("POST", "/chatbot/session", {"agent_id": "Nobody"}, 404, "agent_not_found", None),
            ("POST", "/chatbot/session", {}, 422, "bad_request", "agent_id"),
            ("GET", "/chatbot/session/unknown/history", None, 404, "session_not_found", None),
        ]
        for method, path, body, status, code, field in cases:
            async with service.http.request(method, BASE + path, json=body) as response:
                detail = (await response.json())["detail"]
                lab.wire.note(path, json.dumps(await response.json()), response.status)
                assert (response.status, detail["code"], detail.get("field")) == (status, code, field), path


async def rest_limits(door: type[Talk], lab: Lab) -> None:  # noqa: ARG001 - of REST alone
    """A user's sessions are limited."""
    async with lab.start(ai={"max_concurrent_sessions_per_user": 1}) as service:
        await service.create_session()
        body = {"agent_id": "Georges", "title": "Another"}
        async with service.http.post(f"{BASE}/chatbot/session", json=body) as response:
            lab.wire.note(response.status, "ai.max_concurrent_sessions_per_user")
            assert response.status == 403


INSTEAD: dict[tuple[str, str], Case] = {
    (Compatible.row, "stream"): one_message,
    (Compatible.row, "reasoning"): no_reasoning,
    (Chat.row, "resume"): left_is_stopped,
    (Rest.row, "stream"): read_when_it_has_ended,
    (Rest.row, "resume"): read_at_any_time,
    (Rest.row, "cancel"): deleted,
    (Rest.row, "question to a person"): shown_alone,
    (Rest.row, "reasoning"): kept_reasoning,
}
"""Cells that say no."""
OWN: dict[tuple[str, str], Case] = {
    (Rest.row, "errors"): rest_errors,
    (Rest.row, "limits"): rest_limits,
}
"""Cells of a door whose requests are not asks."""
