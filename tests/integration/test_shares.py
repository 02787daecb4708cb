"""Links by which others read a conversation: who makes and revokes them, what they show, and when they end."""

import json

import psycopg
import pytest

from agentic_backend.rest.shares import MAX_LINKS, seen_by_readers
from backend_kit.wire import dumps
from tests.agentic_backend.records import until
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear_until, say


@pytest.fixture
async def secured(start_service):
    """A service whose users sign in."""
    async with start_service(security=SECURITY) as running:
        yield running


async def call(service, user, method, path, **options):
    """Status and decoded body of a request; `user` "" has no token."""
    headers = headers_of(user) if user else {"Authorization": ""}
    async with service.http.request(method, f"{BASE}/chatbot{path}", headers=headers, **options) as response:
        body = await response.read()
        return response.status, json.loads(body) if body else None


async def talk(service, user, *messages, session_id=None):
    """A session of the user's in which each of these was asked and answered."""
    if session_id is None:
        _, made = await call(service, user, "POST", "/session", json={"agent_id": "Georges"})
        session_id = made["id"]
    async with service.native(token_of(user)) as socket:
        for message in messages:
            await say(socket, type="ask", session_id=session_id, agent_id="Georges", message=message)
            await hear_until(socket, "final")
    return session_id


async def share(service, user, session_id, **wanted):
    status, made = await call(service, user, "POST", f"/session/{session_id}/share", json=wanted)
    assert status == 201, made
    return made


async def read(service, user, token, query=""):
    return await call(service, user, "GET", f"/shared/{token}{query}")


def questions(conversation):
    return [one["parts"][0]["text"] for one in conversation["messages"] if one["role"] == "user"]


async def expect_nowhere(service, user, token):
    status, body = await read(service, user, token)
    assert (status, body["detail"]["code"]) == (404, "share_not_found"), body
    return body


async def test_whoever_signs_in_reads_by_a_link_what_was_said_until_it_was_made(secured):
    session_id = await talk(secured, "ann", "What is a snapshot?")
    made = await share(secured, "ann", session_id)
    assert (made["audience"], made["later_turns"], made["expires_at"]) == ("signed_in", False, None)
    await talk(secured, "ann", "And what came later?", session_id=session_id)

    status, seen = await read(secured, "bob", made["token"])
    assert status == 200
    assert questions(seen) == ["What is a snapshot?"]
    assert [one["role"] for one in seen["messages"]] == ["user", "assistant"]
    assert (seen["agent"], seen["later_turns"], seen["earlier"]) == ({"id": "Georges", "name": "Georges"}, False, False)
    assert seen["title"] == "What is a snapshot?"
    said = json.dumps(seen)
    assert session_id not in said
    assert '"ann"' not in said
    assert await read(secured, "", made["token"]) == await call(secured, "", "GET", "/sessions")  # 401
    # The conversation itself is as closed as before.
    assert (await call(secured, "bob", "GET", f"/session/{session_id}/history"))[0] == 403


async def test_a_link_may_show_later_turns(secured):
    session_id = await talk(secured, "ann", "One?")
    made = await share(secured, "ann", session_id, later_turns=True)
    await talk(secured, "ann", "Two?", session_id=session_id)
    assert questions((await read(secured, "bob", made["token"]))[1]) == ["One?", "Two?"]


async def test_a_snapshot_stays_what_it_was_when_its_questions_are_asked_again(secured):
    session_id = await talk(secured, "ann", "As it was?")
    made = await share(secured, "ann", session_id)
    async with secured.native(token_of("ann")) as socket:
        ask = {"session_id": session_id, "agent_id": "Georges", "message": "Anew?", "after_rank": -1}
        await say(socket, type="ask", **ask)
        await hear_until(socket, "final")
    live = await share(secured, "ann", session_id, later_turns=True)
    assert questions((await read(secured, "bob", made["token"]))[1]) == ["As it was?"]
    assert questions((await read(secured, "bob", live["token"]))[1]) == ["Anew?"]


async def test_it_is_read_in_windows(secured):
    session_id = await talk(secured, "ann", "One?", "Two?")
    token = (await share(secured, "ann", session_id))["token"]
    _, newest = await read(secured, "bob", token, "?limit=2")
    _, older = await read(secured, "bob", token, "?limit=2&offset=2")
    _, none = await read(secured, "bob", token, "?limit=2&offset=4")
    assert (questions(newest), newest["earlier"]) == (["Two?"], True)
    assert (questions(older), older["earlier"]) == (["One?"], True)
    assert (none["messages"], none["earlier"]) == ([], False)


async def test_a_revoked_link_leads_nowhere_at_once(secured):
    session_id = await talk(secured, "ann", "Still here?")
    first, second = [await share(secured, "ann", session_id) for _ in range(2)]
    _, listed = await call(secured, "ann", "GET", f"/session/{session_id}/shares")
    assert [one["id"] for one in listed] == [second["id"], first["id"]]
    assert all("token" not in one for one in listed)
    assert (await read(secured, "bob", first["token"]))[0] == 200

    assert await call(secured, "ann", "DELETE", f"/session/{session_id}/share/{first['id']}") == (204, None)
    revoked = await expect_nowhere(secured, "bob", first["token"])
    assert revoked == await expect_nowhere(secured, "bob", "x" * 43)
    assert revoked == await expect_nowhere(secured, "bob", "short")
    await expect_nowhere(secured, "ann", first["token"])
    assert (await read(secured, "bob", second["token"]))[0] == 200
    status, body = await call(secured, "ann", "DELETE", f"/session/{session_id}/share/{first['id']}")
    assert (status, body["detail"]["code"]) == (404, "share_not_found")


async def test_links_go_with_their_conversation(secured, database):
    session_id = await talk(secured, "ann", "Gone?")
    token = (await share(secured, "ann", session_id))["token"]
    assert await call(secured, "ann", "DELETE", f"/session/{session_id}") == (200, True)
    await expect_nowhere(secured, "bob", token)
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM share_link").fetchone() == (0,)


async def test_a_link_ends_when_it_expires(secured, database):
    session_id = await talk(secured, "ann", "For how long?")
    made = await share(secured, "ann", session_id, days=1)
    assert made["expires_at"] > made["created_at"]
    assert (await read(secured, "bob", made["token"]))[0] == 200
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("UPDATE share_link SET expires_at = now() - interval '1 second'")
    await expect_nowhere(secured, "bob", made["token"])
    _, listed = await call(secured, "ann", "GET", f"/session/{session_id}/shares")
    assert [one["id"] for one in listed] == [made["id"]]


async def test_another_user_neither_shares_nor_lists_nor_revokes(secured):
    session_id = await talk(secured, "ann", "Mine?")
    made = await share(secured, "ann", session_id)
    for method, path in (
        ("POST", f"/session/{session_id}/share"),
        ("GET", f"/session/{session_id}/shares"),
        ("DELETE", f"/session/{session_id}/share/{made['id']}"),
    ):
        status, body = await call(secured, "bob", method, path)
        assert (status, body) == await call(secured, "bob", method, path.replace(session_id, "nobodys"))
        assert (status, body["detail"]["code"]) == (403, "session_not_found"), body
    other = await talk(secured, "bob", "Bob's?")
    assert (await call(secured, "bob", "DELETE", f"/session/{other}/share/{made['id']}"))[0] == 404
    assert (await read(secured, "bob", made["token"]))[0] == 200


async def test_only_the_hash_of_a_token_is_stored(secured, database):
    token = (await share(secured, "ann", await talk(secured, "ann", "Where is it?")))["token"]
    assert len(token) == 43
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute("SELECT share_link::text, digest FROM share_link").fetchall()
        events = connection.execute("SELECT audit_event::text FROM audit_event").fetchall()
    assert len(rows[0][1]) == 32
    assert token not in str(rows) + str(events)


async def test_links_for_anybody_are_for_those_who_are_let_make_them(start_service):
    async with start_service(security={**SECURITY, "public_links": True}) as service:
        session_id = await talk(service, "ann", "For everybody?")
        made = await share(service, "ann", session_id, audience="anybody")
        _, known = await read(service, "bob", made["token"])
        assert await call(service, "", "GET", f"/public/{made['token']}") == (200, known)
        closed = (await share(service, "ann", session_id))["token"]
        assert (await call(service, "", "GET", f"/public/{closed}"))[0] == 404
        await call(service, "ann", "DELETE", f"/session/{session_id}/share/{made['id']}")
        assert (await call(service, "", "GET", f"/public/{made['token']}"))[0] == 404


async def test_links_for_anybody_are_off_by_default(secured, database):
    session_id = await talk(secured, "ann", "For everybody?")
    status, body = await call(secured, "ann", "POST", f"/session/{session_id}/share", json={"audience": "anybody"})
    assert (status, body["detail"]["code"], body["detail"]["field"]) == (403, "forbidden", "audience")
    token = (await share(secured, "ann", session_id))["token"]
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("UPDATE share_link SET audience = 'anybody'")
    assert (await call(secured, "", "GET", f"/public/{token}"))[0] == 404
    assert (await read(secured, "bob", token))[0] == 200


async def test_a_session_has_so_many_links_and_an_empty_one_has_none(secured):
    _, empty = await call(secured, "ann", "POST", "/session", json={"agent_id": "Georges"})
    status, body = await call(secured, "ann", "POST", f"/session/{empty['id']}/share")
    assert (status, body["detail"]["code"]) == (404, "message_not_found")
    session_id = await talk(secured, "ann", "How many?")
    for _ in range(MAX_LINKS):
        await share(secured, "ann", session_id)
    status, body = await call(secured, "ann", "POST", f"/session/{session_id}/share")
    assert (status, body["detail"]["code"]) == (409, "share_limit_reached")
    for wrong in ({"audience": "all"}, {"days": 0}, {"days": True}, {"later_turns": 1}, {"audiences": "anybody"}):
        status, _ = await call(secured, "ann", "POST", f"/session/{session_id}/share", json=wrong)
        assert status == 422, wrong


async def test_making_reading_and_revoking_are_noted(secured, database):
    session_id = await talk(secured, "ann", "Who was here?")
    made = await share(secured, "ann", session_id)
    for user in ("ann", "bob", "bob", "cal"):
        assert (await read(secured, user, made["token"]))[0] == 200
    await call(secured, "ann", "DELETE", f"/session/{session_id}/share/{made['id']}")
    link = f"link:{made['id']}"

    def noted():
        query = (
            "SELECT action, actor, kind, object_id, subject FROM audit_event WHERE subject <> '' ORDER BY happened_at"
        )
        with psycopg.connect(database.dsn) as connection:
            return connection.execute(query).fetchall()

    await until(lambda: len(noted()) == 4)
    assert noted() == [
        ("session_shared", "ann", "session", session_id, link),
        ("read_by_share", "bob", "session", session_id, link),
        ("read_by_share", "cal", "session", session_id, link),
        ("session_unshared", "ann", "session", session_id, link),
    ]


SOURCE = {"uid": "d", "score": 0.5, "tag_ids": ["t"], "author": "ann", "retrieval_score": 0.1}
LIBRARY = {**SOURCE, "title": "Manual", "content": "Turn it off.", "tag_names": ["All"], "citation_url": "/documents/d"}
ATTACHED = {**SOURCE, "title": "Payslip", "content": "1,000 a month.", "citation_url": "/documents/p#chunk=c"}
WEB = {**SOURCE, "title": "Page", "content": "Of the web.", "citation_url": "https://example.org/"}


def test_of_messages_only_questions_and_answers_are_seen():
    base = {"session_id": "s", "exchange_id": "e", "timestamp": "2026-01-01T00:00:00Z"}
    metadata = {
        "model": "m",
        "token_usage": {"input_tokens": 1},
        "agent_id": "Rico",
        "latency_ms": 5,
        "finish_reason": "stop",
        "runtime_context": {"user_groups": ["staff"]},
        "sources": [LIBRARY, ATTACHED, WEB],
        "extras": {"error": "llm_timeout", "checkpoint": "k", "phases": []},
    }
    text = {"type": "text", "text": "Said."}
    image = {"type": "image_url", "url": "data:image/png;base64,AA=="}
    call_part = {"type": "tool_call", "call_id": "c", "name": "secret_tool", "args": {"password": "x"}}
    messages = [
        {"rank": 0, "role": "user", "channel": "final", "parts": [text, image], "metadata": {"extras": {"a": 1}}},
        {"rank": 1, "role": "assistant", "channel": "thought", "parts": [text], "metadata": {}},
        {"rank": 2, "role": "assistant", "channel": "tool_call", "parts": [call_part], "metadata": {}},
        {"rank": 3, "role": "tool", "channel": "tool_result", "parts": [text], "metadata": {}},
        {"rank": 4, "role": "system", "channel": "final", "parts": [text], "metadata": {}},
        {"rank": 5, "role": "assistant", "channel": "final", "parts": [text, image, call_part], "metadata": metadata},
    ]
    seen = json.loads(b"[" + seen_by_readers([dumps({**base, **message}) for message in messages]) + b"]")
    shown = {"uid": "d", "score": 0.5}
    assert [one["rank"] for one in seen] == [0, 5]
    assert seen[0] == {
        "rank": 0,
        "timestamp": "2026-01-01T00:00:00Z",
        "role": "user",
        "channel": "final",
        "parts": [text],
        "metadata": {},
    }
    assert seen[1]["parts"] == [text, image]
    assert seen[1]["metadata"] == {
        "agent_id": "Rico",
        "finish_reason": "stop",
        "sources": [
            {**shown, "title": "Manual", "content": "Turn it off.", "citation_url": "/documents/d"},
            {**shown, "title": "Payslip", "content": "", "citation_url": "/documents/p#chunk=c"},
            {**shown, "title": "Page", "content": "Of the web.", "citation_url": "https://example.org/"},
        ],
        "extras": {"error": "llm_timeout"},
    }
