"""Knowledge flow as an MCP server, by the official client and by plain HTTP."""

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import TextResourceContents

from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.mcp_client import ERAS, mcp_client
from tests.support.people import SECURITY, headers_of

SPOOL = "A finished turn is appended to the spool before the final event is sent."
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.parametrize("era", ERAS)
async def test_its_tools_only_read_and_say_what_they_give(service: RunningKnowledgeFlow, era: str) -> None:
    async with mcp_client(service.port, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "read_passage", "read_document"}
        for tool in tools.values():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint
            assert tool.output_schema is not None
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == [
            "turnwise://documents/{document_id}",
            "turnwise://documents/{document_id}/passages/{passage_id}",
        ]


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_found_can_be_opened(service: RunningKnowledgeFlow, corpus: Corpus, era: str) -> None:
    corpus.add_library("lib", name="Docs", path="Team")
    await corpus.put("uid/1", SPOOL, tag_ids=("lib",))
    async with mcp_client(service.port, era) as client:
        found = await client.call_tool("search", {"query": "how is a turn appended?", "libraries": ["Team/Docs"]})
        (passage,) = found.structured_content["passages"]
        ids = {"document_id": passage["document_id"], "passage_id": passage["passage_id"]}
        assert passage["document_id"] == "uid/1"
        assert (passage["title"], passage["text"], passage["libraries"]) == ("Title of uid/1", SPOOL, ["Team/Docs"])
        read = (await client.call_tool("read_passage", ids)).structured_content
        assert (read["text"], read["uri"]) == (SPOOL, passage["uri"])
        (content,) = (await client.read_resource(passage["uri"])).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == SPOOL


async def test_a_document_is_read_part_by_part(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    await corpus.put("doc", SPOOL)
    async with service.http.get("/knowledge-flow/v1/markdown/doc") as answer:
        text = (await answer.json())["content"]
    async with mcp_client(service.port) as client:
        parts: list[str] = []
        offset: int | None = 0
        while offset is not None:
            asked = {"document_id": "doc", "offset": offset, "limit": 10}
            part = (await client.call_tool("read_document", asked)).structured_content
            assert part["total_chars"] == len(text)
            parts.append(part["text"])
            offset = part["next_offset"]
        assert "".join(parts) == text
        assert {len(part) for part in parts[:-1]} == {10}
        beyond = await client.call_tool("read_document", {"document_id": "doc", "offset": 1_000_000})
        assert (beyond.structured_content["text"], beyond.structured_content["next_offset"]) == ("", None)


async def test_resources_come_in_pages(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    for number in range(101):
        await corpus.put(f"d{number:03}", f"text {number}")
    async with mcp_client(service.port) as client:
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        assert (len(first.resources), len(second.resources), second.next_cursor) == (100, 1, None)
        uris = [resource.uri for resource in (*first.resources, *second.resources)]
        assert uris == [f"turnwise://documents/d{number:03}" for number in range(101)]
        for cursor in ("-1", "x", "1" * 40, "²"):
            with pytest.raises(MCPError, match="Unknown cursor"):
                await client.list_resources(cursor=cursor)


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("search", {}, "query"),
        ("search", {"query": ""}, "query"),
        ("search", {"query": "canary\x00"}, "query"),
        ("search", {"query": "x", "limit": 101}, "limit"),
        ("search", {"query": "x", "libraries": "canary"}, "libraries"),
        ("read_passage", {"document_id": "canary"}, "passage_id"),
        ("read_document", {"document_id": "canary", "offset": -1}, "offset"),
        ("read_document", {"document_id": "canary", "offset": 2**31 - 1}, "offset"),
    ],
)
async def test_a_wrong_argument_is_named(
    service: RunningKnowledgeFlow, tool: str, arguments: dict[str, Any], field: str
) -> None:
    async with mcp_client(service.port) as client:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        assert (result.structured_content["code"], result.structured_content["field"]) == ("bad_request", field)
        assert "canary" not in str(result)


async def test_limits_of_a_search_hold_here_too(start_knowledge_flow: StartKnowledgeFlow) -> None:
    async with (
        start_knowledge_flow(limits={"max_question_chars": 10}) as service,
        mcp_client(service.port) as client,
    ):
        result = await client.call_tool("search", {"query": "longer than that", "limit": 1})
        assert result.structured_content["code"] == "message_too_long"
        assert result.structured_content["field"] == "query"
        french = {"Accept-Language": "fr"}
        async with mcp_client(service.port, headers=french) as fluent:
            refused = await fluent.call_tool("search", {"query": "longer than that"})
        assert refused.structured_content["message"] == "Le message est trop long."


@pytest.mark.parametrize("era", ERAS)
async def test_an_outage_is_a_result_with_its_code(start_knowledge_flow: StartKnowledgeFlow, era: str) -> None:
    async with (
        start_knowledge_flow(
            storage={"vector_store": {"index": "absent-index"}}, deadlines={"search_s": 0.000001}
        ) as service,
        mcp_client(service.port, era) as client,
    ):
        result = await client.call_tool("search", {"query": "x"})
        assert result.is_error
        assert (result.structured_content["code"], result.structured_content["retryable"]) == (
            "kf_unavailable",
            True,
        )


async def test_unknown_tools_and_resources_are_errors_of_the_protocol(service: RunningKnowledgeFlow) -> None:
    async with mcp_client(service.port) as client:
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("drop", {})
        for uri in ("file:///etc/passwd", "turnwise://documents/", "turnwise://documents/%00", "turnwise://other/a"):
            with pytest.raises(MCPError, match="Resource not found"):
                await client.read_resource(uri)


async def test_nobody_comes_in_without_a_token(start_knowledge_flow: StartKnowledgeFlow) -> None:
    async with start_knowledge_flow(security=SECURITY) as service:
        for headers in ({}, {"Authorization": "Bearer nonsense"}):
            async with service.http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, **headers}) as answer:
                assert answer.status == 401
                # No issuer is configured: there is nothing to find.
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        async with service.http.get("/.well-known/oauth-protected-resource/mcp") as answer:
            assert answer.status == 404
        async with mcp_client(service.port, headers=headers_of("ada")) as client:
            assert (await client.call_tool("search", {"query": "x"})).structured_content == {"passages": []}


async def test_clients_find_the_issuer(start_knowledge_flow: StartKnowledgeFlow) -> None:
    issuer = {
        **SECURITY,
        "user": {"enabled": True, "realm_url": "https://issuer.example/realm", "client_id": "turnwise"},
    }
    async with start_knowledge_flow(security=issuer) as service:
        address = f"http://127.0.0.1:{service.port}"
        async with service.http.post("/mcp", json=INITIALIZE, headers=ACCEPT) as answer:
            assert answer.status == 401
            where = f"{address}/.well-known/oauth-protected-resource/mcp"
            assert answer.headers["WWW-Authenticate"] == f'Bearer resource_metadata="{where}"'
        async with service.http.get(where) as answer:
            assert await answer.json() == {
                "resource": f"{address}/mcp",
                "authorization_servers": ["https://issuer.example/realm"],
                "bearer_methods_supported": ["header"],
                "resource_name": "Knowledge Flow Backend",
            }
        # What a client puts into Host stands in no header of the answer.
        async with service.http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, "Host": 'x", evil="y'}) as answer:
            assert "evil" not in answer.headers["WWW-Authenticate"]


async def test_behind_a_proxy_its_public_address_is_named(start_knowledge_flow: StartKnowledgeFlow) -> None:
    issuer = {
        **SECURITY,
        "user": {"enabled": True, "realm_url": "https://issuer.example/realm", "client_id": "turnwise"},
    }
    doors = {"public_url": "https://docs.example"}
    async with (
        start_knowledge_flow(doors=doors, security=issuer) as service,
        service.http.get("/.well-known/oauth-protected-resource/mcp") as answer,
    ):
        assert (await answer.json())["resource"] == "https://docs.example/mcp"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("https://app.example", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://rebound.example:{port}", 403),
        ("http://127.0.0.1:{port}", 200),
    ],
)
async def test_foreign_pages_are_refused(
    start_knowledge_flow: StartKnowledgeFlow, origin: str | None, status: int
) -> None:
    security = {"user": {"enabled": False}, "authorized_origins": ["https://app.example"]}
    async with start_knowledge_flow(security=security) as service:
        sent = None if origin is None else origin.format(port=service.port)
        headers = ACCEPT if sent is None else {**ACCEPT, "Origin": sent}
        if sent is not None and "rebound" in sent:
            headers["Host"] = sent.removeprefix("http://")
        async with service.http.post("/mcp", json=INITIALIZE, headers=headers) as answer:
            assert answer.status == status, await answer.text()


async def test_it_has_no_sessions_to_listen_to_or_to_end(service: RunningKnowledgeFlow) -> None:
    """Any instance answers any request."""
    async with service.http.post("/mcp", json=INITIALIZE, headers=ACCEPT) as answer:
        assert answer.status == 200
        assert "mcp-session-id" not in answer.headers
    for send in (service.http.get, service.http.delete):
        async with send("/mcp", headers={**ACCEPT, "Mcp-Session-Id": "x"}) as answer:
            assert answer.status == 405


@pytest.mark.parametrize("body", [b"", b"{canary", b'["canary"]', b"[{}]", b"null", b'{"jsonrpc":"canary"}', b"\xff"])
async def test_what_is_not_the_protocol_is_refused(service: RunningKnowledgeFlow, body: bytes) -> None:
    for version in ({}, {"MCP-Protocol-Version": "2026-07-28"}, {"MCP-Protocol-Version": "canary"}):
        headers = {**ACCEPT, "Content-Type": "application/json", **version}
        async with service.http.post("/mcp", data=body, headers=headers) as answer:
            said = await answer.text()
            assert answer.status == 400
            assert "pydantic" not in said
            assert "canary" not in said or version.get("MCP-Protocol-Version") == "canary"
    async with mcp_client(service.port) as client:
        assert (await client.list_tools()).tools


async def test_many_callers_at_once(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    await corpus.put("doc", SPOOL)

    async def one(era: str) -> None:
        async with mcp_client(service.port, era) as client:
            found = await client.call_tool("search", {"query": "spool"})
            assert len(found.structured_content["passages"]) == 1

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(one(ERAS[number % 2]))


async def test_it_can_be_switched_off(start_knowledge_flow: StartKnowledgeFlow) -> None:
    async with (
        start_knowledge_flow(doors={"mcp": False}) as service,
        service.http.post("/mcp", json=INITIALIZE, headers=ACCEPT) as answer,
    ):
        assert answer.status == 404
