import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import TextClause, text

from knowledge_flow_backend.errors import Conflict, IndexUnavailable
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.library import store
from knowledge_flow_backend.library.reasons import SENTENCES, Reason
from knowledge_flow_backend.library.router import Download, attachment
from knowledge_flow_backend.search.pgvector_writer import PgVectorWriter
from tests.knowledge_flow_backend.ingest.lab import BASE, Lab, running
from tests.support.postgres import Database


async def new_tag(lab: Lab, name: str, user: str = "admin", **more: Any) -> str:
    body = {"name": name, "type": "document", **more}
    return str((await lab.call("POST", "/tags", json=body, user=user, status=201))["id"])


async def names(lab: Lab, user: str = "admin", **body: Any) -> list[str]:
    found = await lab.call("POST", "/documents/browse", json={"sort_by": "file_name", **body}, user=user)
    return [document["file_name"] for document in found["documents"]]


async def test_a_library_is_made_listed_changed_and_deleted(lab: Lab) -> None:
    made = await lab.call("POST", "/tags", json={"name": "Docs", "type": "document", "path": "/a/b/"}, status=201)
    assert (made["name"], made["full_path"], made["document_count"]) == ("Docs", "a/b/Docs", 0)
    assert await lab.call("GET", "/tags") == [made]
    changed = await lab.call("PUT", f"/tags/{made['id']}", json={"name": "Manuals"})
    assert (changed["full_path"], changed["id"]) == ("a/b/Manuals", made["id"])
    await lab.call("DELETE", f"/tags/{made['id']}", status=204)
    assert await lab.call("GET", "/tags") == []
    await lab.call("DELETE", f"/tags/{made['id']}", status=404)


async def test_a_name_is_taken_once_in_a_place(lab: Lab) -> None:
    await new_tag(lab, "Docs")
    await new_tag(lab, "Docs", path="other")
    answer = await lab.call("POST", "/tags", json={"name": "Docs"}, status=409)
    assert answer["detail"]["code"] == "conflict"
    await new_tag(lab, "Docs", user="bob")


async def test_documents_stand_in_the_libraries_they_were_sent_to(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid = await lab.put("a.md", "Text.", tags=[one, two])
    document = await lab.call("GET", f"/documents/metadata/{uid}")
    assert (set(document["tag_ids"]), set(document["tag_names"])) == ({one, two}, {"One", "Two"})
    await lab.put("b.md", "Text.", tags=[one])
    assert await names(lab, filters={"tag_ids": [one]}) == ["a.md", "b.md"]
    assert await names(lab, filters={"tag_ids": [two]}) == ["a.md"]
    assert [tag["document_count"] for tag in await lab.call("GET", "/tags")] == [2, 1]


async def test_the_same_name_in_two_libraries_is_two_documents(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    assert await lab.put("a.md", "Text.", tags=[one]) != await lab.put("a.md", "Text.", tags=[two])


async def test_the_same_bytes_join_a_further_library(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid = await lab.put("a.md", "Text.", tags=[one])
    lines = await lab.upload(("a.md", b"Text."), tags=[one, two])
    assert (lines[0]["status"], lines[0]["document_uid"]) == ("unchanged", uid)
    assert await names(lab, filters={"tag_ids": [two]}) == ["a.md"]


async def test_a_library_takes_with_it_only_what_stands_nowhere_else(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    both, alone = await lab.put("a.md", "Text.", tags=[one, two]), await lab.put("b.md", "Text.", tags=[one])
    await lab.call("DELETE", f"/tags/{one}", status=204)
    assert await names(lab) == ["a.md"]
    await lab.call("GET", f"/markdown/{alone}", status=404)
    assert (await lab.call("GET", f"/documents/metadata/{both}"))["tag_names"] == ["Two"]
    assert await lab.rows("SELECT count(*) FROM chunks") == [(1,)]


async def test_deleting_a_document_deletes_all_of_it(lab: Lab) -> None:
    uid = await lab.put("a.md", "Text.")
    await lab.call("DELETE", f"/documents/{uid}", status=204)
    await lab.call("DELETE", f"/documents/{uid}", status=404)
    for table in ("documents", "document_contents", "chunks", "document_tags"):
        assert await lab.rows(f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608 - names of this list


async def test_a_document_can_be_kept_out_of_searches(lab: Lab) -> None:
    uid = await lab.put("a.md", "Text.")
    changed = await lab.call("PUT", f"/document/metadata/{uid}?retrievable=false")
    assert changed["retrievable"] is False
    assert await names(lab, filters={"retrievable": True}) == []
    assert await names(lab, filters={"retrievable": False}) == ["a.md"]


async def test_a_listing_has_windows_orders_and_filters(lab: Lab) -> None:
    await lab.upload(*((f"{letter}.md", letter.encode() * (at + 1)) for at, letter in enumerate("cab")))
    assert await names(lab) == ["a.md", "b.md", "c.md"]
    assert await names(lab, sort_by="-file_name") == ["c.md", "b.md", "a.md"]
    assert await names(lab, sort_by=[{"field": "size_bytes", "direction": "desc"}]) == ["b.md", "a.md", "c.md"]
    assert await names(lab, offset=1, limit=1) == ["b.md"]
    assert await names(lab, filters={"name": "B.M"}) == ["b.md"]
    assert await names(lab, filters={"name": "%"}) == []
    whole = await lab.call("POST", "/documents/browse", json={"limit": 1})
    assert (whole["total"], len(whole["documents"])) == (3, 1)
    assert (await lab.call("POST", "/documents/browse"))["total"] == 3


@pytest.mark.parametrize(
    "body",
    [
        {"filters": {"owner_id": "x"}},
        {"filters": {"$where": 1}},
        {"filters": {"a'; DROP TABLE documents; --": 1}},
        {"filters": {"__class__": 1}},
        {"filters": {"status": "ready' OR 1=1"}},
        {"filters": {"name": "a\x00b"}},
        {"sort_by": "uid; DROP TABLE documents"},
        {"sort_by": [{"field": "content_hash", "direction": "asc"}]},
        {"limit": 0},
        {"limit": 100_000},
        {"offset": -1},
    ],
)
async def test_what_is_not_on_the_list_is_refused(lab: Lab, body: dict[str, Any]) -> None:
    await lab.call("POST", "/documents/browse", json=body, status=422)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", 5, None])
async def test_a_name_that_is_none_is_refused(lab: Lab, name: Any) -> None:
    await lab.call("POST", "/tags", json={"name": name}, status=422)


async def test_chunks_come_in_windows(lab: Lab) -> None:
    uid = await lab.put("a.md", "\n\n".join(f"## Part {at}\n\nText." for at in range(5)))
    page = await lab.call("GET", f"/documents/{uid}/chunks?limit=2&offset=1")
    assert [chunk["section"] for chunk in page] == ["Part 1", "Part 2"]
    assert await lab.call("GET", f"/documents/{uid}/chunks?offset=9") == []


async def test_a_file_is_given_back_in_pieces(database: Database, tmp_path: Path) -> None:
    async with running(database, tmp_path / "staging", raw_piece_bytes=4) as lab:
        for data in (b"Text of pieces.", b"Text of pie!", b"One."):
            uid = await lab.put("a.md", data)
            async with lab.http.get(f"{BASE}/raw_content/{uid}") as response:
                assert (await response.read(), response.headers["Content-Length"]) == (data, str(len(data)))
        # One value in pieces is unpacked from its beginning for each of them, unless it is stored as it is.
        storage = """SELECT attstorage::text FROM pg_attribute
            WHERE attrelid = 'document_contents'::regclass AND attname = 'raw'"""
        assert await lab.rows(storage) == [("e",)]


@pytest.mark.parametrize("change", ["replaced", "deleted", "closed"])
async def test_the_pieces_of_a_file_are_of_one_upload_and_of_one_who_may_read(lab: Lab, change: str) -> None:
    tag = await new_tag(lab, "Shared", user="alice")
    await share(lab, tag, users=["bob"])
    uid = await lab.put("a.md", "Text of pieces.", tags=[tag], user="alice")
    writer = PgVectorWriter(lab.database, model="hashing")
    library = store.Library(store.Statements(lab.database), writer, piece_bytes=4)
    file = await library.raw(Reader("bob"), uid)
    assert file is not None
    assert await anext(file.pieces) == b"Text"
    if change == "replaced":
        await lab.put("a.md", "Another of them.", tags=[tag], user="alice")
    elif change == "deleted":
        await lab.call("DELETE", f"/documents/{uid}", user="alice", status=204)
    else:
        await share(lab, tag)
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


async def test_what_is_anothers_looks_as_if_it_were_not_there(lab: Lab) -> None:
    tag = await new_tag(lab, "Private", user="alice")
    uid = await lab.put("a.md", "Secret.", tags=[tag], user="alice")
    (chunk,) = await lab.call("GET", f"/documents/{uid}/chunks", user="alice")
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
            await lab.call(method, path.format(uid=known), json={"tag_ids": []}, user="mallory", status=404)
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
            await lab.call(method, path.format(tag=known), json=body, user="mallory", status=404)
            for known in (tag, UNKNOWN)
        ]
        assert answers[0] == answers[1]
    assert await lab.call("GET", "/tags", user="mallory") == []
    assert await names(lab, user="mallory", filters={"document_uids": [uid], "tag_ids": [tag]}) == []
    refused = [await lab.upload(("b.md", b"x"), tags=[known], user="mallory", status=404) for known in (tag, UNKNOWN)]
    assert refused[0] == refused[1]
    assert await names(lab, user="alice") == ["a.md"]


BY_USER, BY_GROUP, WITH_ALL = {"users": ["bob"]}, {"groups": ["other", "group-of-bob"]}, {"everyone": True}


async def share(lab: Lab, tag: str, user: str = "alice", **body: Any) -> Any:
    """Say who reads a library."""
    return await lab.call("PUT", f"/tags/{tag}/access", json=body, user=user)


@pytest.mark.parametrize("readers", [BY_USER, BY_GROUP, WITH_ALL])
async def test_a_shared_library_is_read_and_not_changed(lab: Lab, readers: dict[str, Any]) -> None:
    tag = await new_tag(lab, "Shared", user="alice")
    uid = await lab.put("a.md", "Text.", tags=[tag], user="alice")
    own = await lab.put("b.md", "His.", user="bob")
    await share(lab, tag, **readers)
    assert await names(lab, user="bob") == ["a.md", "b.md"]
    assert (await lab.call("GET", f"/markdown/{uid}", user="bob"))["content"] == "Text."
    assert [found["id"] for found in await lab.call("GET", "/tags", user="bob")] == [tag]
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
        answer = await lab.call(method, path, json=body, user="bob", status=403)
        assert answer["detail"]["code"] == "forbidden", path
    await lab.upload(("b.md", b"x"), tags=[tag], user="bob", status=404)
    await share(lab, tag)
    assert await names(lab, user="bob") == ["b.md"]
    await lab.call("GET", f"/markdown/{uid}", user="bob", status=404)


async def test_what_readers_there_are_is_replaced_as_a_whole(lab: Lab) -> None:
    tag = await new_tag(lab, "Shared", user="alice")
    nobody = {"everyone": False, "users": [], "groups": []}
    assert await lab.call("GET", f"/tags/{tag}/access", user="alice") == nobody
    told = await share(lab, tag, users=["carl", "bob", "carl"], groups=["/é"])
    assert told == {"everyone": False, "users": ["bob", "carl"], "groups": ["/é"]}
    assert await lab.call("GET", f"/tags/{tag}/access", user="alice") == told
    assert await share(lab, tag, everyone=True) == {**nobody, "everyone": True}
    assert (await lab.call("GET", "/tags", user="bob"))[0]["everyone"] is True
    assert await share(lab, tag) == nobody


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
async def test_readers_out_of_bounds_are_refused_and_change_nothing(lab: Lab, body: Any) -> None:
    tag = await new_tag(lab, "Shared")
    await share(lab, tag, user="admin", users=["bob"])
    answer = await lab.call("PUT", f"/tags/{tag}/access", json=body, status=422)
    assert answer["detail"]["code"] == "bad_request"
    assert (await lab.call("GET", f"/tags/{tag}/access"))["users"] == ["bob"]


async def test_the_bounds_of_readers_themselves_are_allowed(lab: Lab) -> None:
    tag = await new_tag(lab, "Shared")
    many = sorted(f"{at:0255}" for at in range(500))
    assert (await share(lab, tag, user="admin", users=many, groups=many))["groups"] == many


async def place(lab: Lab, uid: str, *tags: str, **options: Any) -> Any:
    """Move a document."""
    return await lab.call("PUT", f"/documents/{uid}/tags", json={"tag_ids": tags}, **options)


async def test_a_document_moves_between_libraries(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid = await lab.put("a.md", "Text.", tags=[one])
    assert (await place(lab, uid, two, two))["tag_names"] == ["Two"]
    assert [tag["document_count"] for tag in await lab.call("GET", "/tags")] == [0, 1]
    assert (await place(lab, uid, one, two))["tag_names"] == ["One", "Two"]
    assert (await place(lab, uid))["tag_names"] == []
    # It is known by its new place: the same path there is a new version of it, and at the old place a new document.
    await place(lab, uid, two)
    lines = await lab.upload(("a.md", b"Changed."), tags=[two])
    assert lines[-2]["document_uid"] == uid
    assert await lab.put("a.md", "Text.", tags=[one]) != uid


async def test_a_library_that_goes_leaves_what_was_moved_out_of_it(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid = await lab.put("a.md", "Text.", tags=[one])
    await place(lab, uid, two)
    await lab.call("DELETE", f"/tags/{one}", status=204)
    assert await names(lab) == ["a.md"]


async def test_one_path_stands_once_in_a_library(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    first, second = await lab.put("a.md", "Text.", tags=[one]), await lab.put("a.md", "Text.", tags=[two])
    assert (await place(lab, second, one, two, status=409))["detail"]["code"] == "conflict"
    assert await names(lab, filters={"tag_ids": [one]}) == ["a.md"]
    await place(lab, first)
    assert (await place(lab, second, one))["tag_names"] == ["One"]


async def test_a_file_that_would_replace_two_documents_replaces_none(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    for tag in (one, two):
        await lab.put("a.md", "Text.", tags=[tag])
    (end, *_) = await lab.upload(("a.md", b"Changed."), tags=[one, two])
    assert (end["status"], end["code"], end["document_uid"]) == ("error", "ambiguous", None)
    assert await lab.rows("SELECT content, version FROM chunks") == [("Text.", 1)] * 2


async def test_first_uploads_at_once_to_overlapping_libraries_leave_one_document_and_nothing_half(lab: Lab) -> None:
    tags = [await new_tag(lab, f"L{at}") for at in range(4)]
    chosen = [[tags[at], tags[(at + 1) % 4]] for at in range(4)] * 3
    ended = await asyncio.gather(*(lab.upload(("a.md", b"Text %d." % at), tags=some) for at, some in enumerate(chosen)))
    codes = {line.get("code") for lines in ended for line in lines if line["step"] == "finished"}
    assert codes <= {None, "superseded", "ambiguous"}
    taken = "SELECT t.tag_id FROM document_tags t JOIN documents d ON d.uid = t.document_uid ORDER BY t.tag_id"
    rows = await lab.rows(taken)
    assert len(rows) == len(set(rows))
    assert {row[0] for row in await lab.rows("SELECT status FROM documents")} == {"ready"}


async def test_a_place_is_taken_once_a_document_is_on_its_way_there(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid, other = await lab.put("a.md", "Text.", tags=[one]), await lab.put("a.md", "Other.")
    lab.embedder.entered.clear()
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as tasks:
        moving = tasks.create_task(lab.upload(("a.md", b"Changed."), tags=[one, two]))
        await lab.embedder.entered.wait()
        assert (await place(lab, other, two, status=409))["detail"]["code"] == "conflict"
        lab.embedder.entered.clear()
        later = tasks.create_task(lab.upload(("a.md", b"Newest."), tags=[two]))
        await lab.embedder.entered.wait()
        lab.embedder.hold.set()
    ended = [lines.result()[-2] for lines in (moving, later)]
    assert [(end["status"], end["document_uid"]) for end in ended] == [("error", uid), ("success", uid)]
    assert set((await lab.call("GET", f"/documents/metadata/{uid}"))["tag_ids"]) == {one, two}


class MovedMeanwhile(store.Statements):
    """Moves a document out of a library that is being deleted, once its documents have been looked up."""

    def __init__(self, lab: Lab, move: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(lab.database)
        self._move = move

    async def rows(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[Any]:
        found = await super().rows(op, statement, parameters)
        if op == "tag_documents":
            await self._move()
        return found


async def test_a_document_that_leaves_a_library_in_time_is_not_deleted_with_it(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    for name in ("kept.md", "out.md", "gone.md"):
        await lab.put(name, "Text.", tags=[one])
    uids = dict(await lab.rows("SELECT file_name, uid FROM documents"))

    async def move() -> None:
        await place(lab, uids["kept.md"], two)
        await place(lab, uids["out.md"])

    library = store.Library(MovedMeanwhile(lab, move), PgVectorWriter(lab.database, model="hashing"))
    assert await library.delete_tag(Reader("admin"), one) is True
    assert await names(lab) == ["kept.md", "out.md"]


async def test_a_move_is_all_or_nothing(lab: Lab) -> None:
    mine, hers = await new_tag(lab, "Mine"), await new_tag(lab, "Hers", user="alice")
    uid = await lab.put("a.md", "Text.", tags=[mine])
    answers = [await place(lab, uid, other, status=404) for other in (hers, UNKNOWN)]
    assert answers == [{"detail": "Library not found."}] * 2
    assert (await lab.call("GET", f"/documents/metadata/{uid}"))["tag_names"] == ["Mine"]
    body: Any
    for body in ({}, {"tag_ids": None}, {"tag_ids": [1]}, {"tag_ids": ["a\x00b"]}, {"tag_ids": ["x"] * 101}, []):
        await lab.call("PUT", f"/documents/{uid}/tags", json=body, status=422)


async def test_an_attachment_stands_in_no_library(lab: Lab) -> None:
    tag = await new_tag(lab, "Shared")
    uid = await lab.put("a.md", "Text.")
    async with lab.database.ingest.connection() as connection:
        await connection.execute("test", text("UPDATE documents SET session_id = 's'"))
        await connection.commit()
    assert (await place(lab, uid, tag, status=409))["detail"]["code"] == "conflict"
    assert await lab.rows("SELECT count(*) FROM document_tags") == [(0,)]


async def test_a_document_does_not_move_while_it_is_written(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid = await lab.put("a.md", "Text.", tags=[one])
    lab.embedder.entered.clear()
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lab.upload(("a.md", b"Changed."), tags=[one]))
        await lab.embedder.entered.wait()
        refused = await place(lab, uid, two, status=409)
        lab.embedder.hold.set()
    assert refused["detail"]["code"] == "conflict"
    assert (await place(lab, uid, two))["tag_names"] == ["Two"]


async def test_a_move_does_not_wait_for_the_end_of_a_write(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two")
    uid = await lab.put("a.md", "Text.", tags=[one])
    lab.embedder.entered.clear()
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lab.upload(("a.md", b"Changed."), tags=[one]))
        await lab.embedder.entered.wait()
        async with lab.database.ingest.connection() as connection:  # as a write holds it
            await connection.execute("test", text("SELECT uid FROM documents FOR UPDATE"))
            assert (await place(lab, uid, two, status=409))["detail"]["code"] == "conflict"
            assert (await place(lab, uid, two, user="alice", status=404)) == {"detail": "Document not found."}
        lab.embedder.hold.set()


async def test_moves_of_one_document_at_once_end_as_one_of_them(lab: Lab) -> None:
    tags = [await new_tag(lab, f"L{at}") for at in range(6)]
    uid = await lab.put("a.md", "Text.")
    await asyncio.gather(*(place(lab, uid, tag) for tag in tags))
    assert len((await lab.call("GET", f"/documents/metadata/{uid}"))["tag_ids"]) == 1


async def test_a_library_is_renamed_and_moved_unless_the_name_is_taken(lab: Lab) -> None:
    one, two = await new_tag(lab, "One"), await new_tag(lab, "Two", path="a")
    answer = await lab.call("PUT", f"/tags/{two}", json={"name": " One ", "path": "/"}, status=409)
    assert answer["detail"]["code"] == "conflict"
    moved = await lab.call("PUT", f"/tags/{two}", json={"name": " One ", "path": "/a/b/"})
    assert (moved["name"], moved["full_path"]) == ("One", "a/b/One")
    described = await lab.call("PUT", f"/tags/{one}", json={"description": "First"})
    assert (described["name"], described["description"]) == ("One", "First")


async def test_two_users_may_have_files_of_one_name(lab: Lab) -> None:
    assert await lab.put("a.md", "Hers.", user="alice") != await lab.put("a.md", "His.", user="bob")
    assert await names(lab, user="alice") == ["a.md"]


@pytest.mark.parametrize("uid", ["x" * 200, "a%00b"])
async def test_an_id_that_cannot_be_one_is_refused(lab: Lab, uid: str) -> None:
    async with lab.http.get(f"{BASE}/documents/metadata/{uid}") as response:
        assert response.status == 422


async def test_postgres_away_is_said_as_such(lab: Lab) -> None:
    uid = await lab.put("a.md", "Text.")
    held = [lab.database.main.connection() for _ in range(30)]
    await asyncio.gather(*(connection.__aenter__() for connection in held))
    try:
        answer = await lab.call("GET", f"/documents/metadata/{uid}", status=503)
        assert answer["detail"]["code"] == "kf_unavailable"
    finally:
        for connection in held:
            await connection.__aexit__(None, None, None)


def test_every_reason_has_its_sentence() -> None:
    assert set(SENTENCES) == set(Reason)
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())


def test_a_name_survives_in_the_header_and_cannot_break_out_of_it() -> None:
    assert attachment("a.md") == "attachment; filename=\"a.md\"; filename*=UTF-8''a.md"
    assert (
        attachment('é"\r\nX: y.md')
        == "attachment; filename=\"____X: y.md\"; filename*=UTF-8''%C3%A9%22%0D%0AX%3A%20y.md"
    )
