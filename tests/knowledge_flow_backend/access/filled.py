"""A service with security on, people with tokens, their libraries and documents, and what each of them may read.

What may be read is computed here from the two tables below, by other means than the service's SQL.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import jwt

from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.people import SECRET, SECURITY

TEXT = "the spool keeps a finished turn"
"""Stands in every document: what is not found with it was kept from the caller."""
UNKNOWN = "0" * 32
UNKNOWN_SESSION = "s-none"
_VOLATILE = frozenset({"date", "x-request-id", "server-timing"})


@dataclass(frozen=True, slots=True)
class LibraryOf:
    """A library: its owner, and who else reads it."""

    owner: str
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    everyone: bool = False


@dataclass(frozen=True, slots=True)
class DocumentOf:
    """A document: its owner, and the libraries or the session that it is in."""

    owner: str
    libraries: tuple[str, ...] = ()
    session: str | None = None
    retrievable: bool = True


PEOPLE: Mapping[str, dict[str, Any]] = {
    "ada": {},
    "ben": {"groups": ["/team"]},
    # Groups that are called like people, and almost like a group: none of them opens anything.
    "cleo": {"groups": ["ben", "ada", "/Team", "team", "/team/"]},
    # Called like a group; `groups` is no list.
    "/team": {"groups": "/team"},
    # The token of a machine, with any role that it likes.
    "machine": {"resource_access": {"turnwise": {"roles": ["admin"]}}, "roles": ["admin"], "scope": "admin"},
}
LIBRARIES: Mapping[str, LibraryOf] = {
    "private": LibraryOf("ada"),
    "team": LibraryOf("ada", groups=("/other", "/team")),
    "forben": LibraryOf("ada", users=("ben", "dora")),
    "all": LibraryOf("ada", everyone=True),
    "bens": LibraryOf("ben"),
    "cleos": LibraryOf("cleo"),
}
DOCUMENTS: Mapping[str, DocumentOf] = {
    **{name: DocumentOf(library.owner, (name,)) for name, library in LIBRARIES.items()},
    "both": DocumentOf("ada", ("private", "team")),
    "loose": DocumentOf("ada"),
    "hidden": DocumentOf("ada", ("all",), retrievable=False),
    "adasfile": DocumentOf("ada", session="s-ada"),
    "bensfile": DocumentOf("ben", session="s-ben"),
    # She names a session of Ada's as her own.
    "cleosfile": DocumentOf("cleo", session="s-ada"),
}
SESSIONS = ("s-ada", "s-ben", UNKNOWN_SESSION)


def token_of(user: str) -> str:
    """A signed token with the groups of the table."""
    now = int(time.time())
    return jwt.encode({"sub": user, "iat": now, "exp": now + 600, **PEOPLE[user]}, SECRET, "HS256")


def readable_libraries(user: str) -> set[str]:
    """The libraries that a person may read."""
    mine = PEOPLE[user].get("groups", [])
    groups = set(mine) if isinstance(mine, list) else set()
    return {
        name
        for name, library in LIBRARIES.items()
        if library.everyone or user == library.owner or user in library.users or groups & set(library.groups)
    }


def readable(user: str) -> set[str]:
    """The documents that a person may open, attachments too."""
    libraries = readable_libraries(user)
    return {
        name for name, document in DOCUMENTS.items() if document.owner == user or libraries & set(document.libraries)
    }


@dataclass(frozen=True, slots=True)
class Scope:
    """What a search or a listing is narrowed to; None narrows nothing. Names of the tables, or UNKNOWN."""

    libraries: tuple[str, ...] | None = None
    documents: tuple[str, ...] | None = None
    session: str | None = None
    with_session: bool = True
    with_corpus: bool = True

    def listed(self, user: str) -> set[str]:
        """What a listing shows."""
        named = readable_libraries(user) & set(self.libraries or ())
        return {
            name
            for name in readable(user)
            if DOCUMENTS[name].session is None
            and (self.documents is None or name in self.documents)
            and (self.libraries is None or named & set(DOCUMENTS[name].libraries))
        }

    def found(self, user: str) -> set[str]:
        """What a search for TEXT finds."""
        corpus = self.listed(user) if self.with_corpus else set()
        attached = {
            name
            for name, document in DOCUMENTS.items()
            if self.with_session and self.session and (document.owner, document.session) == (user, self.session)
        }
        return {name for name in corpus | attached if DOCUMENTS[name].retrievable}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees of a response, without what differs from one to the next by itself."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


@dataclass(slots=True)
class FilledService:
    """The running service, and which ids it gave to what."""

    service: RunningKnowledgeFlow
    libraries: dict[str, str] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    passages: dict[str, str] = field(default_factory=dict)

    async def ask(self, user: str | None, method: str, path: str, **options: Any) -> Answer:
        """One request with a person's token, or with none."""
        headers = {**options.pop("headers", {})}
        if user is not None:
            headers["Authorization"] = f"Bearer {token_of(user)}"
        async with self.service.http.request(method, BASE + path, headers=headers, **options) as response:
            shown = sorted((name.lower(), value) for name, value in response.headers.items())
            kept = tuple((name, value) for name, value in shown if name not in _VOLATILE)
            return Answer(response.status, kept, await response.read())

    async def done(self, user: str, method: str, path: str, **options: Any) -> Any:
        """One request that must succeed; its decoded body."""
        answer = await self.ask(user, method, path, **options)
        assert answer.status < 300, (path, answer)
        return answer.json() if answer.body else None

    async def search(self, user: str, scope: Scope, **fields: Any) -> Answer:
        """A search for TEXT, for more hits than there are."""
        body = {"question": TEXT, "top_k": 100, **self.narrowed(scope), **fields}
        body |= {"include_session_scope": scope.with_session, "include_corpus_scope": scope.with_corpus}
        return await self.ask(user, "POST", "/vector/search", json={**body, "session_id": scope.session})

    async def found(self, user: str, **fields: Any) -> list[str]:
        """The documents that a plain search finds, by name."""
        answer = await self.search(user, Scope(), **fields)
        assert answer.status == 200, answer
        return sorted(self.name(hit["uid"]) for hit in answer.json())

    def narrowed(self, scope: Scope) -> dict[str, Any]:
        """The ids of a scope, as a search takes them."""
        return {
            "document_library_tags_ids": ids(self.libraries, scope.libraries),
            "document_uids": ids(self.documents, scope.documents),
        }

    def name(self, uid: str) -> str:
        """Which document an id is."""
        (name,) = [name for name, known in self.documents.items() if known == uid]
        return name

    def leaks(self, user: str, answer: Answer) -> list[str]:
        """What an answer says that its caller may not know: ids, names and words of what is another's."""
        libraries, documents = readable_libraries(user), readable(user)
        secrets = [
            *(f"name-of-{name}-" for name in LIBRARIES if name not in libraries),
            *(self.libraries[name] for name in LIBRARIES if name not in libraries),
            *(word for name in DOCUMENTS if name not in documents for word in (f"canary{name}-", f"file-{name}-")),
            *(self.documents[name] for name in DOCUMENTS if name not in documents),
            *(self.passages[name] for name in DOCUMENTS if name not in documents),
        ]
        text = answer.body.decode() + repr(answer.headers)
        return [secret for secret in secrets if secret in text]


def ids(known: Mapping[str, str], names: Iterable[str] | None) -> list[str] | None:
    """The ids of names; what has none is an unknown id itself."""
    return None if names is None else [known.get(name, name) for name in names]


@asynccontextmanager
async def filled_service_on(start: StartKnowledgeFlow, storage: dict[str, Any]) -> AsyncIterator[FilledService]:
    """Start the service, and let everybody make their libraries and upload their documents, all over its routes."""
    async with start(security=SECURITY, storage=storage) as service:
        filled_service = FilledService(service)
        await _fill(filled_service)
        yield filled_service


async def _fill(filled_service: FilledService) -> None:
    for name, library in LIBRARIES.items():
        body = {"name": f"name-of-{name}-", "path": "shelf"}
        tag = (await filled_service.done(library.owner, "POST", "/tags", json=body))["id"]
        readers = {"everyone": library.everyone, "users": library.users, "groups": library.groups}
        await filled_service.done(library.owner, "PUT", f"/tags/{tag}/access", json=readers)
        filled_service.libraries[name] = tag
    await asyncio.gather(*(_put(filled_service, name, document) for name, document in DOCUMENTS.items()))


async def _put(filled_service: FilledService, name: str, document: DocumentOf) -> None:
    uid = await (_uploaded if document.session is None else _attached)(filled_service, name, document)
    filled_service.documents[name] = uid
    chunks = await filled_service.done(document.owner, "GET", f"/documents/{uid}/chunks")
    filled_service.passages[name] = chunks[0]["chunk_uid"]
    if not document.retrievable:
        await filled_service.done(document.owner, "PUT", f"/document/metadata/{uid}?retrievable=false")


async def upload(filled_service: FilledService, name: str, document: DocumentOf, *, more: str = "") -> Answer:
    """Ingest a document into its libraries; `more` stands at its end."""
    form = _form(name, more=more)
    form.add_field("metadata_json", json.dumps({"tags": ids(filled_service.libraries, document.libraries)}))
    return await filled_service.ask(document.owner, "POST", "/upload-process-documents", data=form)


async def _uploaded(filled_service: FilledService, name: str, document: DocumentOf) -> str:
    answer = await upload(filled_service, name, document)
    (end,) = [line for line in map(json.loads, answer.body.splitlines()) if line["step"] == "finished"]
    assert end["status"] == "success", end
    return str(end["document_uid"])


async def _attached(filled_service: FilledService, name: str, document: DocumentOf) -> str:
    form = _form(name, "file")
    form.add_field("session_id", document.session)
    return str((await filled_service.done(document.owner, "POST", "/fast/ingest", data=form))["document_uid"])


def _form(name: str, part: str = "files", *, more: str = "") -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)
    text = f"# canary{name}-title\n\nIn canary{name}-text {TEXT}. {more}\n"
    form.add_field(part, text.encode(), filename=f"file-{name}-.md", content_type="text/markdown")
    return form
