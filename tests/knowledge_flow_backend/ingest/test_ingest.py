import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.knowledge_flow_backend.ingest import files, office
from tests.knowledge_flow_backend.ingest.lab import Lab, running
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


async def test_a_file_goes_through_its_stages_and_says_so_as_they_happen(lab: Lab) -> None:
    lines = await lab.upload(("notes.md", files.MARKDOWN.encode()))
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
    document = await lab.call("GET", f"/documents/metadata/{uid}")
    assert document["status"] == "ready"
    assert {name: stage["status"] for name, stage in document["stages"].items()} == {
        "parse": "done",
        "embed": "done",
        "index": "done",
    }
    assert lab.staged() == []


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
    lab: Lab, name: str, data: bytes, title: str, mime: str
) -> None:
    uid = await lab.put(name, data)
    document = await lab.call("GET", f"/documents/metadata/{uid}")
    assert (document["title"], document["mime_type"], document["size_bytes"]) == (title, mime, len(data))
    content = (await lab.call("GET", f"/markdown/{uid}"))["content"]
    chunks = await lab.call("GET", f"/documents/{uid}/chunks")
    assert len(chunks) == document["chunk_count"] > 0
    for chunk in chunks:
        assert content[chunk["start"] : chunk["end"]] == chunk["text"]
        one = await lab.call("GET", f"/documents/{uid}/chunks/{chunk['chunk_uid']}")
        assert one == {**chunk, "document": one["document"]}
        assert one["document"]["title"] == title
    async with lab.http.get(f"/knowledge-flow/v1/raw_content/{uid}") as response:
        assert await response.read() == data
        assert response.headers["Content-Disposition"].startswith(f'attachment; filename="{name}"')
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in response.headers["Content-Security-Policy"]


async def test_what_was_cut_is_said(lab: Lab) -> None:
    lines = await lab.upload(("a.xlsx", office.workbook()))
    said = "Hidden sheets were left out (1)."
    assert [line["cut"] for line in lines if "cut" in line] == [said]
    uid = lines[0]["document_uid"]
    assert (await lab.call("GET", f"/documents/metadata/{uid}"))["stages"]["parse"]["cut"] == said
    assert (await lab.call("GET", f"/markdown/{uid}"))["content"].endswith(f"*{said}*")


async def test_an_office_file_that_fails_says_why(lab: Lab) -> None:
    bomb = await asyncio.to_thread(office.repacked, office.word(), {"media/image.png": bytes(20_000_000)})
    lines = await lab.upload(("bomb.docx", bomb), ("locked.xlsx", office.encrypted()), ("cut.pptx", bomb[:900]))
    assert ends(lines) == [
        ("bomb.docx", "error", "unpacks_too_large"),
        ("locked.xlsx", "error", "encrypted"),
        ("cut.pptx", "error", "unreadable"),
    ]


async def test_pages_and_sections_reach_the_citation(lab: Lab) -> None:
    pdf = files.pdf([["Intro", "Opening."], ["Method", "How."]], outline=[(0, "Intro"), (1, "Method")])
    chunks = await lab.call("GET", f"/documents/{await lab.put('a.pdf', pdf)}/chunks")
    assert [(chunk["page"], chunk["section"]) for chunk in chunks] == [(1, "Intro"), (2, "Method")]
    uid = await lab.put("a.md", "# T\n\n## A\n\n### B\n\nx")
    chunks = await lab.call("GET", f"/documents/{uid}/chunks")
    assert [(chunk["page"], chunk["section"]) for chunk in chunks] == [(None, "A > B")]


async def test_what_is_embedded_names_document_and_section(lab: Lab) -> None:
    await lab.put("a.md", "# Title\n\n## Section\n\nText.")
    assert lab.embedder.texts == ["Title > Section\n\n# Title\n\n## Section\n\nText."]


async def test_the_same_bytes_change_nothing(lab: Lab) -> None:
    uid = await lab.put("a.md", files.MARKDOWN)
    before = await lab.rows("SELECT * FROM documents"), await lab.rows("SELECT id, uid FROM chunks ORDER BY id")
    embedded = len(lab.embedder.texts)
    lines = await lab.upload(("a.md", files.MARKDOWN.encode()))
    assert [(line["step"], line["status"]) for line in lines] == [("finished", "unchanged"), ("done", "success")]
    assert lines[0]["document_uid"] == uid
    assert len(lab.embedder.texts) == embedded
    after = await lab.rows("SELECT * FROM documents"), await lab.rows("SELECT id, uid FROM chunks ORDER BY id")
    assert after == before


async def test_a_changed_file_takes_the_place_of_the_old_one(lab: Lab) -> None:
    uid = await lab.put("a.md", "# T\n\nThe old sentence.\n\n## Same\n\nKept.")
    old = await lab.call("GET", f"/documents/{uid}/chunks")
    assert await lab.put("a.md", "# T\n\nThe new sentence.\n\n## Same\n\nKept.") == uid
    new = await lab.call("GET", f"/documents/{uid}/chunks")
    assert [chunk["text"] for chunk in new] == ["# T\n\nThe new sentence.", "## Same\n\nKept."]
    assert old[1]["chunk_uid"] == new[1]["chunk_uid"]
    assert old[0]["chunk_uid"] != new[0]["chunk_uid"]
    assert (await lab.call("GET", f"/documents/metadata/{uid}"))["version"] == 2
    assert await lab.rows("SELECT count(*) FROM documents") == [(1,)]
    await lab.call("GET", f"/documents/{uid}/chunks/{old[0]['chunk_uid']}", status=404)


async def test_a_document_is_read_as_it_was_until_its_new_version_is_whole(lab: Lab) -> None:
    uid = await lab.put("a.md", "The old sentence.")
    lab.embedder.entered.clear()
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(lab.upload(("a.md", b"The new sentence.")))
        await lab.embedder.entered.wait()
        document = await lab.call("GET", f"/documents/metadata/{uid}")
        assert (document["status"], document["stages"]["embed"]["status"]) == ("ready", "running")
        assert "old" in (await lab.call("GET", f"/markdown/{uid}"))["content"]
        lab.embedder.hold.set()
        await upload
    assert "new" in (await lab.call("GET", f"/markdown/{uid}"))["content"]


async def test_a_new_version_that_cannot_be_read_leaves_the_old_one(lab: Lab) -> None:
    uid = await lab.put("a.pdf", files.pdf([["The old sentence."]]))
    assert ends(await lab.upload(("a.pdf", b"no pdf"))) == [("a.pdf", "error", "unreadable")]
    document = await lab.call("GET", f"/documents/metadata/{uid}")
    assert (document["status"], document["error"]["code"]) == ("ready", "unreadable")
    assert "old" in (await lab.call("GET", f"/markdown/{uid}"))["content"]


async def test_a_failed_file_says_why_and_the_others_go_on(lab: Lab) -> None:
    lines = await lab.upload(
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
    failed = await lab.call("POST", "/documents/browse", json={"filters": {"status": "failed"}, "sort_by": "title"})
    shown = [(document["file_name"], document["error"]["code"]) for document in failed["documents"]]
    assert shown == [("blank.txt", "empty"), ("cut.pdf", "unreadable"), ("noise.txt", "not_text")]
    assert lab.staged() == []


async def test_a_failed_file_is_read_again_when_it_comes_again(lab: Lab) -> None:
    lab.embedder.fail = 3
    assert ends(await lab.upload(("a.md", b"Text."))) == [("a.md", "error", "embedding_failed")]
    uid = await lab.put("a.md", "Text.")
    document = await lab.call("GET", f"/documents/metadata/{uid}")
    assert (document["status"], document["error"]) == ("ready", None)


async def test_a_short_failure_of_the_embedder_is_waited_out(lab: Lab) -> None:
    lab.embedder.fail = 2
    await lab.put("a.md", "Text.")


async def test_a_loading_embedder_is_waited_for(lab: Lab) -> None:
    lab.embedder.state, lab.embedder.fail = "loading", 20
    await lab.put("a.md", "Text.")


async def test_an_index_of_another_model_is_said_as_such(lab: Lab) -> None:
    await lab.put("a.md", "Text.")
    async with lab.database.ingest.connection() as connection:
        await connection.execute("test", text("UPDATE index_info SET embedding_model = 'another'"))
        await connection.commit()
    assert ends(await lab.upload(("b.md", b"Text."))) == [("b.md", "error", "schema_mismatch")]
    assert await lab.rows("SELECT status, error FROM documents WHERE file_name = 'b.md'") == [
        ("failed", "schema_mismatch")
    ]


async def test_a_disk_that_fails_is_said_as_such(lab: Lab) -> None:
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(lab.upload(("a.md", b"Text.")))
        await lab.embedder.entered.wait()
        (folder,) = lab.staged()
        (folder / "content.txt").unlink()
        lab.embedder.hold.set()
    assert ends(upload.result()) == [("a.md", "error", "storage_failed")]
    assert lab.staged() == []


async def test_names_are_labels_and_never_paths(lab: Lab, tmp_path: Path) -> None:
    marker = tmp_path / "x.md"
    names = ["../../x.md", f"{marker}", "a/../../b.md", "C:\\x\\c.md", "d\u202e.md", "e" * 5000 + ".md"]
    lines = await lab.upload(*((name, f"Text of {at}.".encode()) for at, name in enumerate(names)))
    assert [status for _, status, _ in ends(lines)] == ["success"] * len(names)
    assert not marker.exists()
    assert sorted(os.listdir(tmp_path)) == ["staging"]  # noqa: PTH208 - names, not paths
    listed = (await lab.call("POST", "/documents/browse", json={}))["documents"]
    assert {document["file_path"] for document in listed} >= {"x.md", "a/b.md", "c.md", "d.md"}
    assert all(".." not in document["file_path"] for document in listed)
    assert max(len(document["file_name"]) for document in listed) <= 120


async def test_a_name_of_nothing_but_dots_is_missing(lab: Lab) -> None:
    assert (await lab.upload(("../..", b"x"), status=400))[0]["detail"]["code"] == "missing_filename"
    assert lab.staged() == []


async def test_the_same_name_in_two_directories_is_two_documents(lab: Lab) -> None:
    one = await lab.put("a/README.md", "Same.")
    two = await lab.put("b/README.md", "Same.")
    assert one != two


async def test_two_first_uploads_at_once_are_one_document(lab: Lab) -> None:
    uids = await asyncio.gather(*(lab.upload(("a.md", f"Text {at}.".encode())) for at in range(4)))
    assert len({line["document_uid"] for lines in uids for line in lines if "document_uid" in line}) == 1
    assert await lab.rows("SELECT count(*) FROM documents") == [(1,)]
    assert await lab.rows("SELECT count(*) FROM chunks") == [(1,)]


async def test_the_newest_upload_counts(lab: Lab) -> None:
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(lab.upload(("a.md", b"Old.")))
        await lab.embedder.entered.wait()
        lab.embedder.entered.clear()
        second = group.create_task(lab.upload(("a.md", b"New.")))
        await lab.embedder.entered.wait()
        lab.embedder.hold.set()
    assert ends(first.result()) == [("a.md", "error", "superseded")]
    assert ends(second.result()) == [("a.md", "success", None)]
    assert await lab.rows("SELECT content FROM chunks") == [("New.",)]


async def test_what_is_deleted_in_the_middle_does_not_come_back(lab: Lab) -> None:
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(lab.upload(("a.md", b"Text.")))
        await lab.embedder.entered.wait()
        (document,) = (await lab.call("POST", "/documents/browse", json={}))["documents"]
        await lab.call("DELETE", f"/documents/{document['document_uid']}", status=204)
        lab.embedder.hold.set()
    assert ends(upload.result()) == [("a.md", "error", "superseded")]
    assert await lab.rows("SELECT count(*) FROM documents") == [(0,)]


async def test_a_client_that_goes_away_does_not_stop_what_it_sent(lab: Lab) -> None:
    lab.embedder.hold.clear()
    upload = asyncio.ensure_future(lab.upload(("a.md", b"Text.")))
    await lab.embedder.entered.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    lab.embedder.hold.set()
    assert await lab.service.drain(20.0) == 0
    assert await lab.rows("SELECT status FROM documents") == [("ready",)]


async def test_the_end_of_the_service_leaves_what_it_interrupts_to_the_next(
    lab: Lab, database: Database, tmp_path: Path
) -> None:
    lab.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(lab.upload(("a.md", b"Text."), ("b.md", b"Text.")))
        await lab.embedder.entered.wait()
        assert await lab.service.drain(0.0) == 1
        assert (await lab.upload(("c.md", b"Text."), status=503))[0]["detail"]["code"] == "draining"
        await lab.tasks.aclose()
    assert ends(upload.result()) == [("a.md", "error", "interrupted"), ("b.md", "error", "interrupted")]
    assert await lab.rows("SELECT status, error FROM documents") == [("processing", None)] * 2
    assert lab.staged() == []
    lab.embedder.hold.set()
    async with running(database, tmp_path / "next") as later:
        await later.take_up_all()
        assert await later.rows("SELECT status, error, version FROM documents") == [("ready", None, 1)] * 2
        assert await later.rows("SELECT deaths FROM ingest_jobs") == []


async def test_a_second_of_cpu_in_a_parser_does_not_hold_the_loop(database: Database, tmp_path: Path) -> None:
    """The stall detector of the session watches."""
    async with running(database, tmp_path / "staging", command=ODD) as lab:
        await lab.put("a.txt", "block")


async def test_a_child_that_is_killed_costs_its_file_only(database: Database, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    os.mkfifo(mark)
    async with running(database, tmp_path / "staging", command=ODD) as lab, asyncio.TaskGroup() as group:
        upload = group.create_task(lab.upload(("a.txt", f"hang {mark}".encode()), ("b.txt", b"Fine.")))
        pid = int(await asyncio.to_thread(mark.read_text))
        os.kill(pid, 9)
        assert ends(await upload) == [("a.txt", "error", "out_of_memory"), ("b.txt", "success", None)]


async def test_a_parser_is_stopped_at_its_deadline(database: Database, tmp_path: Path) -> None:
    async with running(database, tmp_path / "staging", command=ODD, timeout_s=2.0) as lab:
        assert ends(await lab.upload(("a.txt", b"hang"))) == [("a.txt", "error", "timed_out")]


async def test_stages_are_measured(lab: Lab) -> None:
    await lab.upload(("a.md", b"Text."), ("b.pdf", b"broken"))
    value = lab.registry.get_sample_value
    assert value("app_ingest_stage_seconds_count", {"stage": "parse", "status": "ok"}) == 1
    assert value("app_ingest_stage_seconds_count", {"stage": "parse", "status": "error"}) == 1
    assert value("app_ingest_documents_total", {"status": "ok"}) == 1
    assert value("app_ingest_documents_total", {"status": "error"}) == 1
    assert value("app_ingest_chunks_total", {}) == 1
    assert value("app_phase_latency_seconds_count", {"phase": "ingest_write", "status": "ok"}) == 1
