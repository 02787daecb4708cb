"""What clients of a door get where its cell says no."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

from tests.agentic_backend.llm.scripted import scripted
from tests.doors.cases import WHOLE, Case, Lab, held, idle, question, text_in, until
from tests.doors.foreign import Chat
from tests.doors.native import Compatible, Rest, Stream
from tests.doors.talk import Event, Talk, hear, spent, text_of, values
from tests.doors.tools import Mcp, WithForms
from tests.integration.test_channels import told_something
from tests.integration.test_human import DONE, NOTES, sections, used
from tests.support.held_model import held_model
from tests.support.service import BASE
from tests.support.telling_agent import ANSWER, SECRET, telling


async def one_message(door: type[Talk], lab: Lab) -> None:
    """The question comes at once, the answer when it is whole."""
    async with held(lab, door) as (talk, go):
        events = talk.ask("Hello")
        first = await anext(events)
        assert text_of([first]) == ""
        waiting = asyncio.ensure_future(anext(events))
        await told_something(talk.service, talk.exchange)
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
    """A cut ends the turn, before its text and in the middle of it, and what was said is kept."""
    async with held_model("zero") as model, lab.start(ai=model.ai) as service:
        heard: list[Event] = []
        while not text_of(heard):
            number = len(heard) + 1
            talk = await lab.open(door, service)
            heard = await hear(talk.ask("Hello"), most=number)
            assert len(heard) == number
            await idle(service)
            answer = await talk.answer()
            assert answer["metadata"]["finish_reason"] == "cancelled"
            assert text_in(answer).startswith(text_of(heard))


async def left_to_end(door: type[Talk], lab: Lab) -> None:
    """The same, and a client may leave its turn to end: the whole answer is kept. The same request is another turn."""
    await left_is_stopped(door, lab)
    async with held(lab, door) as (talk, go):
        assert isinstance(talk, Chat)
        talk.headers = {"X-Turnwise-On-Disconnect": "continue"}
        heard: list[Event] = []
        events = talk.ask("Hello")
        await until(events, "zero", heard)
        await events.aclose()  # type: ignore[attr-defined]
        go.set()
        await idle(talk.service)
        kept = await talk.answer()
        assert text_in(kept) == WHOLE
        await hear(talk.again(heard))
        assert (await talk.answer())["exchange_id"] != kept["exchange_id"]


async def usage_in_history(door: type[Talk], lab: Lab) -> None:
    """Not told, but kept."""
    async with lab.start() as service:
        talk = await lab.open(door, service)
        assert values(await hear(talk.ask("Hello")), "usage") == []
        assert min(spent(await talk.answer())) > 0


async def asked_both_ways(door: type[Talk], lab: Lab) -> None:
    """As a result that the next call replies to, and in a form where the client shows forms."""
    await question(door, lab)
    async with scripted(NOTES, DONE) as model, lab.start(**sections(model, lab.tools)) as service:
        talk = await lab.open(WithForms, service, "Sammy")
        noted = await used(lab.tools, "note")
        heard = await hear(talk.ask("Note milk"))
        assert (text_of(heard), values(heard, "question")) == ("I noted milk.", [])
        assert await used(lab.tools, "note") == noted + 1


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


async def deleted(door: type[Talk], lab: Lab) -> None:
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


async def rest_errors(door: type[Talk], lab: Lab) -> None:
    """Each request has its own."""
    async with lab.start() as service:
        cases: list[tuple[str, str, Any, int, str, str | None]] = [
            ("POST", "/chatbot/session", {"agent_id": "Nobody"}, 404, "agent_not_found", None),
            ("POST", "/chatbot/session", {"session_id": "mine"}, 422, "bad_request", "session_id"),
            ("GET", "/chatbot/session/unknown/history", None, 403, "session_not_found", None),
        ]
        for method, path, body, status, code, field in cases:
            async with service.http.request(method, BASE + path, json=body) as response:
                detail = (await response.json())["detail"]
                lab.wire.note(path, json.dumps(await response.json()), response.status)
                assert (response.status, detail["code"], detail.get("field")) == (status, code, field), path


async def rest_limits(door: type[Talk], lab: Lab) -> None:
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
    (Chat.row, "resume"): left_to_end,
    (Rest.row, "stream"): read_when_it_has_ended,
    (Rest.row, "resume"): read_at_any_time,
    (Rest.row, "cancel"): deleted,
    (Rest.row, "question to a person"): shown_alone,
    (Rest.row, "reasoning"): kept_reasoning,
    (Mcp.row, "resume"): left_is_stopped,
    (Mcp.row, "reasoning"): no_reasoning,
    (Mcp.row, "usage"): usage_in_history,
}
"""Cells that say no."""
OWN: dict[tuple[str, str], Case] = {
    (Rest.row, "errors"): rest_errors,
    (Rest.row, "limits"): rest_limits,
    (Mcp.row, "question to a person"): asked_both_ways,
}
"""Cells of which a door has more to show, or whose requests are not asks."""
