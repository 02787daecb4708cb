"""The documentation of both interfaces: ours alone, for known callers where they have to be known, and complete."""

import re

import aiohttp
import pytest

from tests.knowledge_flow_backend.service import start_on
from tests.support.people import SECURITY, headers_of

PAGE = ("/docs", "/docs/page.js", "/docs/page.css", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css")
TAGS = {"chat", "agents", "documents", "kpi", "settings", "health", "search", "libraries", "attachments"}
TAGS |= {"openai", "agui", "langgraph", "audit"}
PUBLIC = {"/healthz", "/ready", "/ok", "/info", "/config/frontend_settings", "/chatbot/public/{token}"}


@pytest.fixture(params=["agentic", "knowledge flow"])
def start(request, start_service, database, mock_llm):
    return start_service if request.param == "agentic" else start_on(database, mock_llm.base_url)


def bare(service):
    """A client without a token."""
    return aiohttp.ClientSession(f"http://127.0.0.1:{service.port}")


async def test_the_document_is_for_known_callers_and_the_page_is_ours_alone(start):
    async with start(security=SECURITY) as service, bare(service) as http:
        async with http.get("/openapi.json") as response:
            assert response.status == 401
            assert "paths" not in await response.text()
        async with http.get("/openapi.json", headers=headers_of("ann")) as response:
            assert response.status == 200
            document = await response.json()
        for path in PAGE:
            async with http.get(path) as response:
                assert response.status == 200, path
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "script-src 'self'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                if path == "/docs":
                    page = await response.text()
        assert re.findall(r"https?://", page) == []
        assert re.findall(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", page) == []
        for path in ("/redoc", "/docs/oauth2-redirect", "/docs/redoc.standalone.js", "/docs/..%2fserver.py"):
            async with http.get(path) as response:
                assert response.status == 404, path
    assert set(document["components"]["securitySchemes"]) == {"bearer"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
            assert len(set(operation.get("tags", [])) & TAGS) == len(operation.get("tags", [])) == 1, (path, method)
            assert len(operation.get("description", "")) > 20, (path, method)
            open_to_all = any(path.endswith(public) for public in PUBLIC)
            assert operation.get("security", []) == ([] if open_to_all else [{"bearer": []}]), (path, method)


async def test_without_authentication_everybody_may_read_it(start):
    async with start() as service, bare(service) as http, http.get("/openapi.json") as response:
        assert response.status == 200
        assert "securitySchemes" not in (await response.json())["components"]


async def test_it_can_be_switched_off(start):
    async with start(app={"api_docs": False}) as service, bare(service) as http:
        for path in ("/openapi.json", *PAGE):
            async with http.get(path) as response:
                assert response.status == 404, path
