"""What people read by a key: at most what they read themselves, in the libraries and by the scopes that it has."""

import json
from itertools import product
from typing import Any

import pytest

from backend_kit.auth import PUBLIC, KeyScope
from knowledge_flow_backend.scopes import SCOPES
from tests.knowledge_flow_backend.access.filled import (
    DOCUMENTS,
    LIBRARIES,
    PEOPLE,
    TEXT,
    FilledService,
    readable,
    readable_libraries,
)
from tests.knowledge_flow_backend.access.keys import ByKey, key_of
from tests.support.api_keys import ALL, stored_key, with_keys
from tests.support.postgres import Database

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS: tuple[tuple[str, ...] | None, ...] = (None, (), ("private",), ("team",), ("all", "bens"), tuple(LIBRARIES))
OPENS = ("/documents/metadata/{}", "/documents/{}/chunks", "/markdown/{}", "/raw_content/{}")


@pytest.fixture(scope="module")
def keys(own_database: Database) -> Database:
    return with_keys(own_database)


def within(user: str, limit: tuple[str, ...] | None) -> set[str]:
    """The documents that a key opens; attachments are in no library, and stay their owner's."""
    if limit is None:
        return readable(user)
    mine = readable_libraries(user) & set(limit)
    attached = {name for name, one in DOCUMENTS.items() if one.session and one.owner == user}
    return attached | {name for name, one in DOCUMENTS.items() if mine & set(one.libraries)}


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_search_by_a_key_finds_what_its_owner_finds_within_its_libraries(
    filled_service: FilledService, keys: Database, limit: tuple[str, ...] | None
) -> None:
    wrong: list[Any] = []
    for user in PEOPLE:
        by = key_of(keys, filled_service, user, limit)
        expected = {name for name in within(user, limit) if DOCUMENTS[name].session is None}
        expected = {name for name in expected if DOCUMENTS[name].retrievable}
        for policy in ("hybrid", "strict", "semantic"):
            wrong += [(user, policy)] if await by.found(search_policy=policy) != expected else []
        for named in (("private",), ("team", "all")):
            ids = [filled_service.libraries[name] for name in named]
            both = set(named) if limit is None else set(named) & set(limit)
            mine = {name for name in expected if within(user, tuple(both)) & {name}}
            wrong += [(user, named)] if await by.found(document_library_tags_ids=ids) != mine else []
    assert wrong == []


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_key_opens_what_its_owner_opens_within_its_libraries(
    filled_service: FilledService, keys: Database, limit: tuple[str, ...] | None
) -> None:
    wrong: list[Any] = []
    for user in PEOPLE:
        by = key_of(keys, filled_service, user, limit)
        opened = within(user, limit)
        _, listed = await by.ask("POST", "/documents/browse", json={})
        names = {filled_service.name(one["document_uid"]) for one in listed["documents"]}
        wrong += [(user, "browse")] if names != {name for name in opened if not DOCUMENTS[name].session} else []
        _, tags = await by.ask("GET", "/tags")
        kept = readable_libraries(user) if limit is None else readable_libraries(user) & set(limit)
        wrong += [(user, "tags")] if {tag["id"] for tag in tags} != {filled_service.libraries[n] for n in kept} else []
        for name, path in product(DOCUMENTS, OPENS):
            status, _ = await by.ask("GET", path.format(filled_service.documents[name]))
            wrong += [(user, path, name, status)] if status != (200 if name in opened else 404) else []
    assert wrong == []


async def test_a_hit_names_no_library_outside_the_limit(filled_service: FilledService, keys: Database) -> None:
    by = key_of(keys, filled_service, "ada", ("team",))
    _, hits = await by.ask("POST", "/vector/search", json={"question": TEXT, "top_k": 100})
    assert {name for hit in hits for name in hit["tag_names"]} == {"name-of-team-"}
    assert "name-of-private-" not in json.dumps(hits)


async def test_a_named_user_reads_what_was_shared_with_them_and_nothing_of_the_owners(
    filled_service: FilledService, keys: Database
) -> None:
    front = stored_key(keys, "ada", ALL | {KeyScope.ACT_AS}, groups=("/team",))
    by = ByKey(filled_service, front)
    named = {"X-OpenWebUI-User-Id": "ada"}
    _, tags = await by.ask("GET", "/tags", headers=named)
    assert {tag["id"] for tag in tags} == {filled_service.libraries[name] for name in ("team", "all")}
    status, _ = await by.ask("GET", f"/markdown/{filled_service.documents['private']}", headers=named)
    assert status == 404
    status, _ = await by.ask("GET", f"/markdown/{filled_service.documents['private']}")
    assert status == 200
    plain = key_of(keys, filled_service, "ada", None)
    assert (await plain.ask("GET", "/tags", headers=named))[0] == 403


@pytest.mark.parametrize("scope", sorted(KeyScope))
async def test_a_key_opens_the_routes_of_its_scope_and_no_other(
    filled_service: FilledService, keys: Database, scope: KeyScope
) -> None:
    by = ByKey(filled_service, stored_key(keys, "nobody", frozenset({scope})))
    wrong: list[Any] = []
    for row, needs in SCOPES.items():
        method, path = row.split()
        if needs is PUBLIC:
            continue
        assert isinstance(needs, frozenset)
        status, body = await by.ask(method, path.replace("{", "").replace("}", ""), json={})
        refused = status == 403 and str(body["detail"].get("field", "")).startswith("scope")
        if refused == (scope in needs):
            wrong.append((row, status, body))
    assert wrong == []
