"""Feedback over REST: what is taken, that a message has one, and that it goes with its session."""

import json
import time

import jwt
import pytest

from tests.agentic_backend.records import turn
from tests.support.patience import PATIENCE_S
from tests.support.people import SECRET
from tests.support.service import BASE, hear_until, say


def body(session_id, **more):
    return {"rating": 4, "messageId": "1", "sessionId": session_id, "agentName": "Georges", **more}


async def give(service, sent):
    async with service.http.post(f"{BASE}/chatbot/feedback", json=sent) as response:
        return response.status, await response.read()


async def talk(service, *, turns=2):
    """A session of so many exchanges, which may wait for Postgres: ranks from 0, exchanges x0, x1."""
    persistence = service.instances[0].running.persistence
    session = await persistence.store.get(await service.create_session(), "admin")
    for number in range(turns):
        record = turn(session, f"x{number}")
        await persistence.log.append(record)
        session = record.session
    return session.id


async def own(service, query=""):
    return await service.get(f"/chatbot/feedback{query}")


async def test_it_is_given_read_and_taken_back(service):
    session_id = await talk(service)
    assert await give(service, body(session_id, comment="Précis. \U0001f600")) == (204, b"")
    (given,) = await own(service)
    feedback_id = given.pop("id")
    assert given.pop("createdAt").endswith("Z")
    assert given == {
        "rating": 4,
        "reason": None,
        "comment": "Précis. \U0001f600",
        "messageId": "1",
        "sessionId": session_id,
        "agentName": "Georges",
    }
    async with service.http.delete(f"{BASE}/chatbot/feedback/{feedback_id}") as response:
        assert (response.status, await response.read()) == (204, b"")
    assert await own(service) == []
    async with service.http.delete(f"{BASE}/chatbot/feedback/{feedback_id}") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Feedback not found."})


async def test_a_message_has_one_and_the_last_counts(service):
    first, second = await talk(service), await talk(service)
    for sent in (body(first), body(first, messageId="3"), body(second), body(first, rating=1, comment="No.")):
        assert (await give(service, sent))[0] == 204
    found = [(one["sessionId"], one["messageId"], one["rating"], one["comment"]) for one in await own(service)]
    assert found == [(first, "1", 1, "No."), (second, "1", 4, None), (first, "3", 4, None)]
    assert [one["messageId"] for one in await own(service, f"?session_id={first}")] == ["1", "3"]
    assert [one["messageId"] for one in await own(service, "?limit=1&offset=2")] == ["3"]


async def test_it_goes_with_its_session(service):
    kept, session_id = await talk(service), await talk(service)
    for one in (kept, session_id):
        await give(service, body(one))
    async with service.http.delete(f"{BASE}/chatbot/session/{session_id}") as response:
        assert response.status == 200
    assert [one["sessionId"] for one in await own(service)] == [kept]
    assert (await give(service, body(session_id)))[0] == 403


@pytest.mark.one_instance("holds the batcher of one process")
async def test_it_is_gone_at_once_where_the_delete_waits(service):
    session_id = await talk(service)
    await give(service, body(session_id))
    persistence = service.instances[0].running.persistence
    assert len(await service.get("/kpi/feedback")) == 1
    persistence.batcher.delete((session_id, "admin"))
    assert await own(service) == await service.get("/kpi/feedback") == []
    assert (await give(service, body(session_id, messageId="2")))[0] == 403


REFUSED = {
    "none": {"rating": 0},
    "six": {"rating": 6},
    "a half": {"rating": 2.5},
    "a word": {"rating": "5"},
    "yes": {"rating": True},
    "no message": {"messageId": ""},
    "a long message": {"messageId": "x" * 257},
    "a long comment": {"comment": "x" * 4001},
    "NUL": {"comment": "\x00"},
    "a lone surrogate": {"agentName": "\ud800"},
    "no session": {"sessionId": None},
    "a reason of its own": {"reason": "ugly"},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
async def test_what_is_no_feedback_is_refused(service, change):
    session_id = await talk(service)
    status, answer = await give(service, body(session_id) | change)
    assert status == 422
    assert b'"code":"bad_request"' in answer
    assert await own(service) == []


async def test_what_just_fits_is_taken(service):
    session_id = await talk(service)
    assert (await give(service, body(session_id, comment="é" * 4000, agentName="x" * 256, more=1)))[0] == 204


@pytest.mark.parametrize("stored", [False, True], ids=["pending", "stored"])
async def test_only_a_message_that_there_is_has_one(service, stored):
    session_id, other = await talk(service), await service.create_session()
    persistence = service.instances[0].running.persistence
    if stored:
        await persistence.flush(PATIENCE_S)
    for named in ("4", "-1", "01", "2147483648", "9" * 20, "x", "x2", "é"):
        status, answer = await give(service, body(session_id, messageId=named))
        assert (status, json.loads(answer)["detail"]["code"]) == (404, "message_not_found"), named
    for named in ("0", "x0"):
        assert (await give(service, body(other, messageId=named)))[0] == 404
    assert await own(service) == []


@pytest.mark.parametrize("stored", [False, True], ids=["pending", "stored"])
async def test_an_answer_has_one_by_whichever_name(service, stored):
    session_id = await talk(service)
    if stored:
        await service.flush()
    for rating, named in enumerate(("3", "x1", "2", "x0", "1", "x1"), 1):
        assert (await give(service, body(session_id, messageId=named, rating=min(rating, 5))))[0] == 204
    assert {one["messageId"]: one["rating"] for one in await own(service)} == {"x1": 5, "1": 5, "2": 3}


async def test_operators_read_what_everybody_said(start_service):
    security = {"user": {"enabled": True, "client_id": "turnwise"}, "hs256_secret": SECRET, "operator_roles": ["boss"]}

    def token(user, *roles):
        claims = {"sub": user, "aud": "turnwise", "iat": int(time.time()), "exp": int(time.time()) + 600}
        return jwt.encode({**claims, "resource_access": {"turnwise": {"roles": roles}}}, SECRET)

    def headers_of(user, *roles):
        return {"Authorization": f"Bearer {token(user, *roles)}"}

    async with start_service(security=security) as service:
        for user, rating, reason in (("ann", 1, "not_true"), ("bob", 5, None), ("ann", 2, "other")):
            headers = headers_of(user)
            async with service.http.post(f"{BASE}/chatbot/session", json={}, headers=headers) as response:
                session_id = (await response.json())["id"]
            async with service.native(token(user)) as socket:
                ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Why?"}
                await say(socket, **ask, client_exchange_id=f"x{rating}")
                await hear_until(socket, "final")
            await service.flush()
            sent = body(session_id, rating=rating, reason=reason, comment=f"<b>{user}</b>")
            if rating == 2:
                sent |= {"messageId": "x2", "agentName": "=Rico"}
            async with service.http.post(f"{BASE}/chatbot/feedback", json=sent, headers=headers) as response:
                assert response.status == 204

        async def read(query=""):
            address = f"{BASE}/kpi/feedback{query}"
            async with service.http.get(address, headers=headers_of("eve", "boss")) as response:
                return await response.json()

        found = await read()
        assert [(one["exchangeId"], one["rating"], one["reason"], one["comment"]) for one in found] == [
            ("x2", 2, "other", "<b>ann</b>"),
            ("x5", 5, None, "<b>bob</b>"),
            ("x1", 1, "not_true", "<b>ann</b>"),
        ]
        assert set(found[0]) == {"id", "createdAt", "agentName", "rating", "reason", "comment", "exchangeId"}
        assert [one["exchangeId"] for one in await read("?agent=Georges")] == ["x5", "x1"]
        assert [one["exchangeId"] for one in await read("?rating=1")] == ["x1"]
        assert [one["exchangeId"] for one in await read("?limit=1&offset=1")] == ["x5"]
        async with service.http.get(f"{BASE}/kpi/feedback", headers=headers_of("ann")) as response:
            assert response.status == 403
