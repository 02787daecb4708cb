import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import TextClause, text

from backend_kit.http import Download
from knowledge_flow_backend.engines.pgvector.writer import PgVectorWriter
from knowledge_flow_backend.errors import Conflict, IndexUnavailable
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.library import store
from knowledge_flow_backend.library.reasons import SENTENCES, Reason
from knowledge_flow_backend.library.router import attachment
from tests.knowledge_flow_backend.ingest.ingestion import BASE, Ingestion, running, unheard
from tests.support.postgres import Database


async def new_tag(ingestion: Ingestion, name: str, user: str = "admin", **more: Any) -> str:
    body = {"name": name, "type": "document", **more}
    return str((await ingestion.call("POST", "/tags", json=body, user=user, status=201))["id"])


async def names(ingestion: Ingestion, user: str = "admin", **body: Any) -> list[str]:
    found = await ingestion.call("POST", "/documents/browse", json={"sort_by": "file_name", **body}, user=user)
    return [document["file_name"] for document in found["documents"]]


async def test_a_library_is_made_listed_changed_and_deleted(ingestion: Ingestion) -> None:
    made = await ingestion.call("POST", "/tags", json={"name": "Docs", "type": "document", "path": "/a/b/"}, status=201)
    assert (made["name"], made["full_path"], made["document_count"]) == ("Docs", "a/b/Docs", 0)
    assert await ingestion.call("GET", "/tags") == [made]
    changed = await ingestion.call("PUT", f"/tags/{made['id']}", json={"name": "Manuals"})
    assert (changed["full_path"], changed["id"]) == ("a/b/Manuals", made["id"])
    await ingestion.call("DELETE", f"/tags/{made['id']}", status=204)
    assert await ingestion.call("GET", "/tags") == []
    await ingestion.call("DELETE", f"/tags/{made['id']}", status=404)


async def test_a_name_is_taken_once_in_a_place(ingestion: Ingestion) -> None:
    await new_tag(ingestion, "Docs")
    await new_tag(ingestion, "Docs", path="other")
    answer = await ingestion.call("POST", "/tags", json={"name": "Docs"}, status=409)
    assert answer["detail"]["code"] == "conflict"
    await new_tag(ingestion, "Docs", user="bob")


async def test_an_owner_has_so_many_libraries_and_others_their_own(ingestion: Ingestion) -> None:
    """Whoever they are shared with lists all of them."""
    writer = PgVectorWriter(ingestion.database, model="hashing")
    library = store.Library(store.Statements(ingestion.database), writer, unheard(), max_libraries=2)
    ada, bob = Reader("ada", ()), Reader("bob", ())
    made = [await library.add_tag(ada, store.NewTag(name, "", "document", None)) for name in ("One", "Two")]
    with pytest.raises(Conflict):
        await library.add_tag(ada, store.NewTag("Three", "", "document", None))
    await library.add_tag(bob, store.NewTag("Three", "", "document", None))
    assert await library.delete_tag(ada, made[0]["id"])
    await library.add_tag(ada, store.NewTag("Three", "", "document", None))
    assert [tag["name"] for tag in await library.tags(ada)] == ["Three", "Two"]


async def test_documents_stand_in_the_libraries_they_were_sent_to(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid = await ingestion.put("a.md", "Text.", tags=[one, two])
    document = await ingestion.call("GET", f"/documents/metadata/{uid}")
    assert (set(document["tag_ids"]), set(document["tag_names"])) == ({one, two}, {"One", "Two"})
    await ingestion.put("b.md", "Text.", tags=[one])
    assert await names(ingestion, filters={"tag_ids": [one]}) == ["a.md", "b.md"]
    assert await names(ingestion, filters={"tag_ids": [two]}) == ["a.md"]
    assert [tag["document_count"] for tag in await ingestion.call("GET", "/tags")] == [2, 1]


async def test_the_same_name_in_two_libraries_is_two_documents(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    assert await ingestion.put("a.md", "Text.", tags=[one]) != await ingestion.put("a.md", "Text.", tags=[two])


async def test_the_same_bytes_join_a_further_library(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid = await ingestion.put("a.md", "Text.", tags=[one])
    lines = await ingestion.upload(("a.md", b"Text."), tags=[one, two])
    assert (lines[0]["status"], lines[0]["document_uid"]) == ("unchanged", uid)
    assert await names(ingestion, filters={"tag_ids": [two]}) == ["a.md"]


async def test_a_library_takes_with_it_only_what_stands_nowhere_else(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    both, alone = (
        await ingestion.put("a.md", "Text.", tags=[one, two]),
        await ingestion.put("b.md", "Text.", tags=[one]),
    )
    await ingestion.call("DELETE", f"/tags/{one}", status=204)
    assert await names(ingestion) == ["a.md"]
    await ingestion.call("GET", f"/markdown/{alone}", status=404)
    assert (await ingestion.call("GET", f"/documents/metadata/{both}"))["tag_names"] == ["Two"]
    assert await ingestion.rows("SELECT count(*) FROM chunks") == [(1,)]


async def test_deleting_a_document_deletes_all_of_it(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "Text.")
    await ingestion.call("DELETE", f"/documents/{uid}", status=204)
    await ingestion.call("DELETE", f"/documents/{uid}", status=404)
    for table in ("documents", "document_contents", "chunks", "document_tags"):
        assert await ingestion.rows(f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608 - names of this list


async def test_a_document_can_be_kept_out_of_searches(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "Text.")
    changed = await ingestion.call("PUT", f"/document/metadata/{uid}?retrievable=false")
    assert changed["retrievable"] is False
    assert await names(ingestion, filters={"retrievable": True}) == []
    assert await names(ingestion, filters={"retrievable": False}) == ["a.md"]


async def test_a_listing_has_windows_orders_and_filters(ingestion: Ingestion) -> None:
    await ingestion.upload(*((f"{letter}.md", letter.encode() * (at + 1)) for at, letter in enumerate("cab")))
    assert await names(ingestion) == ["a.md", "b.md", "c.md"]
    assert await names(ingestion, sort_by="-file_name") == ["c.md", "b.md", "a.md"]
    assert await names(ingestion, sort_by=[{"field": "size_bytes", "direction": "desc"}]) == ["b.md", "a.md", "c.md"]
    assert await names(ingestion, offset=1, limit=1) == ["b.md"]
    assert await names(ingestion, filters={"name": "B.M"}) == ["b.md"]
    assert await names(ingestion, filters={"name": "%"}) == []
    whole = await ingestion.call("POST", "/documents/browse", json={"limit": 1})
    assert (whole["total"], len(whole["documents"])) == (3, 1)
    assert (await ingestion.call("POST", "/documents/browse"))["total"] == 3


@pytest.mark.parametrize(
    "body",
    [
        {"filters": {"owner_id": "x"}},
        {"filters": {"$where": 1}},
        {"filters": {"a'; DROP TABLE documents; --": 1}},
        {"filters": {"__class__": 1}},
        {"filters": {"status": "ready' OR 1=1"}},
        {"filters": {"name": "a\x00b"}},
        {"filters": {"name": "\ud800"}},
        {"filters": {"tag_ids": ["\ud800"]}},
        {"sort_by": "uid; DROP TABLE documents"},
        {"sort_by": [{"field": "content_hash", "direction": "asc"}]},
        {"limit": 0},
        {"limit": 100_000},
        {"offset": -1},
        {"offset": "1"},
        {"offset": True},
        {"limit": "5"},
        {"limit": True},
    ],
)
async def test_what_is_not_on_the_list_is_refused(ingestion: Ingestion, body: dict[str, Any]) -> None:
    await ingestion.call("POST", "/documents/browse", json=body, status=422)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "\ud800", 5, None])
async def test_a_name_that_is_none_is_refused(ingestion: Ingestion, name: Any) -> None:
    await ingestion.call("POST", "/tags", json={"name": name}, status=422)


async def test_chunks_come_in_windows(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "\n\n".join(f"## Part {at}\n\nText." for at in range(5)))
    page = await ingestion.call("GET", f"/documents/{uid}/chunks?limit=2&offset=1")
    assert [chunk["section"] for chunk in page] == ["Part 1", "Part 2"]
    assert await ingestion.call("GET", f"/documents/{uid}/chunks?offset=9") == []


async def test_a_file_is_given_back_in_pieces(database: Database, tmp_path: Path) -> None:
    async with running(database, tmp_path / "staging", raw_piece_bytes=4) as ingestion:
        for data in (b"Text of pieces.", b"Text of pie!", b"One."):
            uid = await ingestion.put("a.md", data)
            async with ingestion.http.get(f"{BASE}/raw_content/{uid}") as response:
                assert (await response.read(), response.headers["Content-Length"]) == (data, str(len(data)))
        # One value in pieces is unpacked from its beginning for each of them, unless it is stored as it is.
        storage = """SELECT attstorage::text FROM pg_attribute
            WHERE attrelid = 'document_contents'::regclass AND attname = 'raw'"""
        assert await ingestion.rows(storage) == [("e",)]


@pytest.mark.parametrize("change", ["replaced", "deleted", "closed"])
async def test_the_pieces_of_a_file_are_of_one_upload_and_of_one_who_may_read(
    ingestion: Ingestion, change: str
) -> None:
    tag = await new_tag(ingestion, "Shared", user="alice")
    await share(ingestion, tag, users=["bob"])
    uid = await ingestion.put("a.md", "Text of pieces.", tags=[tag], user="alice")
    writer = PgVectorWriter(ingestion.database, model="hashing")
    library = store.Library(store.Statements(ingestion.database), writer, unheard(), piece_bytes=4)
    file = await library.raw(Reader("bob"), uid)
    assert file is not None
    assert await anext(file.pieces) == b"Text"
    if change == "replaced":
        await ingestion.put("a.md", "Another of them.", tags=[tag], user="alice")
    elif change == "deleted":
        await ingestion.call("DELETE", f"/documents/{uid}", user="alice", status=204)
    else:
        await share(ingestion, tag)
    with pytest.raises(Conflict):
        await anext(file.pieces)


async def test_a_download_that_cannot_go_on_ends_before_its_length() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise IndexUnavailable

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await Download(pieces()).stream_response(send)
    assert [(message.get("body"), message.get("more_body")) for message in sent] == [(None, None), (b"one", True)]


UNKNOWN = "0" * 32


async def test_what_is_anothers_looks_as_if_it_were_not_there(ingestion: Ingestion) -> None:
    tag = await new_tag(ingestion, "Private", user="alice")
    uid = await ingestion.put("a.md", "Secret.", tags=[tag], user="alice")
    (chunk,) = await ingestion.call("GET", f"/documents/{uid}/chunks", user="alice")
    for method, path in (
        ("GET", "/documents/metadata/{uid}"),
        ("PUT", "/document/metadata/{uid}?retrievable=false"),
        ("GET", "/documents/{uid}/chunks"),
        ("GET", "/documents/{uid}/chunks/" + chunk["chunk_uid"]),
        ("GET", "/markdown/{uid}"),
        ("GET", "/raw_content/{uid}"),
        ("DELETE", "/documents/{uid}"),
        ("PUT", "/documents/{uid}/tags"),
    ):
        answers = [
            await ingestion.call(method, path.format(uid=known), json={"tag_ids": []}, user="mallory", status=404)
            for known in (uid, UNKNOWN)
        ]
        assert answers[0] == answers[1]
    for method, path, body in (
        ("PUT", "/tags/{tag}", {"name": "Mine"}),
        ("DELETE", "/tags/{tag}", None),
        ("GET", "/tags/{tag}/access", None),
        ("PUT", "/tags/{tag}/access", {"everyone": True}),
    ):
        answers = [
            await ingestion.call(method, path.format(tag=known), json=body, user="mallory", status=404)
            for known in (tag, UNKNOWN)
        ]
        assert answers[0] == answers[1]
    assert await ingestion.call("GET", "/tags", user="mallory") == []
    assert await names(ingestion, user="mallory", filters={"document_uids": [uid], "tag_ids": [tag]}) == []
    refused = [
        await ingestion.upload(("b.md", b"x"), tags=[known], user="mallory", status=404) for known in (tag, UNKNOWN)
    ]
    assert refused[0] == refused[1]
    assert await names(ingestion, user="alice") == ["a.md"]


BY_USER, BY_GROUP, WITH_ALL = {"users": ["bob"]}, {"groups": ["other", "group-of-bob"]}, {"everyone": True}


async def share(ingestion: Ingestion, tag: str, user: str = "alice", **body: Any) -> Any:
    """Say who reads a library."""
    return await ingestion.call("PUT", f"/tags/{tag}/access", json=body, user=user)


@pytest.mark.parametrize("readers", [BY_USER, BY_GROUP, WITH_ALL])
async def test_a_shared_library_is_read_and_not_changed(ingestion: Ingestion, readers: dict[str, Any]) -> None:
    tag = await new_tag(ingestion, "Shared", user="alice")
    uid = await ingestion.put("a.md", "Text.", tags=[tag], user="alice")
    own = await ingestion.put("b.md", "His.", user="bob")
    await share(ingestion, tag, **readers)
    assert await names(ingestion, user="bob") == ["a.md", "b.md"]
    assert (await ingestion.call("GET", f"/markdown/{uid}", user="bob"))["content"] == "Text."
    assert [found["id"] for found in await ingestion.call("GET", "/tags", user="bob")] == [tag]
    for method, path, body in (
        ("DELETE", f"/documents/{uid}", None),
        ("PUT", f"/document/metadata/{uid}?retrievable=false", None),
        ("PUT", f"/tags/{tag}", {"name": "Mine"}),
        ("DELETE", f"/tags/{tag}", None),
        ("GET", f"/tags/{tag}/access", None),
        ("PUT", f"/tags/{tag}/access", {"users": ["bob", "carl"]}),
        ("PUT", f"/documents/{uid}/tags", {"tag_ids": []}),
        ("PUT", f"/documents/{own}/tags", {"tag_ids": [tag]}),
    ):
        answer = await ingestion.call(method, path, json=body, user="bob", status=403)
        assert answer["detail"]["code"] == "forbidden", path
    await ingestion.upload(("b.md", b"x"), tags=[tag], user="bob", status=404)
    await share(ingestion, tag)
    assert await names(ingestion, user="bob") == ["b.md"]
    await ingestion.call("GET", f"/markdown/{uid}", user="bob", status=404)


async def test_what_readers_there_are_is_replaced_as_a_whole(ingestion: Ingestion) -> None:
    tag = await new_tag(ingestion, "Shared", user="alice")
    nobody = {"everyone": False, "users": [], "groups": []}
    assert await ingestion.call("GET", f"/tags/{tag}/access", user="alice") == nobody
    told = await share(ingestion, tag, users=["carl", "bob", "carl"], groups=["/é"])
    assert told == {"everyone": False, "users": ["bob", "carl"], "groups": ["/é"]}
    assert await ingestion.call("GET", f"/tags/{tag}/access", user="alice") == told
    assert await share(ingestion, tag, everyone=True) == {**nobody, "everyone": True}
    assert (await ingestion.call("GET", "/tags", user="bob"))[0]["everyone"] is True
    assert await share(ingestion, tag) == nobody


@pytest.mark.parametrize(
    "body",
    [
        {"user": ["bob"]},
        {"users": "bob"},
        {"users": [""]},
        {"users": [None]},
        {"users": ["a\x00b"]},
        {"groups": ["x" * 256]},
        {"groups": [str(at) for at in range(501)]},
        {"users": [str(at) for at in range(501)]},
        {"everyone": "perhaps"},
        [],
    ],
)
async def test_readers_out_of_bounds_are_refused_and_change_nothing(ingestion: Ingestion, body: Any) -> None:
    tag = await new_tag(ingestion, "Shared")
    await share(ingestion, tag, user="admin", users=["bob"])
    answer = await ingestion.call("PUT", f"/tags/{tag}/access", json=body, status=422)
    assert answer["detail"]["code"] == "bad_request"
    assert (await ingestion.call("GET", f"/tags/{tag}/access"))["users"] == ["bob"]


async def test_the_bounds_of_readers_themselves_are_allowed(ingestion: Ingestion) -> None:
    tag = await new_tag(ingestion, "Shared")
    many = sorted(f"{at:0255}" for at in range(500))
    assert (await share(ingestion, tag, user="admin", users=many, groups=many))["groups"] == many


async def place(ingestion: Ingestion, uid: str, *tags: str, **options: Any) -> Any:
    """Move a document."""
    return await ingestion.call("PUT", f"/documents/{uid}/tags", json={"tag_ids": tags}, **options)


async def test_a_document_moves_between_libraries(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid = await ingestion.put("a.md", "Text.", tags=[one])
    assert (await place(ingestion, uid, two, two))["tag_names"] == ["Two"]
    assert [tag["document_count"] for tag in await ingestion.call("GET", "/tags")] == [0, 1]
    assert (await place(ingestion, uid, one, two))["tag_names"] == ["One", "Two"]
    assert (await place(ingestion, uid))["tag_names"] == []
    # It is known by its new place: the same path there is a new version of it, and at the old place a new document.
    await place(ingestion, uid, two)
    lines = await ingestion.upload(("a.md", b"Changed."), tags=[two])
    assert lines[-2]["document_uid"] == uid
    assert await ingestion.put("a.md", "Text.", tags=[one]) != uid


async def test_a_library_that_goes_leaves_what_was_moved_out_of_it(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid = await ingestion.put("a.md", "Text.", tags=[one])
    await place(ingestion, uid, two)
    await ingestion.call("DELETE", f"/tags/{one}", status=204)
    assert await names(ingestion) == ["a.md"]


async def test_one_path_stands_once_in_a_library(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    first, second = await ingestion.put("a.md", "Text.", tags=[one]), await ingestion.put("a.md", "Text.", tags=[two])
    assert (await place(ingestion, second, one, two, status=409))["detail"]["code"] == "conflict"
    assert await names(ingestion, filters={"tag_ids": [one]}) == ["a.md"]
    await place(ingestion, first)
    assert (await place(ingestion, second, one))["tag_names"] == ["One"]


async def test_a_file_that_would_replace_two_documents_replaces_none(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    for tag in (one, two):
        await ingestion.put("a.md", "Text.", tags=[tag])
    (end, *_) = await ingestion.upload(("a.md", b"Changed."), tags=[one, two])
    assert (end["status"], end["code"], end["document_uid"]) == ("error", "ambiguous", None)
    assert await ingestion.rows("SELECT content, version FROM chunks") == [("Text.", 1)] * 2


async def test_first_uploads_at_once_to_overlapping_libraries_leave_one_document_and_nothing_half(
    ingestion: Ingestion,
) -> None:
    tags = [await new_tag(ingestion, f"L{at}") for at in range(4)]
    chosen = [[tags[at], tags[(at + 1) % 4]] for at in range(4)] * 3
    ended = await asyncio.gather(
        *(ingestion.upload(("a.md", b"Text %d." % at), tags=some) for at, some in enumerate(chosen))
    )
    codes = {line.get("code") for lines in ended for line in lines if line["step"] == "finished"}
    assert codes <= {None, "superseded", "ambiguous"}
    taken = "SELECT t.tag_id FROM document_tags t JOIN documents d ON d.uid = t.document_uid ORDER BY t.tag_id"
    rows = await ingestion.rows(taken)
    assert len(rows) == len(set(rows))
    assert {row[0] for row in await ingestion.rows("SELECT status FROM documents")} == {"ready"}


async def test_a_place_is_taken_once_a_document_is_on_its_way_there(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid, other = await ingestion.put("a.md", "Text.", tags=[one]), await ingestion.put("a.md", "Other.")
    ingestion.embedder.entered.clear()
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as tasks:
        moving = tasks.create_task(ingestion.upload(("a.md", b"Changed."), tags=[one, two]))
        await ingestion.embedder.entered.wait()
        assert (await place(ingestion, other, two, status=409))["detail"]["code"] == "conflict"
        ingestion.embedder.entered.clear()
        later = tasks.create_task(ingestion.upload(("a.md", b"Newest."), tags=[two]))
        await ingestion.embedder.entered.wait()
        ingestion.embedder.hold.set()
    ended = [lines.result()[-2] for lines in (moving, later)]
    assert [(end["status"], end["document_uid"]) for end in ended] == [("error", uid), ("success", uid)]
    assert set((await ingestion.call("GET", f"/documents/metadata/{uid}"))["tag_ids"]) == {one, two}


class MovedMeanwhile(store.Statements):
    """Moves a document out of a library that is being deleted, once its documents have been looked up."""

    def __init__(self, ingestion: Ingestion, move: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(ingestion.database)
        self._move = move

    async def rows(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[Any]:
        found = await super().rows(op, statement, parameters)
        if op == "tag_documents":
            await self._move()
        return found


async def test_a_document_that_leaves_a_library_in_time_is_not_deleted_with_it(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    for name in ("kept.md", "out.md", "gone.md"):
        await ingestion.put(name, "Text.", tags=[one])
    uids = dict(await ingestion.rows("SELECT file_name, uid FROM documents"))

    async def move() -> None:
        await place(ingestion, uids["kept.md"], two)
        await place(ingestion, uids["out.md"])

    library = store.Library(
        MovedMeanwhile(ingestion, move), PgVectorWriter(ingestion.database, model="hashing"), unheard()
    )
    assert await library.delete_tag(Reader("admin"), one) is True
    assert await names(ingestion) == ["kept.md", "out.md"]


async def test_a_move_is_all_or_nothing(ingestion: Ingestion) -> None:
    mine, hers = await new_tag(ingestion, "Mine"), await new_tag(ingestion, "Hers", user="alice")
    uid = await ingestion.put("a.md", "Text.", tags=[mine])
    answers = [await place(ingestion, uid, other, status=404) for other in (hers, UNKNOWN)]
    assert answers == [{"detail": "Library not found."}] * 2
    assert (await ingestion.call("GET", f"/documents/metadata/{uid}"))["tag_names"] == ["Mine"]
    body: Any
    for body in ({}, {"tag_ids": None}, {"tag_ids": [1]}, {"tag_ids": ["a\x00b"]}, {"tag_ids": ["x"] * 101}, []):
        await ingestion.call("PUT", f"/documents/{uid}/tags", json=body, status=422)


async def test_an_attachment_stands_in_no_library(ingestion: Ingestion) -> None:
    tag = await new_tag(ingestion, "Shared")
    uid = await ingestion.put("a.md", "Text.")
    async with ingestion.database.writes.connection() as connection:
        await connection.execute("test", text("UPDATE documents SET session_id = 's'"))
        await connection.commit()
    assert (await place(ingestion, uid, tag, status=409))["detail"]["code"] == "conflict"
    assert await ingestion.rows("SELECT count(*) FROM document_tags") == [(0,)]


async def test_a_document_does_not_move_while_it_is_written(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid = await ingestion.put("a.md", "Text.", tags=[one])
    ingestion.embedder.entered.clear()
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ingestion.upload(("a.md", b"Changed."), tags=[one]))
        await ingestion.embedder.entered.wait()
        refused = await place(ingestion, uid, two, status=409)
        ingestion.embedder.hold.set()
    assert refused["detail"]["code"] == "conflict"
    assert (await place(ingestion, uid, two))["tag_names"] == ["Two"]


async def test_a_move_does_not_wait_for_the_end_of_a_write(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two")
    uid = await ingestion.put("a.md", "Text.", tags=[one])
    ingestion.embedder.entered.clear()
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ingestion.upload(("a.md", b"Changed."), tags=[one]))
        await ingestion.embedder.entered.wait()
        async with ingestion.database.writes.connection() as connection:  # as a write holds it
            await connection.execute("test", text("SELECT uid FROM documents FOR UPDATE"))
            assert (await place(ingestion, uid, two, status=409))["detail"]["code"] == "conflict"
            assert (await place(ingestion, uid, two, user="alice", status=404)) == {"detail": "Document not found."}
        ingestion.embedder.hold.set()


async def test_moves_of_one_document_at_once_end_as_one_of_them(ingestion: Ingestion) -> None:
    tags = [await new_tag(ingestion, f"L{at}") for at in range(6)]
    uid = await ingestion.put("a.md", "Text.")
    await asyncio.gather(*(place(ingestion, uid, tag) for tag in tags))
    assert len((await ingestion.call("GET", f"/documents/metadata/{uid}"))["tag_ids"]) == 1


async def test_a_library_is_renamed_and_moved_unless_the_name_is_taken(ingestion: Ingestion) -> None:
    one, two = await new_tag(ingestion, "One"), await new_tag(ingestion, "Two", path="a")
    answer = await ingestion.call("PUT", f"/tags/{two}", json={"name": " One ", "path": "/"}, status=409)
    assert answer["detail"]["code"] == "conflict"
    moved = await ingestion.call("PUT", f"/tags/{two}", json={"name": " One ", "path": "/a/b/"})
    assert (moved["name"], moved["full_path"]) == ("One", "a/b/One")
    described = await ingestion.call("PUT", f"/tags/{one}", json={"description": "First"})
    assert (described["name"], described["description"]) == ("One", "First")


async def test_two_users_may_have_files_of_one_name(ingestion: Ingestion) -> None:
    assert await ingestion.put("a.md", "Hers.", user="alice") != await ingestion.put("a.md", "His.", user="bob")
    assert await names(ingestion, user="alice") == ["a.md"]


@pytest.mark.parametrize("uid", ["x" * 200, "a%00b"])
async def test_an_id_that_cannot_be_one_is_refused(ingestion: Ingestion, uid: str) -> None:
    async with ingestion.http.get(f"{BASE}/documents/metadata/{uid}") as response:
        assert response.status == 422


async def test_postgres_away_is_said_as_such(database: Database, tmp_path: Path) -> None:
    async with running(database, tmp_path / "staging", pool_timeout=4.0) as ingestion, AsyncExitStack() as stack:
        uid = await ingestion.put("a.md", "Text.")
        for _ in range(30):
            await stack.enter_async_context(ingestion.database.main.connection())
        answer = await ingestion.call("GET", f"/documents/metadata/{uid}", status=503)
        assert answer["detail"]["code"] == "kf_unavailable"


def test_every_reason_has_its_sentence() -> None:
    assert set(SENTENCES) == set(Reason)
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())


def test_a_name_survives_in_the_header_and_cannot_break_out_of_it() -> None:
    assert attachment("a.md") == "attachment; filename=\"a.md\"; filename*=UTF-8''a.md"
    assert (
        attachment('é"\r\nX: y.md')
        == "attachment; filename=\"____X: y.md\"; filename*=UTF-8''%C3%A9%22%0D%0AX%3A%20y.md"
    )
