"""All that is somebody's, as one file and deleted as a whole: theirs alone, each conversation once, and repeatable."""

import asyncio
import json
from typing import Any

import psycopg

from agentic_backend.rest.own_data import MOST_DELETED
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear_until, say

EXPORT = f"{BASE}/chatbot/me/export"
ME = f"{BASE}/chatbot/me"
NAMES = ("ann", "bob")


async def read(service: RunningService, user: str, path: str) -> Any:
    async with service.http.get(path, headers=headers_of(user)) as response:
        assert response.status == 200, await response.text()
        return json.loads(await response.text())


async def delete(service: RunningService, user: str) -> Any:
    async with service.http.delete(ME, headers=headers_of(user)) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def talk(service: RunningService, user: str, question: str) -> str:
    body = {"title": f"Of {user}"}
    async with service.http.post(f"{BASE}/chatbot/session", json=body, headers=headers_of(user)) as made:
        session_id = str((await made.json())["id"])
    async with service.native(token_of(user)) as socket:
        ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": question}
        await say(socket, **ask, client_exchange_id=f"{session_id}-1")
        await hear_until(socket, "final")
    return session_id


async def belongings(service: RunningService, user: str) -> tuple[str, str]:
    """A conversation that is rated, and a key: their ids."""
    session_id = await talk(service, user, f"What does {user} want?")
    headers = headers_of(user)
    rating = {"rating": 4, "messageId": "1", "sessionId": session_id, "agentName": "Georges", "comment": "fine"}
    async with service.http.post(f"{BASE}/chatbot/feedback", json=rating, headers=headers) as response:
        assert response.status == 204
    async with service.http.post(f"{BASE}/chatbot/keys", json={"name": f"{user}'s"}, headers=headers) as response:
        key_id = str((await response.json())["id"])
    async with service.http.post(f"{BASE}/chatbot/session/{session_id}/share", headers=headers) as response:
        assert response.status == 201
    body = {"preferences": {"tone": "dry"}}
    async with service.http.put(
        f"{BASE}/chatbot/session/{session_id}/preferences", json=body, headers=headers
    ) as response:
        assert response.status == 200
    return session_id, key_id


def attach(database: Database, session_id: str) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes)"
            " VALUES ('an-attachment', %s, 'ann', 'pumps.md', 1)",
            (session_id,),
        )


async def test_the_file_holds_all_that_is_the_callers_and_nothing_else(
    start_service: StartService, database: Database
) -> None:
    async with start_service(security=SECURITY) as service:
        ids = {user: await belongings(service, user) for user in NAMES}
        await service.flush()
        await asyncio.to_thread(attach, database, ids["ann"][0])
        told = await read(service, "ann", EXPORT)
        (conversation,) = told["sessions"]
        assert conversation["session"]["id"] == ids["ann"][0]
        assert conversation["session"]["preferences"] == {"tone": "dry"}
        assert conversation["attachments"] == [{"id": "an-attachment", "name": "pumps.md"}]
        history = await read(service, "ann", f"{BASE}/chatbot/session/{ids['ann'][0]}/history")
        assert conversation["messages"] == history
        links = await read(service, "ann", f"{BASE}/chatbot/session/{ids['ann'][0]}/shares")
        assert len(links) == 1
        assert conversation["links"] == links
        assert [one["comment"] for one in told["feedback"]] == ["fine"]
        assert [(one["id"], one["name"]) for one in told["keys"]] == [(ids["ann"][1], "ann's")]
        assert "bob" not in json.dumps(told)


async def test_a_key_without_admin_exports_no_keys_and_deletes_nothing(start_service: StartService) -> None:
    async with start_service(security=SECURITY) as service:
        await belongings(service, "ann")
        async with service.http.post(f"{BASE}/chatbot/keys", json={"name": "k"}, headers=headers_of("ann")) as response:
            key = {"x-api-key": (await response.json())["key"], "Authorization": ""}
        async with service.http.get(EXPORT, headers=key) as response:
            told = json.loads(await response.text())
        assert (len(told["sessions"]), told["keys"]) == (1, [])
        async with service.http.delete(ME, headers=key) as response:
            assert (response.status, (await response.json())["detail"]["field"]) == (403, "scope:admin")
        assert len((await read(service, "ann", EXPORT))["sessions"]) == 1


async def test_all_goes_with_an_event_each_and_a_second_time_nothing_does(
    start_service: StartService, database: Database
) -> None:
    async with start_service("mock;gap=50;tokens=5000", security=SECURITY, deadlines={"drain_s": 0.1}) as service:
        async with service.native(token_of("ann")) as socket:
            async with service.http.post(f"{BASE}/chatbot/session", json={}, headers=headers_of("ann")) as made:
                runs = (await made.json())["id"]
            async with service.http.post(f"{BASE}/chatbot/session", json={}, headers=headers_of("bob")) as made:
                bobs = (await made.json())["id"]
            ask = {"type": "ask", "session_id": runs, "agent_id": "Georges", "message": "Hello"}
            await say(socket, **ask, client_exchange_id="runs")
            await hear_until(socket, "delta")
            for user in NAMES:
                async with service.http.post(
                    f"{BASE}/chatbot/keys", json={"name": "k"}, headers=headers_of(user)
                ) as made:
                    assert made.status == 201
            assert await delete(service, "ann") == {"sessions": 1, "keys": 1, "complete": True}
            turn = service.turn("runs", "ann")
            assert turn is None or turn.ended
        told = await read(service, "ann", EXPORT)
        assert (told["sessions"], told["feedback"], told["keys"]) == ([], [], [])
        assert await delete(service, "ann") == {"sessions": 0, "keys": 0, "complete": True}
        assert [one["id"] for one in await read(service, "bob", f"{BASE}/chatbot/sessions")] == [bobs]
        assert len(await read(service, "bob", f"{BASE}/chatbot/keys")) == 1
        await service.flush()
        with psycopg.connect(database.dsn) as connection:
            query = "SELECT action, kind FROM public.audit_event WHERE actor = 'ann' AND action LIKE '%ed' ORDER BY 1"
            acts = [row for row in connection.execute(query) if row[0] in ("session_deleted", "key_revoked")]
        assert acts == [("key_revoked", "key"), ("session_deleted", "session")]


async def test_one_request_deletes_so_many_and_the_next_the_rest(
    start_service: StartService, database: Database
) -> None:
    async with start_service(security=SECURITY) as service:
        await belongings(service, "ann")
        await service.flush()
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)"
                " SELECT 'many-' || n, 'ann', 'Georges', '{}', now() FROM generate_series(1, %s) AS n",
                (MOST_DELETED,),
            )
        told = await read(service, "ann", EXPORT)
        ids = [one["session"]["id"] for one in told["sessions"]]
        assert len(set(ids)) == len(ids) == MOST_DELETED + 1
        assert await delete(service, "ann") == {"sessions": MOST_DELETED, "keys": 0, "complete": False}
        assert await delete(service, "ann") == {"sessions": 1, "keys": 1, "complete": True}
