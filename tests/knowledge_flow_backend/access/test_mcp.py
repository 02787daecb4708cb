"""The service as an MCP server, by every person and every id: the rights of its routes, and not one more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp import MCPError
from mcp.client import Client
from mcp_types import CallToolResult, TextContent, TextResourceContents

from tests.knowledge_flow_backend.access.filled import (
    DOCUMENTS,
    LIBRARIES,
    PEOPLE,
    TEXT,
    UNKNOWN,
    FilledService,
    Scope,
    readable,
    token_of,
)
from tests.support.mcp_client import ERAS, mcp_client

# One service for all of them: none changes anything.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def client_of(filled_service: FilledService, user: str, era: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token_of(user)}"}
    async with mcp_client(filled_service.service.port, era, headers=headers) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def found_by(client: Client, filled_service: FilledService, **narrowed: object) -> set[str]:
    result = await client.call_tool("search", {"query": TEXT, "limit": 100, **narrowed})
    assert not result.is_error, result
    return {filled_service.name(passage["document_id"]) for passage in result.structured_content["passages"]}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("user", PEOPLE)
async def test_a_search_finds_what_the_caller_may_read(filled_service: FilledService, user: str, era: str) -> None:
    async with client_of(filled_service, user, era) as client:
        assert await found_by(client, filled_service) == Scope().found(user)
        for name in LIBRARIES:
            # By its id, and by its name, which whoever may not read it cannot know either.
            for named in (filled_service.libraries[name], f"name-of-{name}-", f"shelf/name-of-{name}-"):
                found = await found_by(client, filled_service, libraries=[named])
                assert found == Scope(libraries=(name,)).found(user)


@pytest.mark.parametrize("user", PEOPLE)
async def test_what_is_anothers_is_answered_as_what_is_not_there(filled_service: FilledService, user: str) -> None:
    async with client_of(filled_service, user) as client:
        nothing = {"document_id": UNKNOWN, "passage_id": UNKNOWN}
        no_document = await client.call_tool("read_document", {"document_id": UNKNOWN})
        no_passage = await client.call_tool("read_passage", nothing)
        assert no_document.is_error
        assert no_passage.is_error
        for name in DOCUMENTS:
            uid, passage = filled_service.documents[name], filled_service.passages[name]
            document = await client.call_tool("read_document", {"document_id": uid})
            read = await client.call_tool("read_passage", {"document_id": uid, "passage_id": passage})
            if name in readable(user):
                assert f"canary{name}-text" in text_of(document)
                assert f"canary{name}-t" in text_of(read)
            else:
                assert (document, read) == (no_document, no_passage)


@pytest.mark.parametrize("user", PEOPLE)
async def test_resources_are_the_documents_that_the_caller_may_open(filled_service: FilledService, user: str) -> None:
    async with client_of(filled_service, user) as client:
        listed = {resource.uri.rpartition("/")[2] for resource in (await client.list_resources()).resources}
        assert {filled_service.name(uid) for uid in listed} == Scope().listed(user)
        for name in DOCUMENTS:
            document = f"turnwise://documents/{filled_service.documents[name]}"
            for uri in (document, f"{document}/passages/{filled_service.passages[name]}"):
                if name in readable(user):
                    (content,) = (await client.read_resource(uri)).contents
                    assert isinstance(content, TextResourceContents)
                    assert f"canary{name}-t" in content.text
                else:
                    with pytest.raises(MCPError, match=r"^Resource not found\.$"):
                        await client.read_resource(uri)


async def test_a_passage_of_another_document_is_not_there(filled_service: FilledService) -> None:
    """Ada's own document does not open the way to a passage of Ben's."""
    async with client_of(filled_service, "ada") as client:
        asked = {"document_id": filled_service.documents["loose"], "passage_id": filled_service.passages["bens"]}
        assert (await client.call_tool("read_passage", asked)).is_error
