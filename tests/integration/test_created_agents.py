"""Agents that are made, changed and deleted over REST: by whom, of what, within which bounds, and from when on."""

import asyncio
import json
import time
from dataclasses import replace

import jwt
import psycopg
import pytest

from agentic_backend.agent.created import MAX_BYTES
from agentic_backend.agent.policy import AgentPolicy, PolicyRoles
from backend_kit.auth import Identity
from tests.support.people import SECRET, SECURITY, headers_of
from tests.support.service import BASE, hear, hear_until, say

pytestmark = pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")

OPEN = {"use_static_config_only": False}
AUTHORED = "tests.agentic_backend.agent.authored"
EDITING = {"agents:create", "agents:update", "agents:delete"}


def editing(**more):
    """A configuration that lets agents be made."""
    agents = [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {"name": "Rico", "class_path": "agentic_backend.agent.rag", "chat_options": {"attach_files": True}},
        {
            "name": "Loud",
            "class_path": AUTHORED,
            "tuning": {"fields": [{"key": "mode", "type": "select", "default": "once", "enum": ["once", "silent"]}]},
        },
    ]
    return {**OPEN, "agents": agents, "chat_models": [{"id": "large", "name": "mock;tokens=3"}], **more}


@pytest.fixture
async def service(start_service):
    async with start_service(ai=editing()) as running:
        yield running


async def call(service, method, path, body=None, **headers):
    """The status, and the decoded body where there is one."""
    async with service.http.request(method, BASE + path, json=body, headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def create(service, name="Ada", kind="agent", class_path=None, **headers):
    path = {} if class_path is None else {"class_path": class_path}
    return await call(service, "POST", "/agents/create", {"name": name, "type": kind, **path}, **headers)


async def ids(service):
    return [agent["id"] for agent in await service.get("/agents")]


async def answer(service, session_id, agent_id, exchange_id="e1", **more):
    async with service.native() as socket:
        await say(socket, **ask(session_id, agent_id, exchange_id, **more))
        return (await hear_until(socket, "final", "error"))[-1]


def ask(session_id, agent_id, exchange_id="e1", **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": "Hello"}
    return {**head, "client_exchange_id": exchange_id, **more}


def rows(database):
    with psycopg.connect(database.dsn) as connection:
        return connection.execute("SELECT id, name FROM agent ORDER BY name").fetchall()


async def test_an_agent_is_made_answers_is_changed_and_goes(service, database):
    status, ada = await create(service)
    assert status == 200
    assert (ada["name"], ada["class_path"], ada["enabled"]) == ("Ada", "agentic_backend.agent.plain", True)
    assert ada in await service.get("/agents")
    session_id = await service.create_session(agent_id=ada["id"])
    assert (await answer(service, session_id, ada["id"]))["type"] == "final"

    ada["tuning"]["role"] = "Poet"
    ada["tuning"]["fields"][0]["default"] = "Rhyme."
    changed = {**ada, "name": "Ada II", "model": "large", "further_models": ["default"], "starters": ["Rhyme on bee"]}
    status, told = await call(service, "PUT", "/agents/update", changed)
    assert status == 200
    assert [choice["id"] for choice in told.pop("model_choices")] == ["large", "default"]
    assert told == {key: value for key, value in changed.items() if key != "model_choices"}
    assert rows(database) == [(ada["id"], "Ada II")]
    final = await answer(service, session_id, ada["id"], "e2")
    assert final["messages"][-1]["metadata"]["model"] == "mock;tokens=3"

    assert await call(service, "DELETE", f"/agents/{ada['id']}") == (204, None)
    assert ada["id"] not in await ids(service)
    refused = await answer(service, session_id, ada["id"], "e3")
    assert (refused["type"], refused["code"]) == ("error", "agent_not_found")
    assert (await call(service, "DELETE", f"/agents/{ada['id']}"))[0] == 404
    assert (await call(service, "PUT", "/agents/update", changed))[0] == 404
    assert rows(database) == []


async def test_a_turn_of_a_deleted_agent_ends_as_it_would_have(start_service):
    async with start_service("mock;tokens=40;gap=20", ai=editing()) as service:
        _, ada = await create(service)
        session_id = await service.create_session(agent_id=ada["id"])
        async with service.native() as socket:
            await say(socket, **ask(session_id, ada["id"]))
            await hear_until(socket, "delta")
            assert (await call(service, "DELETE", f"/agents/{ada['id']}"))[0] == 204
            assert (await hear_until(socket, "final"))[-1]["messages"][-1]["metadata"]["finish_reason"] == "stop"
            await say(socket, **ask(session_id, ada["id"], "e2"))
            assert (await hear(socket))["code"] == "agent_not_found"


async def test_its_figures_stand_under_one_name(service):
    for number in range(3):
        _, agent = await create(service, f"Agent {number}")
        session_id = await service.create_session(agent_id=agent["id"])
        await answer(service, session_id, agent["id"], f"e{number}")
    assert service.sample("app_turns_total", agent="made", status="ok") == 3


@pytest.mark.parametrize(
    ("kind", "class_path", "made_of"),
    [
        ("agent", None, "agentic_backend.agent.plain"),
        ("Rico", None, "agentic_backend.agent.rag"),
        ("mcp", "agentic_backend.agent.tools", "agentic_backend.agent.tools"),
        ("agent", "agentic_backend.agents.rags.rag_expert.Rico", "agentic_backend.agent.rag"),
        ("agent", AUTHORED, AUTHORED),
    ],
)
async def test_what_it_is_made_of(service, kind, class_path, made_of):
    status, agent = await create(service, "New", kind, class_path)
    assert (status, agent["class_path"]) == (200, made_of)
    assert agent["chat_options"]["attach_files"] == made_of.endswith("rag")
    fields = [field["key"] for field in agent["tuning"]["fields"]]
    assert fields == (["mode"] if made_of == AUTHORED else fields)


@pytest.mark.parametrize("class_path", ["os", "tests.support.odd_agent", "agentic_backend.app", "a" * 129, "", "x\0y"])
async def test_no_other_module_is_imported(service, class_path):
    status, told = await create(service, "Mallory", "agent", class_path)
    assert (status, told["detail"]["code"]) == (422, "bad_request")
    assert await ids(service) == ["Georges", "Rico", "Loud"]


@pytest.mark.parametrize(
    ("kind", "key", "value", "words"),
    [
        ("Rico", "rag.top_k", 0, "rag.top_k is not a whole number from 1 to 100."),
        ("Rico", "rag.top_k", "8", "rag.top_k is not a whole number"),
        ("Rico", "rag.follow_up", "always", "rag.follow_up is not one of heuristic, model, off."),
        ("Rico", "rag.keyword_expansion", 1, "rag.keyword_expansion is not true or false."),
        ("Rico", "prompts.system", ["x"], "prompts.system is not a text."),
        ("Rico", "prompts.nothing", "x", "prompts.nothing is no field"),
    ],
)
async def test_a_value_is_held_to_its_field(service, kind, key, value, words):
    _, agent = await create(service, "Ada", kind)
    body = {"id": agent["id"], "name": "Ada", "type": kind, "tuning": {"fields": [{"key": key, "default": value}]}}
    status, told = await call(service, "PUT", "/agents/update", body)
    assert (status, told["detail"]["code"]) == (422, "bad_request")
    assert words in told["detail"]["message"]
    assert told["detail"]["field"] == ("tuning.fields" if "is no field" in words else f"tuning.fields.{key}")
    assert agent in await service.get("/agents")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": ""}, 422),
        ({"name": "x" * 81}, 422),
        ({"name": "a\0b"}, 422),
        ({"name": "Georges"}, 409),
        ({"model": "none"}, 422),
        ({"further_models": ["none"]}, 422),
        ({"class_path": "os"}, 422),
        ({"starters": [" "]}, 422),
        ({"starters": ["x" * 201]}, 422),
        ({"starters": ["one", "one"]}, 422),
        ({"starters": ["a\0b"]}, 422),
        ({"starters": list("abcdefg")}, 422),
        ({"tuning": {"mcp_servers": [{"id": "none"}]}}, 422),
        ({"tuning": {"fields": [{"key": "prompts.system", "default": "a\0b"}]}}, 422),
        ({"tuning": {"fields": [{"key": "prompts.system"}] * 2}}, 422),
        ({"tuning": {"fields": [{"key": "prompts.system", "default": "x" * MAX_BYTES}]}}, 413),
        ({"id": "nobody"}, 404),
        ({"id": "Georges"}, 403),
    ],
)
async def test_what_is_refused_changes_nothing(service, change, status):
    _, agent = await create(service)
    assert (await call(service, "PUT", "/agents/update", {"id": agent["id"], "name": "Ada", **change}))[0] == status
    assert agent in await service.get("/agents")


async def test_of_its_options_those_that_are_unknown_are_ignored(service):
    _, agent = await create(service)
    body = {"id": agent["id"], "name": "Ada", "chat_options": {"attach_files": True, "of_a_newer_page": True}}
    status, told = await call(service, "PUT", "/agents/update", body)
    assert (status, told["chat_options"]) == (200, {**agent["chat_options"], "attach_files": True})
    assert told in await service.get("/agents")


async def test_a_client_names_no_graph(service):
    """What it names would be imported."""
    _, ada = await create(service)
    assert (await call(service, "PUT", "/agents/update", {**ada, "graph": "os:abort"}))[0] == 200
    assert [agent["graph"] for agent in await service.get("/agents")] == [None] * 4
    assert (await answer(service, await service.create_session(), ada["id"]))["type"] == "final"


async def test_names_and_number_are_bounded(start_service):
    async with start_service(ai=editing(max_made_agents=2)) as service:
        statuses = [(await create(service, name))[0] for name in ("Georges", "Ada", "Ada", "Bo", "Cy")]
        assert statuses == [409, 200, 409, 200, 422]
        both = await asyncio.gather(*(call(service, "DELETE", f"/agents/{one}") for one in (await ids(service))[3:]))
        assert [status for status, _ in both] == [204, 204]
        same = await asyncio.gather(*(create(service, "Dee") for _ in range(8)))
        assert sorted(status for status, _ in same) == [200] + [409] * 7


async def test_agents_of_the_configuration_stay_as_they_are(service):
    assert (await call(service, "DELETE", "/agents/Georges"))[0] == 403
    assert (await call(service, "DELETE", "/agents/nobody"))[0] == 404
    assert await ids(service) == ["Georges", "Rico", "Loud"]


async def test_with_authentication_a_role_is_needed(start_service):
    async with start_service(security=SECURITY, ai=editing()) as service:
        ann = headers_of("ann")
        assert (await create(service, **ann)) == (403, {"detail": {"code": "forbidden", "message": "Not allowed."}})
        for method, path in (("PUT", "/agents/update"), ("DELETE", "/agents/Georges")):
            assert (await call(service, method, path, {}, **ann))[0] == 403
        assert not EDITING & set((await call(service, "GET", "/config/permissions", **ann))[1])


async def test_the_role_is_read_from_the_token(start_service):
    now = int(time.time())
    claims = {"sub": "ann", "iat": now, "exp": now + 600, "aud": "app"}
    keeper = {**claims, "resource_access": {"app": {"roles": ["keeper"]}}}
    headers = {"Authorization": f"Bearer {jwt.encode(keeper, SECRET, 'HS256')}"}
    security = SECURITY | {"user": {"enabled": True, "client_id": "app"}}
    async with start_service(security=security, ai=editing(agent_editor_roles=["keeper"])) as service:
        status, agent = await create(service, **headers)
        assert status == 200
        assert set((await call(service, "GET", "/config/permissions", **headers))[1]) > EDITING
        assert (await call(service, "DELETE", f"/agents/{agent['id']}", **headers))[0] == 204


async def test_who_may_change_agents(service):
    services = service.instances[0].running.chat.agents
    assert set(await service.get("/config/permissions")) > EDITING
    roles = PolicyRoles(operators=frozenset({"operator"}), editors=frozenset({"admin", "keeper"}))
    restricted = replace(services, policy=AgentPolicy(service.instances[0].running.persistence.grants, roles))
    callers = [Identity("u", "u", roles=frozenset(roles)) for roles in ((), ("reader",), ("reader", "keeper"))]
    assert [services.may_edit(caller) for caller in callers] == [True, True, True]
    assert [restricted.may_edit(caller) for caller in callers] == [False, False, True]
    assert not any(replace(services, created=None).may_edit(caller) for caller in callers)


async def test_it_survives_a_restart_and_what_no_longer_fits_is_left_out(start_service, database):
    async with start_service(ai=editing()) as service:
        _, ada = await create(service)
        _, loud = await create(service, "Loud too", "agent", AUTHORED)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO agent (id, name, payload_json) VALUES ('odd', 'Odd', '{\"a\": 1}')")
    fewer = editing(agents=[{"name": "Georges"}])
    async with start_service(ai=fewer) as service:
        assert await ids(service) == ["Georges", ada["id"]]
        session_id = await service.create_session(agent_id=ada["id"])
        assert (await answer(service, session_id, ada["id"]))["type"] == "final"
    async with start_service(ai=editing()) as service:
        assert loud["id"] in await ids(service)
    async with start_service() as service:
        assert await ids(service) == ["Georges"]


@pytest.mark.one_instance("starts its own two instances")
async def test_another_instance_sees_it_at_its_next_look(start_service):
    many = {"ack": "db", "replicas": "many"}
    async with (
        start_service(ai=editing(), persistence=many) as one,
        start_service(ai=editing(), persistence=many) as other,
    ):
        _, ada = await create(one)
        await other.service.running.chat.agents.created._look()
        assert ada in await other.get("/agents")
        assert (await call(other, "DELETE", f"/agents/{ada['id']}"))[0] == 204
        await one.service.running.chat.agents.created._look()
        assert ada["id"] not in await ids(one)
