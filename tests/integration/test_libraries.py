"""Both services with security on: what a person does with libraries through the agentic service is what they may do."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from agentic_backend.app import Parts
from tests.integration.test_rico_and_knowledge_flow import agents
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService

KNOWLEDGE = f"{BASE}/knowledge"
PUMPS = "# Pumps\n\nRinse the filter once a week with warm water.\n"
MANY = "".join(f"Line {at} of a text that is long enough to come in many pieces.\n" for at in range(20_000))


@asynccontextmanager
async def both(start_service: StartService, database: Database, mock_llm: MockModel) -> AsyncIterator[RunningService]:
    """The agentic service beside a knowledge flow that knows the same people."""
    knowledge = start_on(database, mock_llm.base_url)
    async with knowledge(security=SECURITY) as running:
        parts = Parts(knowledge_s=PATIENCE_S)
        async with start_service(**agents(running.port), security=SECURITY, parts=parts) as service:
            yield service


async def ask(service: RunningService, user: str, method: str, path: str, **options: Any) -> tuple[int, Any]:
    """Status and body of a person's request."""
    url = KNOWLEDGE + path
    async with service.http.request(method, url, headers=headers_of(user), **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def upload(service: RunningService, user: str, name: str, content: str, *tags: str) -> list[dict[str, Any]]:
    """The lines of an upload of one file."""
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("metadata_json", json.dumps({"tags": tags}))
    form.add_field("files", io.BytesIO(content.encode()), filename=name, content_type="application/octet-stream")
    url = f"{KNOWLEDGE}/upload-process-documents"
    async with service.http.post(url, data=form, headers=headers_of(user)) as response:
        assert response.status == 200, await response.text()
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_a_library_is_its_owners_until_it_is_shared(start_service, database, mock_llm):
    async with both(start_service, database, mock_llm) as service:
        status, library = await ask(service, "ann", "POST", "/tags", json={"name": "Manuals"})
        assert status == 201
        id_ = library["id"]
        lines = await upload(service, "ann", "pumps/p1.md", PUMPS, id_)
        assert {line["step"] for line in lines} >= {"parse", "embed", "index", "finished", "done"}
        (uid,) = {line["document_uid"] for line in lines if line.get("document_uid")}
        search = {"question": "How often is the filter rinsed?", "document_library_tags_ids": [id_]}
        status, hits = await ask(service, "ann", "POST", "/vector/search", json=search)
        assert [hit["file_path"] for hit in hits] == ["pumps/p1.md"]

        changing: list[tuple[str, str, Any]] = [
            ("PUT", f"/tags/{id_}", {"name": "Mine"}),
            ("PUT", f"/tags/{id_}/access", {"everyone": True}),
            ("PUT", f"/documents/{uid}/tags", {"tag_ids": []}),
            ("DELETE", f"/documents/{uid}", None),
            ("DELETE", f"/tags/{id_}", None),
        ]
        reading = [f"/documents/metadata/{uid}", f"/raw_content/{uid}"]
        for path in reading:
            assert (await ask(service, "ben", "GET", path))[0] == 404
        for method, path, body in changing:
            sent = {} if body is None else {"json": body}
            assert (await ask(service, "ben", method, path, **sent))[0] == 404, path
        assert (await ask(service, "ben", "POST", "/vector/search", json=search))[1] == []
        assert (await ask(service, "ben", "GET", "/tags"))[1] == []

        access = {"everyone": False, "users": ["ben"], "groups": []}
        assert await ask(service, "ann", "PUT", f"/tags/{id_}/access", json=access) == (200, access)
        async with service.http.get(f"{KNOWLEDGE}/raw_content/{uid}", headers=headers_of("ben")) as response:
            assert await response.text() == PUMPS
            assert "sandbox" in response.headers["Content-Security-Policy"]
        assert len((await ask(service, "ben", "POST", "/vector/search", json=search))[1]) == 1
        for method, path, body in changing:
            sent = {} if body is None else {"json": body}
            status, answer = await ask(service, "ben", method, path, **sent)
            assert (status, answer["detail"]["code"]) == (403, "forbidden"), path
        for method, path, body in reversed(changing[:1] + changing[3:]):
            sent = {} if body is None else {"json": body}
            assert (await ask(service, "ann", method, path, **sent))[0] in {200, 204, 404}
        assert (await ask(service, "ann", "GET", "/tags"))[1] == []


async def test_a_large_file_is_ingested_through_both_services(start_service, database, mock_llm):
    async with both(start_service, database, mock_llm) as service:
        _, library = await ask(service, "ann", "POST", "/tags", json={"name": "Large"})
        lines = await upload(service, "ann", "large.txt", MANY, library["id"])
        assert lines[-1]["status"] == "success"
        assert lines[-1]["bytes"] == len(MANY)


async def test_what_knowledge_flow_refuses_names_the_field(start_service, database, mock_llm):
    async with both(start_service, database, mock_llm) as service:
        status, answer = await ask(service, "ann", "POST", "/tags", json={"name": "a\0b"})
        assert (status, answer["detail"]["code"], answer["detail"]["field"]) == (422, "bad_request", "name")
        await ask(service, "ann", "POST", "/tags", json={"name": "Twice"})
        status, answer = await ask(service, "ann", "POST", "/tags", json={"name": "Twice"})
        assert (status, answer["detail"]["code"]) == (409, "conflict")
        status, answer = await ask(service, "ann", "PUT", "/tags/unknown", json={"name": "x"})
        assert (status, answer["detail"]) == (404, "This library or document is not there, or not for you.")
        lines = await upload(service, "ann", "broken.pdf", "%PDF-1.7 nothing of one")
        (end,) = [line for line in lines if line["step"] == "finished"]
        uid = end["document_uid"]
        _, document = await ask(service, "ann", "GET", f"/documents/metadata/{uid}")
        assert (document["status"], document["error"]["code"], document["version"]) == ("failed", "unreadable", 0)
        assert (await ask(service, "ann", "GET", f"/raw_content/{uid}"))[0] == 404  # there is no file of it
