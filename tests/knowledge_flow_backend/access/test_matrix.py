"""Every route that reads or changes something by every person by every id, foreign ones above all.

What is not the caller's is answered as what is not there, byte for byte; what comes back is exactly what they may read.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.knowledge_flow_backend.access.filled import (
    DOCUMENTS,
    LIBRARIES,
    PEOPLE,
    SESSIONS,
    UNKNOWN,
    UNKNOWN_SESSION,
    Answer,
    DocumentOf,
    FilledService,
    Scope,
    ids,
    readable,
    readable_libraries,
    upload,
)
from tests.knowledge_flow_backend.service import BASE

# One service for all of them: none changes anything.
pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICIES = ("hybrid", "strict", "semantic")
OPENS = (
    "/documents/metadata/{uid}",
    "/documents/{uid}/chunks",
    "/documents/{uid}/chunks/{chunk_uid}",
    "/markdown/{uid}",
    "/raw_content/{uid}",
)
SHARE = {"everyone": True, "users": ["cleo"], "groups": ["/team"]}
CHANGES_LIBRARY: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/tags/{tag_id}/access", None),
    ("PUT", "/tags/{tag_id}/access", SHARE),
    ("PUT", "/tags/{tag_id}", {"name": "taken"}),
    ("DELETE", "/tags/{tag_id}", None),
)
CHANGES_DOCUMENT: tuple[tuple[str, str, Any], ...] = (
    ("PUT", "/document/metadata/{uid}?retrievable=false", None),
    ("PUT", "/documents/{uid}/tags", {"tag_ids": []}),
    ("POST", "/documents/{uid}/ingest", None),
    ("DELETE", "/documents/{uid}", None),
)
ELSEWHERE = {
    ("POST", "/vector/search"),
    ("POST", "/vector/rerank"),
    ("POST", "/documents/browse"),
    ("GET", "/tags"),
    ("POST", "/tags"),
    ("POST", "/upload-process-documents"),
    ("POST", "/fast/text"),
    ("POST", "/fast/image"),
    ("GET", "/audit/events"),
    ("POST", "/fast/ingest"),
    ("DELETE", "/fast/ingest"),
    ("DELETE", "/fast/ingest/{document_uid}"),
}
PUBLIC = {("GET", "/healthz"), ("GET", "/ready")}


def scopes() -> Iterator[Scope]:
    """What a caller may name: nothing, one thing, everything, things of one's own beside foreign ones."""
    libraries, documents = (*LIBRARIES, UNKNOWN), (*DOCUMENTS, UNKNOWN)
    yield from (Scope(), Scope(libraries=libraries), Scope(documents=documents), Scope(libraries, documents))
    yield from (Scope(libraries=(name,)) for name in libraries)
    yield from (Scope(documents=(name,)) for name in documents)
    yield from (Scope(("all",), ("private",)), Scope(("private",), ("all", "private")), Scope(("team",), ("both",)))
    yield from (Scope(("private",), ("both",)), Scope(("bens", "cleos"), documents))


def sessions() -> Iterator[Scope]:
    """Sessions of everybody, with and without the corpus, also beside every id there is."""
    every = (tuple(LIBRARIES), tuple(DOCUMENTS))
    for session in SESSIONS:
        for libraries, documents in ((None, None), every):
            for with_session, with_corpus in ((True, True), (True, False), (False, True), (False, False)):
                yield Scope(libraries, documents, session, with_session, with_corpus)


async def test_a_search_finds_exactly_what_its_caller_may_read(filled_service: FilledService) -> None:
    wrong: list[Any] = []
    searched = 0
    for user in PEOPLE:
        for scope in (*scopes(), *sessions()):
            for policy in POLICIES:
                answer = await filled_service.search(user, scope, search_policy=policy)
                hits = answer.json()
                searched += 1
                if {filled_service.name(hit["uid"]) for hit in hits} != scope.found(user) or filled_service.leaks(
                    user, answer
                ):
                    wrong.append((user, policy, scope, [filled_service.name(hit["uid"]) for hit in hits]))
    assert wrong == []
    assert searched == len(PEOPLE) * len(POLICIES) * len([*scopes(), *sessions()])


async def test_a_word_that_only_a_foreign_document_has_finds_nothing(filled_service: FilledService) -> None:
    wrong: list[Any] = []
    for user in PEOPLE:
        for name, document in DOCUMENTS.items():
            scope = Scope(session=document.session)
            hits = (await filled_service.search(user, scope, question=f"canary{name}", search_policy="strict")).json()
            if {filled_service.name(hit["uid"]) for hit in hits} != scope.found(user) & {name}:
                wrong.append((user, name))
    assert wrong == []


async def test_who_asks_is_what_the_token_says_whatever_else_is_sent(filled_service: FilledService) -> None:
    claims = {"user_id": "ada", "owner_id": "ada", "groups": ["/team"], "user_groups": ["/team"]}
    forged = {**claims, "reader": claims, "runtime_context": claims, "access_token": "x"}
    headers = {"X-User": "ada", "X-User-Id": "ada", "X-Forwarded-User": "ada", "X-Groups": "/team"}
    for user in ("cleo", "/team", "machine"):
        path = f"/vector/search?{'&'.join(f'{key}=ada' for key in claims)}"
        body = {"question": filled_service.documents["private"], "top_k": 100, "session_id": "s-ada", **forged}
        answer = await filled_service.ask(user, "POST", path, json=body, headers=headers)
        assert {filled_service.name(hit["uid"]) for hit in answer.json()} == Scope(session="s-ada").found(user)


async def test_a_listing_shows_exactly_what_its_caller_may_read(filled_service: FilledService) -> None:
    wrong: list[Any] = []
    for user in PEOPLE:
        tags = await filled_service.ask(user, "GET", "/tags")
        expected = ids(filled_service.libraries, readable_libraries(user)) or []
        if {tag["id"] for tag in tags.json()} != set(expected) or filled_service.leaks(user, tags):
            wrong.append((user, "tags"))
        for scope in scopes():
            narrowed = filled_service.narrowed(scope)
            named = {"tag_ids": narrowed["document_library_tags_ids"], "document_uids": narrowed["document_uids"]}
            answer = await filled_service.ask(user, "POST", "/documents/browse", json={"filters": named})
            listed = answer.json()
            names = {filled_service.name(document["document_uid"]) for document in listed["documents"]}
            if names != scope.listed(user) or listed["total"] != len(names) or filled_service.leaks(user, answer):
                wrong.append((user, scope))
        for name in DOCUMENTS:
            by_name = {"filters": {"name": f"file-{name}-"}, "limit": 1}
            listed = (await filled_service.ask(user, "POST", "/documents/browse", json=by_name)).json()
            if listed["total"] != len(Scope().listed(user) & {name}):
                wrong.append((user, name))
    assert wrong == []


async def test_what_is_anothers_opens_as_what_is_not_there(filled_service: FilledService) -> None:
    wrong: list[Any] = []
    for user in PEOPLE:
        for path in OPENS:
            nothing = await filled_service.ask(user, "GET", path.format(uid=UNKNOWN, chunk_uid=UNKNOWN))
            assert nothing.status == 404
            for name, uid in filled_service.documents.items():
                answer = await filled_service.ask(
                    user, "GET", path.format(uid=uid, chunk_uid=filled_service.passages[name])
                )
                expected = answer.status == 200 if name in readable(user) else answer == nothing
                if not expected or filled_service.leaks(user, answer):
                    wrong.append((user, path, name, answer))
    assert wrong == []


async def test_a_foreign_passage_does_not_open_through_a_document_of_ones_own(filled_service: FilledService) -> None:
    path = "/documents/{}/chunks/{}"
    wrong: list[Any] = []
    for user in PEOPLE:
        door = filled_service.documents["all"]
        nothing = await filled_service.ask(user, "GET", path.format(door, UNKNOWN))
        assert nothing.status == 404
        for name, passage in filled_service.passages.items():
            answer = await filled_service.ask(user, "GET", path.format(door, passage))
            if answer != nothing and name != "all":
                wrong.append((user, name, answer))
    assert wrong == []


def refused(answer: Answer, nothing: Answer, *, known: bool) -> bool:
    """Whether a change was refused as it should be: forbidden to a reader, and not there for anybody else."""
    return (answer.status == 403 and b'"forbidden"' in answer.body) if known else answer == nothing


async def everything(filled_service: FilledService) -> Any:
    """What there is, as its owners see it."""
    owners = {library.owner for library in LIBRARIES.values()}
    tags = {user: await filled_service.done(user, "GET", "/tags") for user in owners}
    access = {
        name: await filled_service.done(library.owner, "GET", f"/tags/{filled_service.libraries[name]}/access")
        for name, library in LIBRARIES.items()
    }
    documents = {
        name: await filled_service.done(document.owner, "GET", f"/documents/metadata/{filled_service.documents[name]}")
        for name, document in DOCUMENTS.items()
    }
    return tags, access, documents


async def test_nobody_changes_what_is_anothers(filled_service: FilledService) -> None:
    before = await everything(filled_service)
    wrong: list[Any] = []
    for user in PEOPLE:
        for method, path, body in CHANGES_LIBRARY:
            nothing = await filled_service.ask(user, method, path.format(tag_id=UNKNOWN), json=body)
            for name in [name for name, library in LIBRARIES.items() if library.owner != user]:
                answer = await filled_service.ask(
                    user, method, path.format(tag_id=filled_service.libraries[name]), json=body
                )
                if not refused(answer, nothing, known=name in readable_libraries(user)):
                    wrong.append((user, method, path, name, answer))
        for method, path, body in CHANGES_DOCUMENT:
            nothing = await filled_service.ask(user, method, path.format(uid=UNKNOWN), json=body)
            for name in [name for name, document in DOCUMENTS.items() if document.owner != user]:
                answer = await filled_service.ask(
                    user, method, path.format(uid=filled_service.documents[name]), json=body
                )
                if not refused(answer, nothing, known=name in readable(user)):
                    wrong.append((user, method, path, name, answer))
    assert wrong == []
    assert await everything(filled_service) == before


async def test_nobody_deletes_anothers_attachments(filled_service: FilledService) -> None:
    before = await everything(filled_service)
    for user in PEOPLE:
        for query in ("", *(f"?session_id={session}" for session in SESSIONS)):
            nothing = await filled_service.ask(user, "DELETE", f"/fast/ingest/{UNKNOWN}{query}")
            assert nothing.status == 404
            for name in [name for name, document in DOCUMENTS.items() if document.owner != user]:
                answer = await filled_service.ask(
                    user, "DELETE", f"/fast/ingest/{filled_service.documents[name]}{query}"
                )
                assert answer == nothing, (user, name, query)
        for session in SESSIONS:
            if not any((one.owner, one.session) == (user, session) for one in DOCUMENTS.values()):
                nothing = await filled_service.ask(user, "DELETE", f"/fast/ingest?session_id={UNKNOWN_SESSION}")
                assert await filled_service.ask(user, "DELETE", f"/fast/ingest?session_id={session}") == nothing
    assert await everything(filled_service) == before


async def test_nothing_is_put_into_a_library_of_anothers(filled_service: FilledService) -> None:
    before = await everything(filled_service)
    for user, own in (("ben", "bens"), ("cleo", "cleos")):
        uid = filled_service.documents[own]
        nothing = await filled_service.ask(user, "PUT", f"/documents/{uid}/tags", json={"tag_ids": [UNKNOWN]})
        unsent = await upload(filled_service, "stranger", DocumentOf(user, (UNKNOWN,)))
        assert (nothing.status, unsent.status) == (404, 404)
        for name in [name for name, library in LIBRARIES.items() if library.owner != user]:
            tags = {"tag_ids": [filled_service.libraries[own], filled_service.libraries[name]]}
            answer = await filled_service.ask(user, "PUT", f"/documents/{uid}/tags", json=tags)
            assert refused(answer, nothing, known=name in readable_libraries(user)), (user, name, answer)
            assert await upload(filled_service, "stranger", DocumentOf(user, (own, name))) == unsent
    assert await everything(filled_service) == before


async def test_a_rerank_tells_nothing_of_a_passage_that_is_anothers(filled_service: FilledService) -> None:
    """It gives back what it was sent. A stored passage is known by its cosine, which only its readers get."""
    wrong: list[Any] = []
    told = 0
    for user in PEOPLE:
        for name, passage in filled_service.passages.items():
            answer = await reranked(filled_service, user, filled_service.documents[name], passage)
            nothing = await reranked(filled_service, user, UNKNOWN, "1" * len(passage))
            same = answer.body.replace(passage.encode(), b"1" * len(passage)).replace(
                filled_service.documents[name].encode(), UNKNOWN.encode()
            )
            if name not in readable(user) and (same, answer.headers) != (nothing.body, nothing.headers):
                wrong.append((user, name))
            told += name in readable(user) and same != nothing.body
    assert wrong == []
    assert told > 0


async def reranked(filled_service: FilledService, user: str, uid: str, passage: str) -> Answer:
    """A rerank of two texts, of which one says that it is a stored passage."""
    claimed = {"content": "bees make honey", "uid": uid, "title": "", "score": 0.5}
    claimed["citation_url"] = f"/documents/{uid}#chunk={passage}"
    other = {"content": "wasps leave the spool", "uid": "other", "title": "", "score": 0.4}
    third = {"content": "flies", "uid": "third", "title": "", "score": 0.3}
    body = {"question": "the spool keeps", "documents": [claimed, other, third]}
    answer = await filled_service.ask(user, "POST", "/vector/rerank", json=body)
    assert ("x-turnwise-rerank", "done") in answer.headers
    return answer


async def test_every_route_is_in_these_tables_and_none_answers_without_a_token(filled_service: FilledService) -> None:
    routes = {
        (method.upper(), path.removeprefix(BASE))
        for path, methods in filled_service.service.service.app.openapi()["paths"].items()
        for method in methods
    }
    changed = {(method, path.partition("?")[0]) for method, path, _ in (*CHANGES_LIBRARY, *CHANGES_DOCUMENT)}
    walked = {("GET", path) for path in OPENS} | changed | ELSEWHERE
    assert routes == walked | PUBLIC
    for method, path in walked:
        uid = filled_service.documents["all"]
        known = {"uid": uid, "document_uid": uid, "chunk_uid": UNKNOWN, "tag_id": filled_service.libraries["all"]}
        assert (await filled_service.ask(None, method, path.format(**known))).status == 401, path
