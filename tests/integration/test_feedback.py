"""Feedback over REST: what is taken, that a message has one, and that it goes with its session."""

import pytest

from tests.support.service import BASE


def body(session_id, **more):
    return {"rating": 4, "messageId": "1", "sessionId": session_id, "agentName": "Georges", **more}


async def give(service, sent):
    async with service.http.post(f"{BASE}/chatbot/feedback", json=sent) as response:
        return response.status, await response.read()


async def own(service, query=""):
    return await service.get(f"/chatbot/feedback{query}")


async def test_it_is_given_read_and_taken_back(service):
    session_id = await service.create_session()
    assert await give(service, body(session_id, comment="Précis. \U0001f600")) == (204, b"")
    (given,) = await own(service)
    feedback_id = given.pop("id")
    assert given.pop("createdAt").endswith("Z")
    assert given == {
        "rating": 4,
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
    first, second = await service.create_session(), await service.create_session()
    for sent in (body(first), body(first, messageId="3"), body(second), body(first, rating=1, comment="No.")):
        assert (await give(service, sent))[0] == 204
    found = [(one["sessionId"], one["messageId"], one["rating"], one["comment"]) for one in await own(service)]
    assert found == [(first, "1", 1, "No."), (second, "1", 4, None), (first, "3", 4, None)]
    assert [one["messageId"] for one in await own(service, f"?session_id={first}")] == ["1", "3"]
    assert [one["messageId"] for one in await own(service, "?limit=1&offset=2")] == ["3"]


async def test_it_goes_with_its_session(service):
    kept, session_id = await service.create_session(), await service.create_session()
    for one in (kept, session_id):
        await give(service, body(one))
    async with service.http.delete(f"{BASE}/chatbot/session/{session_id}") as response:
        assert response.status == 200
    assert [one["sessionId"] for one in await own(service)] == [kept]
    assert (await give(service, body(session_id)))[0] == 403


async def test_it_is_gone_at_once_where_the_delete_waits(service):
    session_id = await service.create_session()
    await give(service, body(session_id))
    persistence = service.service.running.persistence
    persistence.batcher.delete((session_id, "admin"))
    assert await own(service) == []
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
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
async def test_what_is_no_feedback_is_refused(service, change):
    session_id = await service.create_session()
    status, answer = await give(service, body(session_id) | change)
    assert status == 422
    assert b'"code":"bad_request"' in answer
    assert await own(service) == []


async def test_what_just_fits_is_taken(service):
    session_id = await service.create_session()
    assert (await give(service, body(session_id, comment="é" * 4000, messageId="x" * 256, more=1)))[0] == 204
