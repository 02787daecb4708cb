"""Attachments: read at once, found in their session by their owner alone, deleted one by one and by session."""

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backend_kit.auth import AuditEvent
from knowledge_flow_backend.index import Chunk, Document, DocumentContent, IndexWriter, Reader, Vector
from knowledge_flow_backend.ingest.fast import PREVIEW_CHARS, FastIngest
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.staging import Staging
from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.ingest.ingestion import running
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of
from tests.support.postgres import Database

TEXT = "# Pumps\n\n## Cleaning\n\nRinse the filter once a week with warm water.\n"


def form(name: str | None, data: bytes, **fields: str) -> aiohttp.FormData:
    made = aiohttp.FormData(quote_fields=False)
    for field, value in fields.items():
        made.add_field(field, value)
    made.add_field("file", io.BytesIO(data), filename=name)
    return made


async def send(
    service: RunningKnowledgeFlow,
    data: bytes | str,
    *,
    name: str = "pumps.md",
    user: str = "ann",
    path: str = "/fast/ingest",
    status: int = 200,
    **fields: str,
) -> Any:
    """The decoded answer to an upload."""
    raw = data.encode() if isinstance(data, str) else data
    headers = headers_of(user)
    async with service.http.post(BASE + path, data=form(name, raw, **fields), headers=headers) as response:
        text = await response.text()
        assert response.status == status, text
        return json.loads(text)


async def delete(service: RunningKnowledgeFlow, path: str, user: str) -> tuple[int, str]:
    async with service.http.delete(f"{BASE}/fast/ingest{path}", headers=headers_of(user)) as response:
        return response.status, await response.text()


async def found(service: RunningKnowledgeFlow, user: str, **fields: Any) -> list[str]:
    """The documents of the hits of a question about the filter."""
    hits = await service.post(
        "/vector/search", {"question": "How often is the filter rinsed?", **fields}, headers=headers_of(user)
    )
    return [hit["uid"] for hit in hits]


@pytest.fixture
async def service(start_knowledge_flow: StartKnowledgeFlow) -> AsyncIterator[RunningKnowledgeFlow]:
    processing = {"chunk_size_chars": 200, "chunk_overlap_chars": 0, "max_attachment_chars": 20_000, "max_file_mb": 1}
    async with start_knowledge_flow(security=SECURITY, processing=processing) as running:
        yield running


async def test_an_attachment_is_found_in_its_session_by_its_owner_alone(service: RunningKnowledgeFlow) -> None:
    answer = await send(service, TEXT, session_id="s1")
    uid = answer.pop("document_uid")
    assert answer == {
        "chunks": 1,
        "scope": "session",
        "file_name": "pumps.md",
        "mime_type": "text/markdown",
        "title": "Pumps",
        "total_chars": len(TEXT),
        "truncated": False,
        "preview": TEXT,
    }
    for policy in ("hybrid", "semantic", "strict"):
        assert await found(service, "ann", session_id="s1", search_policy=policy) == [uid]
        assert await found(service, "ann", session_id="s1", search_policy=policy, include_corpus_scope=False) == [uid]
    for elsewhere in (
        {"session_id": "s2"},
        {},
        {"session_id": "s1", "include_session_scope": False},
        {"document_uids": [uid]},
    ):
        assert await found(service, "ann", **elsewhere) == []
    assert await found(service, "bob", session_id="s1") == []
    listed = await service.post("/documents/browse", {}, headers=headers_of("ann"))
    assert listed["total"] == 0


async def test_the_best_attachments_keep_their_places_beside_a_large_corpus(
    service: RunningKnowledgeFlow, corpus: Corpus
) -> None:
    for number in range(6):
        await corpus.put(f"corpus-{number}", f"Rinse the filter once a week, says {number}.", owner="ann")
    for number in range(4):
        text = f"# Note {number}\n\nOf elephants, and nothing of water.\n"
        await send(service, text, name=f"n{number}.md", session_id="s1")
    corpus_only = await found(service, "ann", top_k=4)
    both = await found(service, "ann", top_k=4, session_id="s1")
    assert all(uid.startswith("corpus-") for uid in corpus_only)
    assert [uid.startswith("corpus-") for uid in both] == [True, False, False, False]


class HeldWriter:
    """Writes once it is let to; `most` is how many documents it was given at a time."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.held = self.most = 0

    def around(self, writer: IndexWriter) -> IndexWriter:
        """Itself, in front of the one that writes."""
        self._writer = writer
        return self

    async def replace_document(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        self.held += 1
        self.most = max(self.most, self.held)
        await self.let.wait()
        try:
            return await self._writer.replace_document(document, content, chunks, vectors)
        finally:
            self.held -= 1

    async def delete_document(self, document_uid: str, event: AuditEvent | None = None) -> bool:
        return await self._writer.delete_document(document_uid, event)


async def received(staging: Staging) -> ReceivedFile:
    folder = await staging.folder()
    folder.raw.write_text(TEXT)
    return ReceivedFile("pumps.md", folder, len(TEXT), hashlib.sha256(TEXT.encode()).hexdigest())


async def test_attachments_and_uploads_that_wait_to_be_written_share_one_bound_of_memory(
    database: Database, tmp_path: Path
) -> None:
    writer = HeldWriter()
    bound = 2 * len(TEXT)
    async with running(database, tmp_path / "staging", wrapped=writer.around, held_bytes=bound) as ingestion:
        fast = FastIngest(ingestion.steps, max_chars=20_000)
        async with asyncio.TaskGroup() as tasks:
            files = [await received(ingestion.staging) for _ in range(3)]
            kept = [tasks.create_task(fast.ingest(file, "s1", Reader("ann"))) for file in files]
            uploads = [tasks.create_task(ingestion.put(f"{number}.md", TEXT)) for number in range(2)]
            while len(ingestion.embedder.texts) < 5 or writer.held < 2:  # noqa: ASYNC110 - they tell nobody
                await asyncio.sleep(0.01)
            for _ in range(20):  # whoever else found memory would be there by then
                await asyncio.to_thread(int)
            writer.let.set()
        assert len({one.result()["document_uid"] for one in kept} | {one.result() for one in uploads}) == 5
        assert writer.most == 2


async def test_only_its_owner_deletes_it(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    one = (await send(service, TEXT, session_id="s1"))["document_uid"]
    two = (await send(service, TEXT, session_id="s1"))["document_uid"]
    await corpus.put("in-a-library", "Rinse the filter.", owner="ann")
    unknown = await delete(service, f"/{'0' * 32}?session_id=s1", "ann")
    assert unknown[0] == 404
    assert await delete(service, f"/{one}?session_id=s1", "bob") == unknown
    assert await delete(service, f"/{one}?session_id=s2", "ann") == unknown
    # A document of a library is no attachment.
    assert await delete(service, "/in-a-library", "ann") == unknown
    assert await delete(service, f"/{one}?session_id=s1", "ann") == (204, "")
    assert await delete(service, f"/{one}?session_id=s1", "ann") == unknown
    assert set(await found(service, "ann", session_id="s1")) == {two, "in-a-library"}


async def test_a_session_is_deleted_with_all_that_its_owner_has_there(
    service: RunningKnowledgeFlow, corpus: Corpus
) -> None:
    for _ in range(2):
        await send(service, TEXT, session_id="s1")
    other = (await send(service, TEXT, session_id="s2"))["document_uid"]
    bobs = (await send(service, TEXT, session_id="s1", user="bob"))["document_uid"]
    assert await delete(service, "?session_id=s1", "ann") == (200, '{"deleted":2}')
    assert await delete(service, "?session_id=s1", "ann") == (200, '{"deleted":0}')
    assert (await delete(service, "", "ann"))[0] == 422
    assert {row[0] for row in corpus.sql("SELECT uid FROM documents")} == {other, bobs}
    assert {row[0] for row in corpus.sql("SELECT DISTINCT document_uid FROM chunks")} == {other, bobs}
    assert {row[0] for row in corpus.sql("SELECT document_uid FROM document_contents")} == {other, bobs}


async def test_text_is_given_back_and_not_kept(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    assert await send(service, TEXT, path="/fast/text") == {
        "file_name": "pumps.md",
        "mime_type": "text/markdown",
        "title": "Pumps",
        "total_chars": len(TEXT),
        "truncated": False,
        "text": TEXT,
    }
    assert corpus.sql("SELECT uid FROM documents") == []


async def test_of_a_long_text_the_beginning_is_taken_and_said_to_be(
    service: RunningKnowledgeFlow, corpus: Corpus
) -> None:
    long = "\n\n".join(f"Paragraph {number} is about the number {number}." for number in range(2000))
    answer = await send(service, long, session_id="s1")
    assert answer["truncated"]
    assert answer["total_chars"] == len(long)
    assert answer["preview"] == long[:PREVIEW_CHARS]
    ((content,),) = corpus.sql("SELECT markdown FROM document_contents")
    assert content == long[:20_000]
    chunks = corpus.sql("SELECT char_start, char_end, content FROM chunks ORDER BY ordinal")
    assert len(chunks) == answer["chunks"]
    assert all(text == content[start:end] for start, end, text in chunks)
    assert 19_000 < chunks[-1][1] <= 20_000


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.exe", b"MZ", "unsupported_type"),
        ("a.md", b"", "empty"),
        ("a.txt", b" \n ", "empty"),
        ("a.txt", b"\x00\x01\x02" * 99, "not_text"),
        ("a.pdf", b"%PDF-1.4 broken", "unreadable"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_with_its_reason(
    service: RunningKnowledgeFlow, corpus: Corpus, name: str, data: bytes, reason: str
) -> None:
    for path in ("/fast/ingest", "/fast/text"):
        answer = await send(service, data, name=name, session_id="s1", path=path, status=400)
        assert (answer["detail"]["code"], answer["detail"]["reason"]) == ("upload_processing_failed", reason)
    assert corpus.sql("SELECT uid FROM documents") == []


@pytest.mark.parametrize("name", ["../../etc/passwd.md", "/etc/cron.d/x.md", "C:\\x\\a.md", "x" * 5000])
async def test_a_name_is_a_label_and_never_a_path(service: RunningKnowledgeFlow, corpus: Corpus, name: str) -> None:
    await send(service, TEXT, name=name, session_id="s1")
    ((stored, path),) = corpus.sql("SELECT file_name, file_path FROM documents")
    assert path is None
    assert "/" not in stored
    assert "\\" not in stored
    assert len(stored) <= 120


async def test_requests_that_are_no_upload_are_refused(service: RunningKnowledgeFlow) -> None:
    async def code(data: Any, status: int) -> str:
        async with service.http.post(f"{BASE}/fast/ingest", data=data, headers=headers_of("ann")) as response:
            assert response.status == status, await response.text()
            return str((await response.json())["detail"]["code"])

    two = form("a.md", b"A.", session_id="s1")
    two.add_field("file", io.BytesIO(b"B."), filename="b.md")
    assert await code(form("a.md", b"A."), 422) == "bad_request"
    assert await code(form("a.md", b"A.", session_id=""), 422) == "bad_request"
    assert await code(form("", b"A.", session_id="s1"), 400) == "missing_filename"
    assert await code({"session_id": "s1"}, 422) == "bad_request"
    assert await code(two, 413) == "too_large"
    assert await code(form("a.md", bytes(1024 * 1024 + 1), session_id="s1"), 413) == "too_large"


async def test_nobody_without_a_token_sends_or_deletes(service: RunningKnowledgeFlow) -> None:
    for method, path in (("POST", "/text"), ("POST", "/ingest"), ("DELETE", "/ingest/x"), ("DELETE", "/ingest")):
        async with service.http.request(method, f"{BASE}/fast{path}?session_id=s1") as response:
            assert response.status == 401


async def test_an_end_of_the_service_refuses_new_ones(service: RunningKnowledgeFlow) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await service.service.drain()
    answer = await send(service, TEXT, session_id="s1", status=503)
    assert answer["detail"]["code"] == "draining"


async def test_a_user_has_so_many_attachments_whoever_sends_them_and_in_whichever_session(
    start_knowledge_flow: StartKnowledgeFlow,
) -> None:
    async with start_knowledge_flow(security=SECURITY, limits={"max_attachments_per_user": 3}) as service:
        async with asyncio.TaskGroup() as group:
            races = [
                group.create_task(send(service, TEXT, session_id=f"s{number}", status=status))
                for number, status in ((1, 200), (2, 200), (3, 200))
            ]
        refused = await send(service, TEXT, session_id="s4", status=400)
        assert refused["detail"]["code"] == "attachment_limit_reached"
        assert await send(service, TEXT, session_id="s4", user="bob")
        uid = races[0].result()["document_uid"]
        assert (await delete(service, f"/{uid}", "ann"))[0] == 204
        assert await send(service, TEXT, session_id="s4")


async def test_files_of_a_user_on_disk_are_bounded_however_many_are_sent(
    start_knowledge_flow: StartKnowledgeFlow,
) -> None:
    # More than these places at a time, which the admission of routes would not let through.
    async with start_knowledge_flow(security=SECURITY, requests={"at_once": 8}) as service:
        state = service.service.running.fast
        head = f"POST {BASE}/fast/text HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n".encode()
        head += "".join(f"{name}: {value}\r\n" for name, value in headers_of("ann").items()).encode()
        head += b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        head += b'Content-Disposition: form-data; name="file"; filename="a.md"\r\n\r\n'
        writers = []
        for _ in range(6):
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(head)
            writers.append(writer)
        async with asyncio.timeout(PATIENCE_S):
            while state.gate.waiting < 4:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        assert state.gate.held_by("ann") == 2
        assert await send(service, TEXT, user="bob", path="/fast/text")
        for writer in writers:
            writer.close()
