"""Edited questions and regenerated answers: what their agents are told, what history shows, and that none is lost."""

import asyncio
import json
import signal

import psycopg
import pytest

from tests.agentic_backend.llm.scripted import SSE_HEAD, scripted, token
from tests.support.agentic import start_process
from tests.support.fleet import MANY
from tests.support.following import ask_frame, heard, over_socket, over_stream, resume_frame
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear, hear_until, say
from tests.support.tool_model import says

__all__ = ["start_process"]


def on(model):
    """A configuration on a scripted model."""
    return {"ai": {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}}


def again(session_id, exchange_id, regenerate):
    frame = ask_frame(session_id, exchange_id) | {"regenerate": regenerate}
    del frame["message"]
    return frame


async def end_of(service, frame, over=over_socket):
    """The last frame of an exchange."""
    return json.loads((await heard(over(service, frame)))[-1])


def told(model):
    """What the model was told last, without instructions."""
    return [one["content"] for one in model.requests[-1].body["messages"] if one["role"] != "system"]


def line(messages):
    return [(message["rank"], message["exchange_id"]) for message in messages]


@pytest.mark.parametrize("over", [over_socket, over_stream])
async def test_an_edit_and_another_answer(start_service, over):
    async with scripted(*map(says, "abcde")) as model, start_service(**on(model)) as service:
        session_id = await service.create_session()
        for number in (1, 2):
            await end_of(service, ask_frame(session_id, f"e{number}", f"question {number}"), over)
        before = await service.history(session_id)
        edit = ask_frame(session_id, "e3", "question 2, edited", after_rank=1)
        edited = await end_of(service, edit, over)
        assert edited["type"] == "final"
        assert told(model) == ["question 1", "a", "question 2, edited"]
        assert line(edited["messages"]) == [(4, "e3"), (5, "e3")]
        history = await service.history(session_id)
        assert history == [*before[:2], *edited["messages"]]
        assert history[2]["metadata"]["extras"] == {"after_rank": 1}

        regenerated = await end_of(service, again(session_id, "e4", "e3"), over)
        assert told(model) == ["question 1", "a", "question 2, edited"]
        assert regenerated["messages"][0]["parts"][0]["text"] == "question 2, edited"
        assert await service.history(session_id) == [*before[:2], *regenerated["messages"]]
        await end_of(service, ask_frame(session_id, "e5", "question 3"), over)
        assert told(model) == ["question 1", "a", "question 2, edited", "d", "question 3"]

        everything = await service.history(session_id, "?branches=1")
        assert [message["rank"] for message in everything] == list(range(10))
        by = [message["metadata"].get("extras", {}).get("superseded_by") for message in everything]
        assert by == [None, None, *["e4"] * 4, None, None, None, None]
        assert line(await service.history(session_id, "?limit=3&offset=1")) == [(6, "e4"), (7, "e4"), (8, "e5")]
        assert line(await service.history(session_id, "?limit=2&offset=3")) == [(1, "e1"), (6, "e4")]
        assert line(await service.history(session_id, "?branches=true&limit=2&offset=5")) == [(3, "e2"), (4, "e3")]
        one = await service.get(f"/chatbot/session/{session_id}/message/3")
        assert one == everything[3]
        # What is superseded is told again as it was.
        for frame in (resume_frame(session_id, "e3"), edit):
            assert (await end_of(service, frame, over))["messages"] == edited["messages"]
        exported = await service.get(f"/chatbot/session/{session_id}/export?format=json")
        assert line(exported["messages"]) == [(0, "e1"), (1, "e1"), (6, "e4"), (7, "e4"), (8, "e5"), (9, "e5")]
        async with service.http.get(f"{BASE}/chatbot/session/{session_id}/export") as response:
            assert "question 2, edited" in (text := await response.text())
            assert text.count("question 2") == 1


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"after_rank": 0}, "after_rank"),
        ({"after_rank": 2}, "after_rank"),
        ({"after_rank": -2}, "after_rank"),
        ({"after_rank": 2**31 - 1}, "after_rank"),
        ({"after_rank": "1"}, "after_rank"),
        ({"after_rank": True}, "after_rank"),
        ({"regenerate": "e1", "message": ""}, None),
        ({"regenerate": "e9", "message": ""}, "regenerate"),
        ({"regenerate": "", "message": ""}, "regenerate"),
        ({"regenerate": "e1"}, "message"),
        ({"regenerate": None, "message": ""}, "message"),
        ({"regenerate": "e1", "message": "", "after_rank": -1}, "after_rank"),
    ],
    ids=str,
)
async def test_a_place_that_there_is_not_is_refused_with_its_field(service, more, field):
    session_id = await service.create_session()
    await end_of(service, ask_frame(session_id, "e1"))
    async with service.native() as socket:
        await say(socket, **(ask_frame(session_id, "e2") | more))
        (*_, last) = await hear_until(socket, "final", "error")
        assert (last.get("code"), last.get("field")) == ((None, None) if field is None else ("bad_request", field))
        if field is not None:
            assert line(await service.history(session_id, "?branches=1")) == [(0, "e1"), (1, "e1")]


async def test_another_users_conversation_cannot_be_regenerated(service):
    theirs, own = await service.create_session(), await service.create_session()
    await end_of(service, ask_frame(theirs, "e1"))
    refused = await end_of(service, again(own, "e2", "e1"))
    assert (refused["code"], refused["field"]) == ("bad_request", "regenerate")


async def test_the_compatible_protocol_begins_behind_the_newest_message_alone(service):
    session_id = await service.create_session()
    for number in (1, 2):
        await end_of(service, ask_frame(session_id, f"e{number}"))
    async with service.compatible() as socket:
        await socket.send(json.dumps(ask_frame(session_id, "e3") | {"after_rank": 1}))
        async with asyncio.timeout(PATIENCE_S):
            while json.loads(await socket.recv())["type"] != "final":
                pass
    assert len(await service.history(session_id)) == 6


@pytest.mark.parametrize("pending", [False, True], ids=["", "with Postgres behind"])
async def test_a_kill_in_the_middle_of_a_fork_loses_neither_line(start_process, database, pending):
    async def stalls(write):
        await write(SSE_HEAD + token("half"))
        await asyncio.Event().wait()

    async with scripted(says("a"), says("b"), says("c"), stalls, says("d"), says("e")) as model:
        with psycopg.connect(database.dsn) as connection:
            async with start_process("scripted", **on(model)) as service:
                session_id = await service.create_session()
                await end_of(service, ask_frame(session_id, "e1", "question 1"))
                if pending:  # nothing of the session is committed from here on
                    connection.execute("SELECT FROM session WHERE session_id = %s FOR UPDATE", (session_id,))
                await end_of(service, ask_frame(session_id, "e2", "question 2"))
                await end_of(service, ask_frame(session_id, "e3", "question 3", after_rank=1))
                async with service.native() as socket:
                    await say(socket, **again(session_id, "e4", "e3"))
                    await hear_until(socket, "delta")
                    assert told(model) == ["question 1", "a", "question 3"]
                    assert line(await service.history(session_id)) == [(0, "e1"), (1, "e1"), (4, "e3"), (5, "e3")]
                await service.ask_on_disk("e4")
                service.process.send(signal.SIGKILL)
                await service.process.until(service.process.wait)
            connection.rollback()
        async with start_process("scripted", **on(model), app={"log_level": "info"}) as service:
            await service.line(r"exchange_id=e4 .* status=ok ")
            assert told(model) == ["question 1", "a", "question 3"], "as before the kill"
            live = [(0, "e1"), (1, "e1"), (6, "e4"), (7, "e4")]
            assert line(await service.history(session_id)) == live
            frame = await end_of(service, again(session_id, "e4", "e3"))
            assert frame["messages"][1]["parts"][0]["text"] == "d"
            everything = await service.history(session_id, "?branches=1")
            by = [message["metadata"].get("extras", {}).get("superseded_by") for message in everything]
            assert by == [None, None, *["e4"] * 4, None, None]
            service.process.send(signal.SIGTERM)
            assert await service.ended() == 0
        async with start_process("scripted", **on(model)) as service:
            assert line(await service.history(session_id)) == live
            await end_of(service, ask_frame(session_id, "e5", "question 4"))
            assert told(model) == ["question 1", "a", "question 3", "d", "question 4"]


async def test_another_instance_knows_what_was_superseded(start_process):
    async with (
        scripted(*map(says, "abcde")) as model,
        start_process("scripted", **on(model), **MANY) as one,
        start_process("scripted", **on(model), **MANY) as other,
    ):
        session_id = await one.create_session()
        await end_of(one, ask_frame(session_id, "e1", "question 1"))
        await end_of(one, ask_frame(session_id, "e2", "question 2"))
        await end_of(other, ask_frame(session_id, "e3", "question 3", after_rank=1))
        assert told(model) == ["question 1", "a", "question 3"]
        await end_of(one, ask_frame(session_id, "e4", "question 4"))
        assert told(model) == ["question 1", "a", "question 3", "c", "question 4"]
        refused = await end_of(one, ask_frame(session_id, "e5", "question 5", after_rank=3))
        assert (refused["code"], refused["field"]) == ("bad_request", "after_rank")
        await end_of(other, again(session_id, "e6", "e3"))
        assert told(model) == ["question 1", "a", "question 3"]
        for service in (one, other):
            assert line(await service.history(session_id)) == [(0, "e1"), (1, "e1"), (8, "e6"), (9, "e6")]
        again_elsewhere = await end_of(one, again(session_id, "e6", "e3"))
        assert again_elsewhere["messages"][0]["rank"] == 8


async def test_an_edit_that_waits_for_its_session_is_placed_when_its_turn_comes(service):
    session_id = await service.create_session()
    async with service.native() as socket:
        await say(socket, **ask_frame(session_id, "e1"))
        await say(socket, **ask_frame(session_id, "e2", "Next", if_busy="queue"))
        await say(socket, **ask_frame(session_id, "e3", "Edited", if_busy="queue", after_rank=1))
        ends = {}
        while len(ends) < 3:
            frame = await hear(socket)
            if frame["type"] in ("final", "error"):
                ends[frame["exchange_id"]] = frame["type"]
    assert ends == dict.fromkeys(("e1", "e2", "e3"), "final")
    assert line(await service.history(session_id)) == [(0, "e1"), (1, "e1"), (4, "e3"), (5, "e3")]


async def test_a_superseded_line_is_gone_on_with_where_the_client_says_that_it_may_be(start_service):
    async with scripted(*map(says, "abcdefg")) as model, start_service(**on(model)) as service:
        session_id = await service.create_session()
        for number in (1, 2):
            await end_of(service, ask_frame(session_id, f"e{number}", f"question {number}"))
        await end_of(service, ask_frame(session_id, "e3", "another question 2", after_rank=1))

        on_old = ask_frame(session_id, "e4", "question 3", after_rank=3)
        refused = await end_of(service, on_old)
        assert (refused["code"], refused["field"]) == ("bad_request", "after_rank")
        gone_on = await end_of(service, on_old | {"any_branch": True})
        assert gone_on["type"] == "final"
        assert told(model) == ["question 1", "a", "question 2", "b", "question 3"]
        assert [id_ for _, id_ in line(await service.history(session_id))] == ["e1", "e1", "e2", "e2", "e4", "e4"]

        of_old = again(session_id, "e5", "e3")
        refused = await end_of(service, of_old)
        assert (refused["code"], refused["field"]) == ("bad_request", "regenerate")
        assert (await end_of(service, of_old | {"any_branch": True}))["type"] == "final"
        assert told(model) == ["question 1", "a", "another question 2"]
        assert [id_ for _, id_ in line(await service.history(session_id))] == ["e1", "e1", "e5", "e5"]
