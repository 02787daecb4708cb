"""Who may use which agent, at every door: what one may not use is answered as what is not there, and listed nowhere."""

import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import psycopg
import pytest
from mcp import MCPError
from websockets.exceptions import ConnectionClosed

from agentic_backend.surfaces.langgraph.names import assistant_id_of
from tests.agentic_backend.records import until
from tests.support.api_keys import stored_key
from tests.support.mcp_client import ERAS, mcp_client
from tests.support.people import SECRET
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear, say

SECURITY: dict[str, Any] = {"user": {"enabled": True, "client_id": "turnwise"}, "hs256_secret": SECRET}
PLAIN = "agentic_backend.agent.plain"
AGENTS = {"agents": [{"name": name, "class_path": PLAIN} for name in ("Hidden", "Georges")]}
PEOPLE: dict[str, dict[str, Any]] = {
    "ann": {},
    "bob": {"groups": ["/staff"]},
    "cleo": {"resource_access": {"turnwise": {"roles": ["analyst"]}}},
    # Called like a user, a group and a role that have a relation, each in another place.
    "/staff": {"groups": ["ann", "analyst"], "resource_access": {"turnwise": {"roles": ["ann", "/staff"]}}},
    "opal": {"resource_access": {"turnwise": {"roles": ["admin"]}}},
}
OPENS: dict[str, tuple[dict[str, list[str]], str]] = {
    "user": ({"users": ["ann"]}, "ann"),
    "group": ({"groups": ["/staff"]}, "bob"),
    "role": ({"roles": ["analyst"]}, "cleo"),
}
RELATIONS = ("use", "edit", "share")
LISTS = ("agents", "models", "assistants", "tools")


def token_of(user: str) -> str:
    now = int(time.time())
    return jwt.encode({"sub": user, "aud": "turnwise", "iat": now, "exp": now + 600, **PEOPLE[user]}, SECRET)


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(user)}"}


Said = tuple[int, str]
Door = Callable[[RunningService, str, str, str], Awaitable[Said]]
"""Asks an agent as a user, in a session of theirs with another agent; the status, and what was said."""


async def request(service: RunningService, user: str, method: str, path: str, body: Any = None) -> Said:
    async with service.http.request(method, path, json=body, headers=bearer(user)) as response:
        return response.status, await response.text()


async def native(service: RunningService, user: str, agent: str, session: str) -> Said:
    async with service.native(token_of(user)) as socket:
        await say(socket, type="ask", session_id=session, agent_id=agent, message="Hello")
        while (heard := await hear(socket))["type"] not in ("final", "error"):
            pass
        return (200 if heard["type"] == "final" else 404), json.dumps(heard.get("code"))


async def compatible(service: RunningService, user: str, agent: str, session: str) -> Said:
    async with service.compatible(token=token_of(user)) as socket:
        await say(socket, type="ask", session_id=session, agent_id=agent, message="Hello")
        try:
            while (heard := await hear(socket))["type"] not in ("final", "error"):
                pass
            return (200 if heard["type"] == "final" else 404), json.dumps(heard.get("code"))
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 0, ""


async def stream(service: RunningService, user: str, agent: str, session: str) -> Said:
    body = {"type": "ask", "session_id": session, "agent_id": agent, "message": "Hello"}
    return await request(service, user, "POST", f"{BASE}/chatbot/query/stream", body)


async def made_session(service: RunningService, user: str, agent: str, _session: str) -> Said:
    return await request(service, user, "POST", f"{BASE}/chatbot/session", {"agent_id": agent})


async def completions(service: RunningService, user: str, agent: str, _session: str) -> Said:
    body = {"model": agent, "messages": [{"role": "user", "content": "Hello"}]}
    return await request(service, user, "POST", "/v1/chat/completions", body)


async def responses(service: RunningService, user: str, agent: str, _session: str) -> Said:
    return await request(service, user, "POST", "/v1/responses", {"model": agent, "input": "Hello"})


async def model(service: RunningService, user: str, agent: str, _session: str) -> Said:
    return await request(service, user, "GET", f"/v1/models/{agent}")


async def agui(service: RunningService, user: str, agent: str, _session: str) -> Said:
    body = {"threadId": "t", "runId": f"r-{user}", "messages": [{"id": "m", "role": "user", "content": "Hello"}]}
    return await request(service, user, "POST", f"/agui/{agent}", body)


async def run(service: RunningService, user: str, agent: str, _session: str) -> Said:
    body = {"assistant_id": agent, "input": {"messages": [{"role": "user", "content": "Hello"}]}}
    return await request(service, user, "POST", "/runs/wait", body)


async def assistant(service: RunningService, user: str, agent: str, _session: str) -> Said:
    return await request(service, user, "GET", f"/assistants/{assistant_id_of(agent)}")


async def mcp(service: RunningService, user: str, agent: str, _session: str) -> Said:
    async with mcp_client(service.port, ERAS[1], headers=bearer(user)) as client:
        try:
            told = await client.call_tool(f"ask_{agent}", {"question": "Hello"})
        except MCPError as error:
            return 404, str(error)
        return 200, str(told.is_error)


DOORS: dict[str, Door] = {
    "native": native,
    "compatible": compatible,
    "stream": stream,
    "session": made_session,
    "completions": completions,
    "responses": responses,
    "model": model,
    "agui": agui,
    "run": run,
    "assistant": assistant,
    "mcp": mcp,
}


async def listed(service: RunningService, user: str) -> dict[str, set[str]]:
    """The agents that each listing names."""
    _, agents = await request(service, user, "GET", f"{BASE}/agents")
    _, models = await request(service, user, "GET", "/v1/models")
    _, assistants = await request(service, user, "POST", "/assistants/search", {"limit": 100})
    async with mcp_client(service.port, ERAS[1], headers=bearer(user)) as client:
        tools = (await client.list_tools()).tools
    return {
        "agents": {agent["id"] for agent in json.loads(agents)},
        "models": {one["id"] for one in json.loads(models)["data"] if "/" not in one["id"]},
        "assistants": {one["graph_id"] for one in json.loads(assistants)},
        "tools": {tool.name.removeprefix("ask_") for tool in tools},
    }


async def closed_for(service: RunningService, relation: str, to: dict[str, list[str]], user: str = "opal") -> None:
    """Let nobody use Hidden but whom `to` names."""
    access = {"use": {"users": ["somebody"]}, relation: to}
    status, text = await request(service, user, "PUT", f"{BASE}/agents/Hidden/access", access)
    assert status == 200, text


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
@pytest.mark.parametrize("kind", OPENS)
@pytest.mark.parametrize("relation", RELATIONS)
async def test_every_person_at_every_door(start_service: StartService, kind: str, relation: str) -> None:
    to, friend = OPENS[kind]
    async with start_service(security=SECURITY, ai=AGENTS) as service:
        await closed_for(service, relation, to)
        for user in PEOPLE:
            may = user in (friend, "opal")
            expected = {"Hidden", "Georges"} if may else {"Georges"}
            assert await listed(service, user) == dict.fromkeys(LISTS, expected), user
            session = json.loads((await made_session(service, user, "Georges", ""))[1])["id"]
            for name, door in DOORS.items():
                hidden = await door(service, user, "Hidden", session)
                unknown = await door(service, user, "Nobody", session)
                assert (hidden[0] == 200) is may, (user, name, hidden)
                if not may:
                    assert plain(hidden, "Hidden") == plain(unknown, "Nobody"), (user, name)


def plain(said: Said, agent: str) -> Said:
    """What was said, without the agent's name and the ids of requests and exchanges."""
    text = re.sub(agent, "AGENT", said[1], flags=re.IGNORECASE)
    return said[0], re.sub(r"[0-9a-f]{8}-?[0-9a-f-]{8,}|r-[^\"]*|\d{13}", "ID", text)


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
async def test_nothing_is_closed_before_somebody_closes_it_and_everything_is_open_again_after_it(
    start_service: StartService,
) -> None:
    async with start_service(security=SECURITY, ai=AGENTS) as service:
        for opened in (True, False, True):
            if not opened:
                await closed_for(service, "use", {"users": ["somebody"]})
            else:
                assert (await request(service, "opal", "PUT", f"{BASE}/agents/Hidden/access", {}))[0] == 200
            for user in ("ann", "bob"):
                _, agents = await request(service, user, "GET", f"{BASE}/agents")
                assert ("Hidden" in agents) is opened
                # The first agent that they may use.
                _, session = await request(service, user, "POST", f"{BASE}/chatbot/session", {})
                assert json.loads(session)["agent_id"] == ("Hidden" if opened else "Georges")


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
async def test_an_open_socket_and_a_key_lose_an_agent_with_their_user(
    start_service: StartService, database: Database
) -> None:
    async with start_service(security=SECURITY, ai=AGENTS) as service:
        key = stored_key(database)
        session = json.loads((await made_session(service, "ann", "Hidden", ""))[1])["id"]
        ask = {"type": "ask", "session_id": session, "agent_id": "Hidden", "message": "Hello"}
        async with service.native(token_of("ann")) as socket, service.native(key) as by_key:
            for end in ("final", "error"):
                for each in (socket, by_key):
                    await say(each, **ask, if_busy="queue")
                    while (heard := await hear(each))["type"] not in ("final", "error"):
                        pass
                    assert heard["type"] == end
                await closed_for(service, "use", {"users": ["somebody"]})
        # What they said with it stays theirs.
        status, history = await request(service, "ann", "GET", f"{BASE}/chatbot/session/{session}/history")
        assert (status, len(json.loads(history))) == (200, 4)


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
async def test_who_may_share_says_who_and_others_do_not_learn_that_it_is_there(start_service: StartService) -> None:
    path = f"{BASE}/agents/Hidden/access"
    async with start_service(security=SECURITY, ai=AGENTS) as service:
        assert (await request(service, "ann", "GET", path))[0] == 403
        await closed_for(service, "share", {"users": ["ann"]})
        for user in ("bob", "cleo", "/staff"):
            for method, body in (("GET", None), ("PUT", {})):
                hidden = await request(service, user, method, path, body)
                unknown = await request(service, user, method, f"{BASE}/agents/Nobody/access", body)
                assert hidden == unknown
                assert hidden[0] == 404
        access = {"use": {"groups": ["/staff"]}, "edit": {"roles": ["analyst"]}, "share": {"users": ["ann"]}}
        status, text = await request(service, "ann", "PUT", path, access)
        assert status == 200
        nobody: dict[str, list[str]] = {"users": [], "groups": [], "roles": []}
        assert json.loads(text) == {name: nobody | part for name, part in access.items()}
        assert await request(service, "ann", "GET", path) == (200, text)
        assert (await request(service, "bob", "PUT", path, {}))[0] == 403
        for wrong in ({"use": {}}, {"use": {"user": ["ann"]}}, {"usr": None}, {"use": {"users": [""]}}):
            assert (await request(service, "ann", "PUT", path, wrong))[0] == 422
        assert await request(service, "ann", "GET", path) == (200, text)


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
async def test_whoever_makes_an_agent_shares_it_and_its_editors_change_it(
    start_service: StartService, database: Database
) -> None:
    ai = {**AGENTS, "use_static_config_only": False, "agent_editor_roles": ["analyst"]}
    async with start_service(security=SECURITY, ai=ai) as service:
        status, text = await request(service, "cleo", "POST", f"{BASE}/agents/create", {"name": "Ada"})
        made = json.loads(text)
        path = f"{BASE}/agents/{made['id']}"
        assert json.loads((await request(service, "cleo", "GET", f"{path}/access"))[1])["share"]["users"] == ["cleo"]
        access = {"use": {"users": ["bob"]}, "edit": {"users": ["ann"]}, "share": {"users": ["cleo"]}}
        assert (await request(service, "cleo", "PUT", f"{path}/access", access))[0] == 200
        update = made | {"name": "Ada 2"}
        for user, expected in (("ann", 200), ("bob", 403), ("/staff", 403), ("cleo", 200)):
            status, text = await request(service, user, "PUT", f"{BASE}/agents/update", update)
            assert status == expected, (user, text)
        # Who edits something may ask for more: what is hidden is not there.
        other = json.loads((await request(service, "cleo", "POST", f"{BASE}/agents/create", {"name": "Ben"}))[1])
        hidden = f"{BASE}/agents/{other['id']}"
        closed = access | {"edit": {}}
        assert (await request(service, "cleo", "PUT", f"{hidden}/access", closed))[0] == 200
        for method, place, body in (("PUT", f"{BASE}/agents/update", other), ("DELETE", hidden, None)):
            assert (await request(service, "ann", method, place, body))[0] == 404
        assert (await request(service, "ann", "POST", f"{BASE}/agents/create", {"name": "Mine"}))[0] == 403
        assert (await request(service, "bob", "GET", f"{BASE}/agents/editable"))[0] == 403
        for user, names, makes in (("ann", ["Ada 2"], False), ("cleo", ["Ada 2", "Ben"], True)):
            told = json.loads((await request(service, user, "GET", f"{BASE}/agents/editable"))[1])
            assert ([one["name"] for one in told["agents"]], bool(told["kinds"])) == (names, makes)
            may = json.loads((await request(service, user, "GET", f"{BASE}/config/permissions"))[1])
            assert ({"agents:update", "agents:delete"} <= set(may), "agents:create" in may) == (True, makes)
        assert (await request(service, "ann", "DELETE", path))[0] == 204
        with psycopg.connect(database.dsn) as connection:
            left = connection.execute("SELECT DISTINCT agent_id FROM agent_grant").fetchall()
            told = connection.execute(
                """SELECT action, subject, actor FROM audit_event WHERE object_id = %s AND action LIKE 'agent_%%shared'
                ORDER BY subject""",
                (made["id"],),
            ).fetchall()
        assert left == [(other["id"],)]
        assert told == [("agent_shared", "edit user:ann", "cleo"), ("agent_shared", "use user:bob", "cleo")]


async def test_a_change_at_another_instance_counts_here(start_service: StartService, database: Database) -> None:
    async with start_service(security=SECURITY, ai=AGENTS) as service:
        with psycopg.connect(database.dsn) as connection:
            connection.execute("INSERT INTO agent_grant VALUES ('Hidden', 'use', 'user', 'bob')")
        policies = [each.running.chat.agents.policy for each in service.instances]
        await until(lambda: all(policy.grants_of("Hidden") for policy in policies))
        assert "Hidden" not in (await request(service, "ann", "GET", f"{BASE}/agents"))[1]
        assert "Hidden" in (await request(service, "bob", "GET", f"{BASE}/agents"))[1]
