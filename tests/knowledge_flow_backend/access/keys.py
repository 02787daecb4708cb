"""The people of the access tests, by keys of theirs."""

import json
from typing import Any

from tests.knowledge_flow_backend.access.filled import PEOPLE, TEXT, FilledService
from tests.knowledge_flow_backend.service import BASE
from tests.support.api_keys import stored_key
from tests.support.postgres import Database


class ByKey:
    """What somebody does with a key."""

    def __init__(self, filled: FilledService, key: str) -> None:
        self.filled = filled
        self.key = key

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Status and body of a request below the base path or, with two slashes, at the root."""
        headers = {"x-api-key": self.key, **options.pop("headers", {})}
        place = path[1:] if path.startswith("//") else BASE + path
        async with self.filled.service.http.request(method, place, headers=headers, **options) as response:
            body = await response.read()
            return response.status, json.loads(body) if body.startswith((b"{", b"[")) and b"\n" not in body else body

    async def found(self, **fields: Any) -> set[str]:
        status, hits = await self.ask("POST", "/vector/search", json={"question": TEXT, "top_k": 100, **fields})
        assert status == 200, hits
        return {self.filled.name(hit["uid"]) for hit in hits}


def key_of(keys: Database, filled: FilledService, user: str, limit: tuple[str, ...] | None, **fields: Any) -> ByKey:
    """A key of one of the people, with their groups."""
    groups = PEOPLE[user].get("groups", [])
    libraries = None if limit is None else frozenset(filled.libraries[name] for name in limit)
    own = tuple(groups) if isinstance(groups, list) else ()
    return ByKey(filled, stored_key(keys, user, libraries=libraries, groups=own, **fields))
