"""A document is read again from the file that is kept of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.knowledge_flow_backend.ingest.ingestion import BASE, Ingestion, running
from tests.knowledge_flow_backend.ingest.test_ingest import ends
from tests.knowledge_flow_backend.ingest.test_left import WHOLE, execute
from tests.support.postgres import Database

UIDS = "SELECT uid, content FROM chunks ORDER BY uid"
ENDS = ("finished", "done")


async def again(ingestion: Ingestion, uid: str, user: str = "admin") -> list[dict[str, Any]]:
    """The lines of progress."""
    async with ingestion.http.post(f"{BASE}/documents/{uid}/ingest", headers={"X-User": user}) as response:
        body = await response.text()
        assert response.status == 200, body
        return [json.loads(line) for line in body.splitlines()]


async def refused(ingestion: Ingestion, uid: str, status: int, user: str = "admin") -> Any:
    """The code of a refusal."""
    detail = (await ingestion.call("POST", f"/documents/{uid}/ingest", user=user, status=status))["detail"]
    return detail["code"] if isinstance(detail, dict) else detail


async def test_the_kept_file_is_read_whole_and_its_passages_keep_their_ids(ingestion: Ingestion) -> None:
    words = "".join(f"Word {number}.\n\n" for number in range(80_000))
    uid = await ingestion.put("long/a.txt", words)
    before = await ingestion.rows(UIDS)
    await execute(ingestion, "DELETE FROM chunks WHERE ordinal > 0")
    lines = await again(ingestion, uid)
    assert ends(lines) == [("long/a.txt", "success", None)]
    assert [line["step"] for line in lines if line["status"] == "success"] == ["parse", "embed", "index", *ENDS]
    assert lines[-1]["bytes"] == len(words)
    assert await ingestion.rows(UIDS) == before
    assert (await ingestion.call("GET", f"/documents/metadata/{uid}"))["version"] == 2
    assert await ingestion.rows("SELECT count(*) FROM ingest_jobs") == [(0,)]
    assert ingestion.staged() == []
    assert ingestion.service.gate.running == 0


async def test_what_was_there_stays_until_it_is_replaced_and_where_that_fails(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "Text.")
    ingestion.embedder.hold.clear()
    ingestion.embedder.entered.clear()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(again(ingestion, uid))
        await ingestion.embedder.entered.wait()
        assert await ingestion.rows(WHOLE) == [("ready", None, 1, "Text.")]
        assert await refused(ingestion, uid, 409) == "conflict"
        ingestion.embedder.fail = 3
        ingestion.embedder.hold.set()
    assert ends(reading.result()) == [("a.md", "error", "embedding_failed")]
    assert await ingestion.rows(WHOLE) == [("ready", "embedding_failed", 1, "Text.")]
    assert ends(await again(ingestion, uid)) == [("a.md", "success", None)]
    assert await ingestion.rows(WHOLE) == [("ready", None, 2, "Text.")]


async def test_a_process_that_dies_leaves_it_to_another(
    ingestion: Ingestion, database: Database, tmp_path: Path
) -> None:
    uid = await ingestion.put("a.md", "Text.")
    ingestion.embedder.hold.clear()
    ingestion.embedder.entered.clear()
    async with running(database, tmp_path / "other") as other, asyncio.TaskGroup() as group:
        reading = group.create_task(again(ingestion, uid))
        await ingestion.embedder.entered.wait()
        taken = False
        while not taken:  # the one who has it may renew its lease in between
            await execute(ingestion, "UPDATE ingest_jobs SET leased_until = now() - interval '1 second'")
            taken = await other.service.take_up_one()
        assert await ingestion.rows(WHOLE) == [("ready", None, 2, "Text.")]
        ingestion.embedder.hold.set()
    assert ends(reading.result()) == [("a.md", "error", "superseded")]
    assert await ingestion.rows(WHOLE) == [("ready", None, 2, "Text.")]


async def test_what_cannot_be_read_again_is_refused(ingestion: Ingestion) -> None:
    uid = await ingestion.put("a.md", "Text.")
    assert await refused(ingestion, uid, 404, user="ben") == await refused(ingestion, "unknown", 404)
    (never,) = {line["document_uid"] for line in await ingestion.upload(("b.pdf", b"no pdf")) if line["filename"]}
    assert await refused(ingestion, never, 409) == "conflict"
    await execute(ingestion, "UPDATE documents SET session_id = 's'")
    assert await refused(ingestion, uid, 409) == "conflict"
    assert ingestion.service.gate.running == 0
