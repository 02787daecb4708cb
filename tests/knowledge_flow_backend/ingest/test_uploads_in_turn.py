"""Uploads that are received or worked on: so many of one user, whether they listen or not, in nobody else's way."""

import asyncio
import io
from pathlib import Path

import aiohttp

from backend_kit.aio import GateRules
from tests.knowledge_flow_backend.ingest.ingestion import BASE, Ingestion, running
from tests.support.postgres import Database


async def waits_for_embedder(ingestion: Ingestion) -> None:
    ingestion.embedder.entered.clear()
    await ingestion.embedder.entered.wait()


async def test_a_user_waits_for_their_own_uploads_and_another_does_not(database: Database, tmp_path: Path) -> None:
    rules = GateRules(places=4, per_user=1, reserve=1, waiting_per_user=1)
    async with running(database, tmp_path / "staging", admission=rules) as ingestion, asyncio.TaskGroup() as group:
        ingestion.embedder.hold.clear()
        first = group.create_task(ingestion.put("1.txt", "One.", user="mallory"))
        await waits_for_embedder(ingestion)
        second = group.create_task(ingestion.put("2.txt", "Two.", user="mallory"))
        while not ingestion.service.gate.waiting:  # noqa: ASYNC110 - a gate tells nobody
            await asyncio.sleep(0.01)
        await ingestion.upload(("3.txt", b"Three."), user="mallory", status=429)
        other = group.create_task(ingestion.put("1.txt", "One.", user="alice"))
        await waits_for_embedder(ingestion)
        assert (ingestion.service.gate.running, ingestion.service.gate.waiting) == (2, 1)
        ingestion.embedder.hold.set()
        await asyncio.gather(first, second, other)
    assert (ingestion.service.gate.running, ingestion.service.gate.waiting) == (0, 0)


async def test_an_upload_keeps_its_place_until_it_has_ended_also_where_its_client_has_gone(
    database: Database, tmp_path: Path
) -> None:
    rules = GateRules(places=4, per_user=1)
    async with running(database, tmp_path / "staging", admission=rules) as ingestion:
        ingestion.embedder.hold.clear()
        async with aiohttp.ClientSession() as http:
            form = aiohttp.FormData()
            form.add_field("files", io.BytesIO(b"One."), filename="1.txt")
            url = f"http://127.0.0.1:{ingestion.port}{BASE}/upload-process-documents"
            response = await http.post(url, data=form, headers={"X-User": "mallory"})
            await response.content.readline()
            response.close()
        assert ingestion.service.gate.held_by("mallory") == 1
        later = asyncio.ensure_future(ingestion.put("2.txt", "Two.", user="mallory"))
        while not ingestion.service.gate.waiting:  # noqa: ASYNC110 - a gate tells nobody
            await asyncio.sleep(0.01)
        ingestion.embedder.hold.set()
        await later
        await ingestion.upload(user="mallory", status=422)  # no files: refused, and its place is given back
        assert ingestion.service.gate.held_by("mallory") == 0
