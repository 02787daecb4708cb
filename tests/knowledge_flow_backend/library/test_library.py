import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from knowledge_flow_backend.library.reasons import SENTENCES, Reason
from knowledge_flow_backend.library.router import attachment
from tests.knowledge_flow_backend.ingest.lab import BASE, Lab


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
    ):
        answers = [
            await lab.call(method, path.format(uid=known), user="mallory", status=404) for known in (uid, UNKNOWN)
        ]
        assert answers[0] == answers[1]
    for method, options in (("PUT", {"json": {"name": "Mine"}}), ("DELETE", {})):
        answers = [
            await lab.call(method, f"/tags/{known}", user="mallory", status=404, **options) for known in (tag, UNKNOWN)
        ]
        assert answers[0] == answers[1]
    assert await lab.call("GET", "/tags", user="mallory") == []
    assert await names(lab, user="mallory", filters={"document_uids": [uid], "tag_ids": [tag]}) == []
    refused = [await lab.upload(("b.md", b"x"), tags=[known], user="mallory", status=404) for known in (tag, UNKNOWN)]
    assert refused[0] == refused[1]
    assert await names(lab, user="alice") == ["a.md"]


@pytest.mark.parametrize(
    "share", ["everyone = true", "reader_users = '{bob}'", "reader_groups = '{other,group-of-bob}'"]
)
async def test_a_shared_library_is_read_and_not_written(lab: Lab, share: str) -> None:
    tag = await new_tag(lab, "Shared", user="alice")
    uid = await lab.put("a.md", "Text.", tags=[tag], user="alice")
    async with lab.database.ingest.connection() as connection:
        await connection.execute("test", text(f"UPDATE tags SET {share}"))  # noqa: S608 - words of this test
        await connection.commit()
    assert await names(lab, user="bob") == ["a.md"]
    assert (await lab.call("GET", f"/markdown/{uid}", user="bob"))["content"] == "Text."
    assert [found["id"] for found in await lab.call("GET", "/tags", user="bob")] == [tag]
    await lab.call("DELETE", f"/documents/{uid}", user="bob", status=403)
    await lab.call("PUT", f"/document/metadata/{uid}?retrievable=false", user="bob", status=403)
    await lab.call("PUT", f"/tags/{tag}", json={"name": "Mine"}, user="bob", status=403)
    await lab.call("DELETE", f"/tags/{tag}", user="bob", status=403)
    await lab.upload(("b.md", b"x"), tags=[tag], user="bob", status=404)


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
