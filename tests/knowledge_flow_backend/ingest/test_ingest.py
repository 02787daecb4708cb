import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.knowledge_flow_backend.ingest import files, office
from tests.knowledge_flow_backend.ingest.ingestion import Ingestion, running
from tests.support.postgres import Database

OFFICE = "application/vnd.openxmlformats-officedocument"
MIME = {
    "docx": f"{OFFICE}.wordprocessingml.document",
    "pptx": f"{OFFICE}.presentationml.presentation",
    "xlsx": f"{OFFICE}.spreadsheetml.sheet",
}
ODD = (sys.executable, "-m", "tests.knowledge_flow_backend.ingest.odd_worker")


def ends(lines: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [(line["filename"], line["status"], line.get("code")) for line in lines if line["step"] == "finished"]


async def test_a_file_goes_through_its_stages_and_says_so_as_they_happen(ingestion: Ingestion) -> None:
    lines = await ingestion.upload(("notes.md", files.MARKDOWN.encode()))
    uid = lines[0]["document_uid"]
    told = [(line["step"], line["status"]) for line in lines]
    assert told == [
        ("parse", "in_progress"),
        ("parse", "success"),
        ("embed", "in_progress"),
        ("embed", "in_progress"),
        ("embed", "success"),
        ("index", "in_progress"),
        ("index", "success"),
        ("finished", "success"),
        ("done", "success"),
    ]
    assert {line["filename"] for line in lines[:-1]} == {"notes.md"}
    assert {line["document_uid"] for line in lines[:-1]} == {uid}
    assert (lines[-1]["total"], lines[-1]["succeeded"], lines[-1]["failed"]) == (1, 1, 0)
    document = await ingestion.call("GET", f"/documents/metadata/{uid}")
    assert document["status"] == "ready"
    assert {name: stage["status"] for name, stage in document["stages"].items()} == {
        "parse": "done",
        "embed": "done",
        "index": "done",
    }
    assert ingestion.staged() == []


@pytest.mark.parametrize(
    ("name", "data", "title", "mime"),
    [
        ("a.md", files.MARKDOWN.encode(), "Front title", "text/markdown"),
        ("a.html", files.HTML.encode(), "Turning the wheel", "text/html"),
        ("a.pdf", files.pdf([["First page."], ["Second page."]], title="A paper"), "A paper", "application/pdf"),
        ("a.txt", "Olá, mundo. \U0001f600 fim".encode("utf-16"), "a", "text/plain"),
        ("a.csv", b"key;value\nack;spool\n" * 40, "a", "text/csv"),
        ("a.jsonl", b'{"key": "ack", "value": "spool"}\n' * 40, "a", "application/x-ndjson"),
        ("a.docx", office.word(), "Turning the wheel", MIME["docx"]),
        ("a.pptx", office.slides(), "The wheel", MIME["pptx"]),
        ("a.xlsx", office.workbook(rows=60), "a", MIME["xlsx"]),
    ],
)
async def test_every_format_is_cited_at_its_place_and_given_back_as_it_came(
    ingestion: Ingestion, name: str, data: bytes, title: str, mime: str
) -> None:
    uid = await ingestion.put(name, data)
    document = await ingestion.call("GET", f"/documents/metadata/{uid}")
    assert (document["title"], document["mime_type"], document["size_bytes"]) == (title, mime, len(data))
    content = (await ingestion.call("GET", f"/markdown/{uid}"))["content"]
    chunks = await ingestion.call("GET", f"/documents/{uid}/chunks")
    assert len(chunks) == document["chunk_count"] > 0
    for chunk in chunks:
        assert content[chunk["start"] : chunk["end"]] == chunk["text"]
        one = await ingestion.call("GET", f"/documents/{uid}/chunks/{chunk['chunk_uid']}")
        assert one == {**chunk, "document": one["document"]}
        assert one["document"]["title"] == title
    async with ingestion.http.get(f"/knowledge-flow/v1/raw_content/{uid}") as response:
        assert await response.read() == data
        assert response.headers["Content-Disposition"].startswith(f'attachment; filename="{name}"')
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in response.headers["Content-Security-Policy"]


async def test_what_was_cut_is_said(ingestion: Ingestion) -> None:
    lines = await ingestion.upload(("a.xlsx", office.workbook()))
    said = "Hidden sheets were left out (1)."
    assert [line["cut"] for line in lines if "cut" in line] == [said]
    uid = lines[0]["document_uid"]
    assert (await ingestion.call("GET", f"/documents/metadata/{uid}"))["stages"]["parse"]["cut"] == said
    assert (await ingestion.call("GET", f"/markdown/{uid}"))["content"].endswith(f"*{said}*")


async def test_an_office_file_that_fails_says_why(ingestion: Ingestion) -> None:
    bomb = await asyncio.to_thread(office.repacked, office.word(), {"media/image.png": bytes(20_000_000)})
    lines = await ingestion.upload(("bomb.docx", bomb), ("locked.xlsx", office.encrypted()), ("cut.pptx", bomb[:900]))
    assert ends(lines) == [
        ("bomb.docx", "error", "unpacks_too_large"),
        ("locked.xlsx", "error", "encrypted"),
        ("cut.pptx", "error", "unreadable"),
    ]


async def test_pages_and_sections_reach_the_citation(ingestion: Ingestion) -> None:
    pdf = files.pdf([["Intro", "Opening."], ["Method", "How."]], outline=[(0, "Intro"), (1, "Method")])
    chunks = await ingestion.call("GET", f"/documents/{await ingestion.put('a.pdf', pdf)}/chunks")
    assert [(chunk["page"], chunk["section"]) for chunk in chunks] == [(1, "Intro"), (2, "Method")]
    uid = await ingestion.put("a.md", "# T\n\n## A\n\n### B\n\nx")
    chunks = await ingestion.call("GET", f"/documents/{uid}/chunks")
    assert [(chunk["page"], chunk["section"]) for chunk in chunks] == [(None, "A > B")]


async def test_what_is_embedded_names_document_and_section(ingestion: Ingestion) -> None:
    await ingestion.put("a.md", "# Title\n\n## Section\n\nText.")
    assert ingestion.embedder.texts == ["Title > Section\n\n# Title\n\n## Section\n\nText."]


async def test_the_same_bytes_change_nothing(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", files.MARKDOWN)
    before = (
        await ingestion.rows("SELECT * FROM documents"),
        await ingestion.rows("SELECT id, uid FROM chunks ORDER BY id"),
    )
    embedded = len(ingestion.embedder.texts)
    lines = await ingestion.upload(("a.md", files.MARKDOWN.encode()))
    assert [(line["step"], line["status"]) for line in lines] == [("finished", "unchanged"), ("done", "success")]
    assert lines[0]["document_uid"] == uid
    assert len(ingestion.embedder.texts) == embedded
    after = (
        await ingestion.rows("SELECT * FROM documents"),
        await ingestion.rows("SELECT id, uid FROM chunks ORDER BY id"),
    )
    assert after == before


async def test_a_changed_file_takes_the_place_of_the_old_one(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "# T\n\nThe old sentence.\n\n## Same\n\nKept.")
    old = await ingestion.call("GET", f"/documents/{uid}/chunks")
    assert await ingestion.put("a.md", "# T\n\nThe new sentence.\n\n## Same\n\nKept.") == uid
    new = await ingestion.call("GET", f"/documents/{uid}/chunks")
    assert [chunk["text"] for chunk in new] == ["# T\n\nThe new sentence.", "## Same\n\nKept."]
    assert old[1]["chunk_uid"] == new[1]["chunk_uid"]
    assert old[0]["chunk_uid"] != new[0]["chunk_uid"]
    assert (await ingestion.call("GET", f"/documents/metadata/{uid}"))["version"] == 2
    assert await ingestion.rows("SELECT count(*) FROM documents") == [(1,)]
    await ingestion.call("GET", f"/documents/{uid}/chunks/{old[0]['chunk_uid']}", status=404)


async def test_a_document_is_read_as_it_was_until_its_new_version_is_whole(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "The old sentence.")
    ingestion.embedder.entered.clear()
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.md", b"The new sentence.")))
        await ingestion.embedder.entered.wait()
        document = await ingestion.call("GET", f"/documents/metadata/{uid}")
        assert (document["status"], document["stages"]["embed"]["status"]) == ("ready", "running")
        assert "old" in (await ingestion.call("GET", f"/markdown/{uid}"))["content"]
        ingestion.embedder.hold.set()
        await upload
    assert "new" in (await ingestion.call("GET", f"/markdown/{uid}"))["content"]


async def test_a_new_version_that_cannot_be_read_leaves_the_old_one(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.pdf", files.pdf([["The old sentence."]]))
    assert ends(await ingestion.upload(("a.pdf", b"no pdf"))) == [("a.pdf", "error", "unreadable")]
    document = await ingestion.call("GET", f"/documents/metadata/{uid}")
    assert (document["status"], document["error"]["code"]) == ("ready", "unreadable")
    assert "old" in (await ingestion.call("GET", f"/markdown/{uid}"))["content"]


async def test_a_failed_file_says_why_and_the_others_go_on(ingestion: Ingestion) -> None:
    lines = await ingestion.upload(
        ("empty.md", b""),
        ("blank.txt", b" \n "),
        ("photo.png", b"\x89PNG"),
        ("noise.txt", bytes(range(256)) * 20),
        ("cut.pdf", files.pdf([["x"]])[:150]),
        ("good.md", b"Good."),
    )
    assert ends(lines) == [
        ("empty.md", "error", "empty"),
        ("blank.txt", "error", "empty"),
        ("photo.png", "error", "unsupported_type"),
        ("noise.txt", "error", "not_text"),
        ("cut.pdf", "error", "unreadable"),
        ("good.md", "success", None),
    ]
    assert (lines[-1]["status"], lines[-1]["failed"]) == ("partial", 5)
    failed = await ingestion.call(
        "POST", "/documents/browse", json={"filters": {"status": "failed"}, "sort_by": "title"}
    )
    shown = [(document["file_name"], document["error"]["code"]) for document in failed["documents"]]
    assert shown == [("blank.txt", "empty"), ("cut.pdf", "unreadable"), ("noise.txt", "not_text")]
    assert ingestion.staged() == []


async def test_a_failed_file_is_read_again_when_it_comes_again(ingestion: Ingestion) -> None:
    ingestion.embedder.fail = 3
    assert ends(await ingestion.upload(("a.md", b"Text."))) == [("a.md", "error", "embedding_failed")]
    uid = await ingestion.put("a.md", "Text.")
    document = await ingestion.call("GET", f"/documents/metadata/{uid}")
    assert (document["status"], document["error"]) == ("ready", None)


async def test_a_short_failure_of_the_embedder_is_waited_out(ingestion: Ingestion) -> None:
    ingestion.embedder.fail = 2
    await ingestion.put("a.md", "Text.")


async def test_a_loading_embedder_is_waited_for(ingestion: Ingestion) -> None:
    ingestion.embedder.state, ingestion.embedder.fail = "loading", 20
    await ingestion.put("a.md", "Text.")


async def test_an_index_of_another_model_is_said_as_such(ingestion: Ingestion) -> None:
    await ingestion.put("a.md", "Text.")
    async with ingestion.database.writes.connection() as connection:
        await connection.execute("test", text("UPDATE index_info SET embedding_model = 'another'"))
        await connection.commit()
    assert ends(await ingestion.upload(("b.md", b"Text."))) == [("b.md", "error", "schema_mismatch")]
    assert await ingestion.rows("SELECT status, error FROM documents WHERE file_name = 'b.md'") == [
        ("failed", "schema_mismatch")
    ]


async def test_a_disk_that_fails_is_said_as_such(ingestion: Ingestion) -> None:
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.md", b"Text.")))
        await ingestion.embedder.entered.wait()
        (folder,) = ingestion.staged()
        (folder / "content.txt").unlink()
        ingestion.embedder.hold.set()
    assert ends(upload.result()) == [("a.md", "error", "storage_failed")]
    assert ingestion.staged() == []


async def test_names_are_labels_and_never_paths(ingestion: Ingestion, tmp_path: Path) -> None:
    marker = tmp_path / "x.md"
    names = ["../../x.md", f"{marker}", "a/../../b.md", "C:\\x\\c.md", "d\u202e.md", "e" * 5000 + ".md"]
    lines = await ingestion.upload(*((name, f"Text of {at}.".encode()) for at, name in enumerate(names)))
    assert [status for _, status, _ in ends(lines)] == ["success"] * len(names)
    assert not marker.exists()
    assert sorted(os.listdir(tmp_path)) == ["staging"]  # noqa: PTH208 - names, not paths
    listed = (await ingestion.call("POST", "/documents/browse", json={}))["documents"]
    assert {document["file_path"] for document in listed} >= {"x.md", "a/b.md", "c.md", "d.md"}
    assert all(".." not in document["file_path"] for document in listed)
    assert max(len(document["file_name"]) for document in listed) <= 120


async def test_a_name_of_nothing_but_dots_is_missing(ingestion: Ingestion) -> None:
    assert (await ingestion.upload(("../..", b"x"), status=400))[0]["detail"]["code"] == "missing_filename"
    assert ingestion.staged() == []


async def test_the_same_name_in_two_directories_is_two_documents(ingestion: Ingestion) -> None:
    one = await ingestion.put("a/README.md", "Same.")
    two = await ingestion.put("b/README.md", "Same.")
    assert one != two


async def test_two_first_uploads_at_once_are_one_document(ingestion: Ingestion) -> None:
    uids = await asyncio.gather(*(ingestion.upload(("a.md", f"Text {at}.".encode())) for at in range(4)))
    assert len({line["document_uid"] for lines in uids for line in lines if "document_uid" in line}) == 1
    assert await ingestion.rows("SELECT count(*) FROM documents") == [(1,)]
    assert await ingestion.rows("SELECT count(*) FROM chunks") == [(1,)]


async def test_the_newest_upload_counts(ingestion: Ingestion) -> None:
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ingestion.upload(("a.md", b"Old.")))
        await ingestion.embedder.entered.wait()
        ingestion.embedder.entered.clear()
        second = group.create_task(ingestion.upload(("a.md", b"New.")))
        await ingestion.embedder.entered.wait()
        ingestion.embedder.hold.set()
    assert ends(first.result()) == [("a.md", "error", "superseded")]
    assert ends(second.result()) == [("a.md", "success", None)]
    assert await ingestion.rows("SELECT content FROM chunks") == [("New.",)]


async def test_what_is_deleted_in_the_middle_does_not_come_back(ingestion: Ingestion) -> None:
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.md", b"Text.")))
        await ingestion.embedder.entered.wait()
        (document,) = (await ingestion.call("POST", "/documents/browse", json={}))["documents"]
        await ingestion.call("DELETE", f"/documents/{document['document_uid']}", status=204)
        ingestion.embedder.hold.set()
    assert ends(upload.result()) == [("a.md", "error", "superseded")]
    assert await ingestion.rows("SELECT count(*) FROM documents") == [(0,)]


async def test_a_client_that_goes_away_does_not_stop_what_it_sent(ingestion: Ingestion) -> None:
    ingestion.embedder.hold.clear()
    upload = asyncio.ensure_future(ingestion.upload(("a.md", b"Text.")))
    await ingestion.embedder.entered.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    ingestion.embedder.hold.set()
    assert await ingestion.service.drain(20.0) == 0
    assert await ingestion.rows("SELECT status FROM documents") == [("ready",)]


async def test_the_end_of_the_service_leaves_what_it_interrupts_to_the_next(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.md", b"Text."), ("b.md", b"Text.")))
        await ingestion.embedder.entered.wait()
        assert await ingestion.service.drain(0.0) == 1
        assert (await ingestion.upload(("c.md", b"Text."), status=503))[0]["detail"]["code"] == "draining"
        await ingestion.tasks.aclose()
    assert ends(upload.result()) == [("a.md", "error", "interrupted"), ("b.md", "error", "interrupted")]
    assert await ingestion.rows("SELECT status, error FROM documents") == [("processing", None)] * 2
    assert ingestion.staged() == []
    ingestion.embedder.hold.set()
    async with running(database, tmp_path / "next") as later:
        await later.take_up_all()
        assert await later.rows("SELECT status, error, version FROM documents") == [("ready", None, 1)] * 2
        assert await later.rows("SELECT deaths FROM ingest_jobs") == []


async def test_a_second_of_cpu_in_a_parser_does_not_hold_the_loop(database: Database, tmp_path: Path) -> None:
    """The stall detector of the session watches."""
    async with running(database, tmp_path / "staging", command=ODD) as ingestion:
        await ingestion.put("a.txt", "block")


async def test_a_child_that_is_killed_costs_its_file_only(database: Database, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    os.mkfifo(mark)
    async with running(database, tmp_path / "staging", command=ODD) as ingestion, asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.txt", f"hang {mark}".encode()), ("b.txt", b"Fine.")))
        pid = int(await asyncio.to_thread(mark.read_text))
        os.kill(pid, 9)
        assert ends(await upload) == [("a.txt", "error", "out_of_memory"), ("b.txt", "success", None)]


async def test_a_parser_is_stopped_at_its_deadline(database: Database, tmp_path: Path) -> None:
    async with running(database, tmp_path / "staging", command=ODD, timeout_s=2.0) as ingestion:
        assert ends(await ingestion.upload(("a.txt", b"hang"))) == [("a.txt", "error", "timed_out")]


async def test_stages_are_measured(ingestion: Ingestion) -> None:
    await ingestion.upload(("a.md", b"Text."), ("b.pdf", b"broken"))
    value = ingestion.registry.get_sample_value
    assert value("app_ingest_stage_seconds_count", {"stage": "parse", "status": "ok"}) == 1
    assert value("app_ingest_stage_seconds_count", {"stage": "parse", "status": "error"}) == 1
    assert value("app_ingest_documents_total", {"status": "ok"}) == 1
    assert value("app_ingest_documents_total", {"status": "error"}) == 1
    assert value("app_ingest_chunks_total", {}) == 1
    assert value("app_phase_latency_seconds_count", {"phase": "ingest_write", "status": "ok"}) == 1
