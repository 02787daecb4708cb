"""Preferences of a session over REST: what is refused, whose they are, and that no turn writes them."""

import asyncio
import json
import time

import jwt
import psycopg
import pytest

from agentic_backend.chat.frames import MAX_DEPTH
from agentic_backend.rest.preferences import MAX_BYTES
from tests.support.service import BASE, hear_until, say

SECRET = "a secret of at least thirty-two bytes"
SLOW = "mock;tokens=9;stall=3"


def path(session_id):
    return f"{BASE}/chatbot/session/{session_id}/preferences"


async def put(service, session_id, preferences):
    async with service.http.put(path(session_id), json={"preferences": preferences}) as response:
        return response.status, await response.json()


async def preferences(service, session_id):
    return (await service.get(f"/chatbot/session/{session_id}/preferences"))["preferences"]


def ask(session_id, exchange_id, **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Hello"}
    return {**head, "client_exchange_id": exchange_id, **more}


def stored(database, session_id):
    with psycopg.connect(database.dsn) as connection:
        ((data,),) = connection.execute("SELECT session_data FROM session WHERE session_id = %s", (session_id,))
    return data


async def test_they_are_replaced_whole_and_shown_wherever_the_session_is(service):
    session_id = await service.create_session()
    assert await preferences(service, session_id) == {}
    first = {"theme": "dark", "élan": [1, 2.5, None, True, {"deep": "\U0001f600"}]}
    assert await put(service, session_id, first) == (200, {"preferences": first})
    assert await preferences(service, session_id) == first
    assert (await service.get("/chatbot/sessions"))[0]["preferences"] == first
    assert await put(service, session_id, {"size": 2}) == (200, {"preferences": {"size": 2}})
    assert await preferences(service, session_id) == {"size": 2}


async def test_a_following_turn_does_not_overwrite_them_and_its_frames_show_them(service, database):
    session_id = await service.create_session(title=None)
    async with service.native() as socket:
        await say(socket, **ask(session_id, "e1"))
        await hear_until(socket, "final")
        await put(service, session_id, {"theme": "dark"})
        await say(socket, **ask(session_id, "e2"))
        final = (await hear_until(socket, "final"))[-1]
    assert final["session"]["preferences"] == {"theme": "dark"}
    await service.flush()
    data = stored(database, session_id)
    assert (data["preferences"], data["next_rank"], data["title"]) == ({"theme": "dark"}, 4, "Hello")


@pytest.mark.one_instance("looks into one process")
@pytest.mark.parametrize("known", [True, False], ids=["a session in memory", "a session that the turn reads"])
async def test_a_running_turn_does_not_overwrite_them(start_service, database, known):
    async with start_service(SLOW) as service:
        session_id = await service.create_session()
        await put(service, session_id, {"theme": "light"})
        if not known:
            await service.turns.forget(session_id, "admin")
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e2"))
            await hear_until(socket, "delta")
            assert await put(service, session_id, {"theme": "dark"}) == (200, {"preferences": {"theme": "dark"}})
            await say(socket, type="cancel", exchange_id="e2")
            assert (await hear_until(socket, "cancelled"))[-1]["session"]["preferences"] == {"theme": "dark"}
            assert await preferences(service, session_id) == {"theme": "dark"}
        await service.flush()
        assert stored(database, session_id)["preferences"] == {"theme": "dark"}
    async with start_service() as service:
        assert await preferences(service, session_id) == {"theme": "dark"}
        assert [message["rank"] for message in await service.history(session_id)] == [0, 1]


async def test_many_changes_between_turns_keep_order_and_ranks(service, database):
    session_id = await service.create_session()

    async def change():
        for number in range(20):
            assert (await put(service, session_id, {"number": number}))[0] == 200

    async def talk():
        async with service.native() as socket:
            for number in range(10):
                await say(socket, **ask(session_id, f"e{number}"))
                await hear_until(socket, "final")

    await asyncio.gather(change(), talk())
    assert await preferences(service, session_id) == {"number": 19}
    await service.flush()
    assert stored(database, session_id)["preferences"] == {"number": 19}
    assert [message["rank"] for message in await service.history(session_id)] == list(range(20))


def nested(depth):
    value = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def sized(size):
    return {"a": "x" * (size - len('{"a":""}'))}


@pytest.mark.parametrize(
    "fits", [nested(MAX_DEPTH), sized(MAX_BYTES), {"a": 2**63 - 1}, {}], ids=["depth", "size", "number", "none"]
)
async def test_what_just_fits_is_taken(service, fits):
    session_id = await service.create_session()
    assert await put(service, session_id, fits) == (200, {"preferences": fits})
    assert await preferences(service, session_id) == fits


REFUSED = {
    "too long": (sized(MAX_BYTES + 1), 413),
    "too deep": (nested(MAX_DEPTH + 1), 422),
    "NUL in a value": ({"a": ["\x00"]}, 422),
    "NUL in a key": ({"\x00": 1}, 422),
    "a lone surrogate": ({"a": {"b": "\ud800"}}, 422),
    "a number of more than 64 bits": ({"a": 2**64}, 422),
    "an infinity": ({"a": float("inf")}, 422),
    "not a number": ({"a": [float("nan")]}, 422),
    "a list": ([], 422),
    "a text": ("a", 422),
    "nothing": (None, 422),
}
BROKEN = ["", "{", "[]", '{"preferences":{},"more":1}', '{"preferences":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}"]


@pytest.mark.parametrize(("body", "status"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_kept_is_refused_and_changes_nothing(service, body, status):
    session_id = await service.create_session()
    await put(service, session_id, {"kept": 1})
    code = {413: "too_large", 422: "bad_request"}[status]
    answer = await put(service, session_id, body)
    assert (answer[0], answer[1]["detail"]["code"]) == (status, code)
    assert await preferences(service, session_id) == {"kept": 1}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
async def test_a_body_that_is_no_preferences_is_refused(service, text):
    session_id = await service.create_session()
    headers = {"Content-Type": "application/json"}
    async with service.http.put(path(session_id), data=text, headers=headers) as response:
        assert response.status in (400, 422)
    assert await preferences(service, session_id) == {}


def headers(user):
    now = int(time.time())
    token = jwt.encode({"sub": user, "iat": now, "exp": now + 600}, SECRET, "HS256")
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_anothers_session_is_answered_as_an_unknown_one_and_stays(start_service, method):
    async with start_service(security={"user": {"enabled": True}, "hs256_secret": SECRET}) as service:
        async with service.http.post(f"{BASE}/chatbot/session", headers=headers("ann")) as response:
            session_id = (await response.json())["id"]
        body = {"preferences": {"mine": 1}}
        async with service.http.put(path(session_id), json=body, headers=headers("ann")) as response:
            assert response.status == 200
        answers = []
        for asked in (session_id, "AAAAAAAAAAA", "%00", "é"):
            sent = {"json": {"preferences": {"theirs": 1}}} if method == "PUT" else {}
            async with service.http.request(method, path(asked), headers=headers("bob"), **sent) as response:
                answers.append((response.status, await response.read()))
        assert answers == [(403, answers[0][1])] * 4
        assert json.loads(answers[0][1])["detail"]["code"] == "session_not_found"
        async with service.http.get(path(session_id), headers=headers("ann")) as response:
            assert await response.json() == body
