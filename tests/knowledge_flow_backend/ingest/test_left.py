"""What a process leaves when it dies: its jobs, and how another one takes them up."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text

from backend_kit.auth import AuditEvent
from knowledge_flow_backend.index import Chunk, Document, DocumentContent, IndexWriter, Vector
from knowledge_flow_backend.ingest.steps import ByteBudget
from tests.knowledge_flow_backend.ingest.ingestion import Ingestion, running
from tests.knowledge_flow_backend.ingest.test_ingest import ends
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

WHOLE = "SELECT d.status, d.error, d.version, c.content FROM documents d JOIN chunks c ON c.document_uid = d.uid"


async def execute(ingestion: Ingestion, statement: str) -> None:
    async with ingestion.database.writes.connection() as connection:
        await connection.execute("test", text(statement))
        await connection.commit()


async def test_a_received_file_is_durable_before_anything_is_told(ingestion: Ingestion) -> None:
    data = bytes(range(32, 127)) * 40_000
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.txt", b"first"), ("b.txt", data[:1_500_000])))
        await ingestion.embedder.entered.wait()
        pieces = await ingestion.rows(
            "SELECT j.label, p.data FROM ingest_jobs j JOIN ingest_pieces p USING (document_uid)"
            " ORDER BY j.label, p.ordinal"
        )
        assert [label for label, _ in pieces] == ["a.txt", "b.txt", "b.txt"]
        assert b"".join(piece for _, piece in pieces) == b"first" + data[:1_500_000]
        ingestion.embedder.hold.set()
    assert [status for _, status, _ in ends(upload.result())] == ["success"] * 2
    assert await ingestion.rows("SELECT count(*) FROM ingest_jobs") == [(0,)]
    assert await ingestion.rows("SELECT count(*) FROM ingest_pieces") == [(0,)]


async def test_a_job_is_taken_up_when_its_lease_has_run_out_and_not_before(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    """The one who had it lives on after all: what it does counts no more."""
    ingestion.embedder.hold.clear()
    async with running(database, tmp_path / "other") as other, asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.md", b"Text.")))
        await ingestion.embedder.entered.wait()
        assert await other.service.take_up_one() is False
        async with asyncio.timeout(PATIENCE_S):
            taken = False
            while not taken:  # the one who has it may renew its lease in between
                await execute(ingestion, "UPDATE ingest_jobs SET leased_until = now() - interval '1 second'")
                taken = await other.service.take_up_one()
        assert await ingestion.rows(WHOLE) == [("ready", None, 1, "Text.")]
        ingestion.embedder.hold.set()
    assert ends(upload.result()) == [("a.md", "error", "superseded")]
    assert await ingestion.rows(WHOLE) == [("ready", None, 1, "Text.")]


async def test_a_process_does_not_take_up_what_it_has_in_its_own_hands(ingestion: Ingestion) -> None:
    """Its leases run out where Postgres is away for longer than they last."""
    ingestion.embedder.hold.clear()
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(ingestion.upload(("a.md", b"Text.")))
        await ingestion.embedder.entered.wait()
        await execute(ingestion, "UPDATE ingest_jobs SET leased_until = now() - interval '1 second'")
        assert await ingestion.service.take_up_one() is False
        ingestion.embedder.hold.set()
    assert [status for _, status, _ in ends(upload.result())] == ["success"]


async def left_by_a_dead_process(
    database: Database, directory: Path, name: str = "a.md", data: bytes = b"Text."
) -> None:
    """A job whose process is gone and whose lease has run out."""
    async with running(database, directory) as dying:
        dying.embedder.hold.clear()
        upload = asyncio.ensure_future(dying.upload((name, data)))
        await dying.embedder.entered.wait()
        await dying.tasks.aclose()
        await upload
        await execute(dying, "UPDATE ingest_jobs SET leased_until = now() - interval '1 second'")


async def test_a_replacement_that_was_left_keeps_the_old_version_until_it_is_whole(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await ingestion.put("a.md", "Old.")
    await left_by_a_dead_process(database, tmp_path / "dying", data=b"New.")
    assert await ingestion.rows(WHOLE) == [("ready", None, 1, "Old.")]
    await ingestion.take_up_all()
    assert await ingestion.rows(WHOLE) == [("ready", None, 2, "New.")]


async def test_what_was_deleted_meanwhile_stays_deleted(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await left_by_a_dead_process(database, tmp_path / "dying")
    (uid,) = (await ingestion.rows("SELECT uid FROM documents"))[0]
    await ingestion.call("DELETE", f"/documents/{uid}", status=204)
    assert await ingestion.rows("SELECT count(*) FROM ingest_jobs") == [(0,)]
    assert await ingestion.rows("SELECT count(*) FROM ingest_pieces") == [(0,)]
    assert await ingestion.service.take_up_one() is False


async def test_a_newer_upload_takes_the_place_of_a_job_that_was_left(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await left_by_a_dead_process(database, tmp_path / "dying", data=b"Old.")
    await ingestion.put("a.md", "New.")
    assert await ingestion.service.take_up_one() is False
    assert await ingestion.rows(WHOLE) == [("ready", None, 1, "New.")]


async def test_a_file_that_kills_whoever_reads_it_is_given_up(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await left_by_a_dead_process(database, tmp_path / "dying")
    await execute(ingestion, "UPDATE ingest_jobs SET deaths = 2")
    assert await ingestion.service.take_up_one() is True
    assert await ingestion.rows("SELECT status, error FROM documents") == [("failed", "internal")]
    assert await ingestion.rows("SELECT count(*) FROM ingest_jobs") == [(0,)]


async def test_a_file_whose_bytes_cannot_be_fetched_leaves_nothing_on_disk(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await left_by_a_dead_process(database, tmp_path / "dying")
    await execute(ingestion, "ALTER TABLE ingest_pieces RENAME TO elsewhere")
    assert await ingestion.service.take_up_one() is True
    assert await ingestion.rows("SELECT status, error FROM documents") == [("failed", "index_failed")]
    assert ingestion.staged() == []


async def test_files_that_only_waited_are_not_blamed_for_the_death(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await left_by_a_dead_process(database, tmp_path / "dying")
    await execute(ingestion, "UPDATE ingest_jobs SET deaths = 2")
    await execute(ingestion, "UPDATE documents SET stages = stages - 'parse' - 'embed'")
    await ingestion.take_up_all()
    assert await ingestion.rows(WHOLE) == [("ready", None, 1, "Text.")]


async def test_what_was_written_before_its_process_died_is_not_written_again(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    await left_by_a_dead_process(database, tmp_path / "dying")
    uid = (await ingestion.rows("SELECT document_uid FROM ingest_jobs"))[0][0]
    await execute(ingestion, "CREATE TABLE kept AS SELECT * FROM ingest_jobs")
    await ingestion.take_up_all()
    await execute(ingestion, "INSERT INTO ingest_jobs SELECT * FROM kept")
    await execute(ingestion, """UPDATE documents SET stages = jsonb_set(stages, '{index,status}', '"running"')""")
    async with running(database, tmp_path / "later") as later:
        await later.take_up_all()
        assert later.embedder.texts == []
        assert await later.rows(WHOLE) == [("ready", None, 1, "Text.")]
        document = await later.call("GET", f"/documents/metadata/{uid}")
        assert {stage["status"] for stage in document["stages"].values()} == {"done"}


async def test_the_same_bytes_again_count_while_another_version_is_on_its_way(ingestion: Ingestion) -> None:
    await ingestion.put("a.md", "One.")
    ingestion.embedder.hold.clear()
    ingestion.embedder.entered.clear()
    async with asyncio.TaskGroup() as group:
        second = group.create_task(ingestion.upload(("a.md", b"Two.")))
        await ingestion.embedder.entered.wait()
        ingestion.embedder.entered.clear()
        third = group.create_task(ingestion.upload(("a.md", b"One.")))
        await ingestion.embedder.entered.wait()
        ingestion.embedder.hold.set()
    assert ends(second.result()) == [("a.md", "error", "superseded")]
    assert ends(third.result()) == [("a.md", "success", None)]
    assert await ingestion.rows("SELECT content FROM chunks") == [("One.",)]


class DeletesFirst:
    """A writer whose document is deleted between the last look at it and its writing."""

    def __init__(self, writer: IndexWriter) -> None:
        self._writer = writer

    async def replace_document(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        await self._writer.delete_document(document.uid)
        version = await self._writer.replace_document(document, content, chunks, vectors)
        raise AssertionError(f"version {version} of a document that is deleted was written, if only for a moment")

    async def delete_document(self, document_uid: str, event: AuditEvent | None = None) -> bool:
        return await self._writer.delete_document(document_uid, event)


async def test_what_is_deleted_in_the_moment_of_its_writing_does_not_come_back(
    database: Database, tmp_path: Path
) -> None:
    async with running(database, tmp_path / "staging", wrapped=DeletesFirst) as ingestion:
        assert ends(await ingestion.upload(("a.md", b"Text."))) == [("a.md", "error", "superseded")]
        assert await ingestion.rows("SELECT count(*) FROM documents") == [(0,)]


async def test_an_upload_tells_its_figures(ingestion: Ingestion, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "knowledge_flow_backend.ingest.progress")
    done = (await ingestion.upload(("a.md", b"Text."), ("b.md", b"More."), ("c.png", b"x")))[-1]
    assert (done["bytes"], done["chunks"], done["total"]) == (10, 2, 3)
    assert set(done["stages"]) == {"store", "parse", "embed", "index"}
    assert all(spent > 0 for spent in done["stages"].values())
    assert done["chunks_per_s"] > 0
    (told,) = [record.getMessage() for record in caplog.records if record.message.startswith("upload:")]
    assert told.startswith("upload: files=3 failed=1 bytes=10 chunks=2 seconds=")
    assert "embed_s=" in told


async def test_who_needs_more_than_the_budget_has_all_of_it_alone() -> None:
    budget, order = ByteBudget(10), []

    async def hold(name: str, size: int, until: asyncio.Event) -> None:
        async with budget.hold(size):
            order.append(name)
            await until.wait()

    first, second = asyncio.Event(), asyncio.Event()
    second.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold("small", 4, first))
        group.create_task(hold("huge", 99, second))
        group.create_task(hold("other", 6, second))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["small", "other"]
        first.set()
    assert order == ["small", "other", "huge"]
