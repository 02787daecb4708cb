"""What a key that is limited to libraries changes, and the end of a key."""

import json

import aiohttp

from tests.knowledge_flow_backend.access.filled import FilledService
from tests.knowledge_flow_backend.access.keys import ByKey, key_of
from tests.knowledge_flow_backend.service import BASE, start_on
from tests.support.api_keys import new_key, revoke_key, stored_key
from tests.support.mock_llm import MockModel
from tests.support.people import SECURITY
from tests.support.postgres import Database


async def test_a_limited_key_changes_its_libraries_alone(changeable_service: FilledService, database: Database) -> None:
    by = key_of(database, changeable_service, "ada", ("team",))
    private, team = (changeable_service.libraries[name] for name in ("private", "team"))
    both = changeable_service.documents["both"]
    assert (await by.ask("POST", "/tags", json={"name": "new"}))[0] == 403
    for method, path, body in (
        ("PUT", f"/tags/{private}", {"name": "taken"}),
        ("DELETE", f"/tags/{private}", None),
        ("GET", f"/tags/{private}/access", None),
        ("DELETE", f"/documents/{changeable_service.documents['private']}", None),
        ("PUT", f"/documents/{both}/tags", {"tag_ids": [private]}),
    ):
        assert (await by.ask(method, path, json=body))[0] == 404, (method, path)
    for tags, status in (([private], 404), ([], 404), ([team], 200)):
        form = aiohttp.FormData()
        form.add_field("files", b"# New\n\nText.", filename="new.md", content_type="text/markdown")
        form.add_field("metadata_json", json.dumps({"tags": tags}))
        assert (await by.ask("POST", "/upload-process-documents", data=form))[0] == status, tags
    assert (await by.ask("PUT", f"/documents/{both}/tags", json={"tag_ids": []}))[0] == 404
    assert (await by.ask("PUT", f"/documents/{both}/tags", json={"tag_ids": [team]}))[0] == 200
    left = await changeable_service.done("ada", "GET", f"/documents/metadata/{both}")
    assert all(library in json.dumps(left) for library in (private, team)), "what is not the key's stays as it was"


async def test_a_revoked_key_ends_here_too(changeable_service: FilledService, database: Database) -> None:
    key = stored_key(database, "ada")
    by = ByKey(changeable_service, key)
    assert (await by.ask("GET", "/tags"))[0] == 200
    revoke_key(database, key)
    known = changeable_service.service.service._verifier.keys
    assert known is not None
    await known.look()
    assert await by.ask("GET", "/tags") == (401, {"detail": "Invalid token"})


async def test_before_the_agentic_service_has_made_the_table_there_are_no_keys(
    empty_database: Database, mock_llm: MockModel
) -> None:
    async with start_on(empty_database, mock_llm.base_url)(security=SECURITY) as service:
        shown, _ = new_key("ada")
        async with service.http.get(f"{BASE}/tags", headers={"x-api-key": shown}) as answer:
            assert (answer.status, await answer.json()) == (401, {"detail": "Invalid token"})
