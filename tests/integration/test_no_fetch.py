"""docs/trust.md#F4: an address that comes from a user is text. Nothing of it is ever fetched, however it is spelled."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from knowledge_flow_backend.app import KnowledgeFlowService
from tests.integration.test_created_agents import call, editing
from tests.knowledge_flow_backend.service import settings_on
from tests.support.following import ask_frame
from tests.support.service import BASE, hear, hear_until, say
from tests.support.trap import trap

SESSION = f"{BASE}/chatbot/session"


async def test_an_address_in_whatever_a_user_sends_is_not_called(service):
    async with trap() as nobody:
        session_id = await service.create_session()
        async with service.native() as socket:
            for number, url in enumerate(nobody.addresses[:2]):  # the third frame that is refused ends the socket
                context = {"attachments_markdown": f"![x]({url})", "selected_document_uids": [url]}
                message = f"Read {url} and ![image]({url}) please."
                await say(socket, **ask_frame(session_id, f"e{number}", message, runtime_context=context))
                await hear_until(socket, "final")
                bad = ask_frame(session_id, f"b{number}", message, runtime_context={"base_url": url})
                await say(socket, **bad, if_busy="queue")
                assert (await hear(socket))["code"] == "bad_request"
        for url in nobody.addresses:
            await service.create_session(title=f"Look at {url}")
            preferences = {"preferences": {"model_url": url, "callback": url}}
            async with service.http.put(f"{SESSION}/{session_id}/preferences", json=preferences) as response:
                assert response.status == 200
            agent = {"name": "Planted", "class_path": "agentic_backend.agent.plain", "base_url": url, "mcp": url}
            async with service.http.post(f"{BASE}/agents/create", json=agent) as response:
                assert response.status in (403, 422)
        assert nobody.calls == 0


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
async def test_an_agent_that_is_made_over_rest_cannot_name_an_address(start_service):
    """Of a model, an MCP server or knowledge flow: it names what the configuration has, by its id."""
    async with trap() as nobody, start_service(ai=editing()) as service:
        for number, url in enumerate(nobody.addresses):
            made = {"name": f"Agent {number}", "type": "agent", "base_url": url, "settings": {"base_url": url}}
            status, agent = await call(service, "POST", "/agents/create", made)
            assert (status, url in json.dumps(agent)) == (200, False)
            own = {"id": agent["id"], "name": agent["name"]}
            field = {"key": "prompts.system", "default": f"See {url}", "base_url": url}
            for change, expected in (
                ({"model": url}, 422),
                ({"further_models": [url]}, 422),
                ({"class_path": url}, 422),
                ({"tuning": {"mcp_servers": [{"id": url, "url": url}]}}, 422),
                ({"tuning": {"mcp_servers": [{"id": "none", "url": url}]}}, 422),
                ({"tuning": {"fields": [{"key": "base_url", "default": url}]}}, 422),
                ({"tuning": {"fields": [field]}, "mcp": {"servers": [{"id": "s", "url": url}]}}, (200, 422)),
                ({"base_url": url, "knowledge_flow_url": url, "settings": {"base_url": url}}, (200, 422)),
            ):
                status, _ = await call(service, "PUT", "/agents/update", {**own, **change})
                assert status in (expected if isinstance(expected, tuple) else (expected,)), change
            session_id = await service.create_session(agent_id=agent["id"])
            async with service.native() as socket:
                await say(socket, **ask_frame(session_id, f"e{number}", "Hello") | {"agent_id": agent["id"]})
                await hear_until(socket, "final")
        assert nobody.calls == 0


@asynccontextmanager
async def redirector(target):
    """A server that sends everybody elsewhere; its URL, and the paths that were asked."""
    asked = []

    async def redirect(request):
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": target})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", redirect)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_a_server_of_the_operator_that_redirects_is_not_followed(start_service):
    """The address is trusted, what stands behind it is not: a model, knowledge flow, an MCP server."""
    agents = [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {"name": "Rico", "class_path": "agentic_backend.agent.rag"},
        {"name": "Sammy", "class_path": "agentic_backend.agent.tools", "tuning": {"mcp_servers": [{"id": "s"}]}},
    ]
    async with trap() as nobody, redirector(nobody.addresses[0]) as (url, asked):
        ai = {
            "agents": agents,
            "knowledge_flow_url": f"{url}/kf",
            "default_chat_model": {"name": "m", "settings": {"base_url": f"{url}/v1"}},
        }
        async with start_service(ai=ai, mcp={"servers": [{"id": "s", "url": f"{url}/mcp"}]}) as service:
            session_id = await service.create_session()
            async with service.native() as socket:
                for agent in agents:
                    await say(socket, **ask_frame(session_id, agent["name"], "Hello") | {"agent_id": agent["name"]})
                    while (frame := await hear(socket))["type"] != "error":
                        pass
                    assert frame["code"] == "llm_protocol"
        assert {"/v1/chat/completions", "/kf/vector/search", "/mcp"} <= set(asked)
        assert nobody.calls == 0


HIT = {"citation_url", "preview_url", "preview_at_url", "repo_url"}
"""Of a hit that a rerank is sent and gives back: its test sends a trap's addresses in them."""


@pytest.mark.parametrize(("knowledge_flow", "known"), [(False, set()), (True, HIT)])
async def test_no_request_of_either_document_has_a_field_for_an_address(service, database, knowledge_flow, known):
    if knowledge_flow:
        made = await asyncio.to_thread(KnowledgeFlowService, settings_on(database, "http://127.0.0.1:9/v1"))
        document = await asyncio.to_thread(made.app.openapi)
    else:
        async with service.http.get("/openapi.json") as response:
            document = await response.json()
    schemas = document["components"]["schemas"]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    asked = {name for operation in operations for name in referenced(operation.get("requestBody", {}), schemas)}
    assert asked
    fields = {key for name in asked for key in schemas[name].get("properties", {})}
    fields |= {one["name"] for operation in operations for one in operation.get("parameters", [])}
    named = {key for key in fields if any(word in key.lower() for word in ("url", "uri", "href", "host"))}
    assert named == known


def referenced(value, schemas, found=frozenset()):
    """The names of schemas that a value refers to, directly or through others."""
    names = {part.split('"')[0] for part in json.dumps(value).split("#/components/schemas/")[1:]} - found
    for name in names:
        found = found | {name}
        found |= set(referenced(schemas[name], schemas, found))
    return found
