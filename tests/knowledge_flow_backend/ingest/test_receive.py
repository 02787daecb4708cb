import asyncio
import hashlib
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from knowledge_flow_backend.errors import BadRequest, MissingFilename, TooLarge
from knowledge_flow_backend.ingest.receive import Upload, UploadLimits, receive
from knowledge_flow_backend.ingest.staging import PREFIX, Staging
from tests.knowledge_flow_backend.ingest.ingestion import BASE, LIMITS, Ingestion, running
from tests.support.postgres import Database
from tests.support.small_disk import NoRight, fill, small_disk

BOUNDARY = "a-boundary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"
SMALL = UploadLimits(file_bytes=100_000, files=3, request_bytes=250_000)


def part(headers: str, data: bytes) -> bytes:
    return f"--{BOUNDARY}\r\n{headers}\r\n\r\n".encode() + data + b"\r\n"


def file_part(name: str, data: bytes) -> bytes:
    return part(f'Content-Disposition: form-data; name="files"; filename="{name}"', data)


END = f"--{BOUNDARY}--\r\n".encode()


class Wire:
    """A body in pieces; `taken` counts the bytes that were read of it."""

    def __init__(self, body: bytes, piece: int = 64 * 1024) -> None:
        self._body = body
        self._piece = piece
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), self._piece):
            piece = self._body[start : start + self._piece]
            self.taken += len(piece)
            yield piece


@pytest.fixture
async def staging(tmp_path: Path) -> AsyncIterator[Staging]:
    made = Staging(tmp_path)
    await made.open()
    yield made
    await made.aclose()


async def received(staging: Staging, body: bytes, *, piece: int = 64 * 1024, type_: str = TYPE) -> Upload:
    upload = Upload()
    await receive(type_, aiter(Wire(body, piece)), staging, SMALL, upload)
    return upload


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
async def test_files_and_fields_arrive_whole_however_they_are_cut(staging: Staging, piece: int) -> None:
    data = b"\r\n--a-bound\r\n\x00\xff" * 50
    field = part('Content-Disposition: form-data; name="metadata_json"', b'{"tags": ["\xc3\xa9"]}')
    upload = await received(staging, file_part("a.md", data) + field + file_part("b.md", b"") + END, piece=piece)
    assert [(file.name, file.size) for file in upload.files] == [("a.md", len(data)), ("b.md", 0)]
    assert upload.files[0].folder.raw.read_bytes() == data
    assert upload.files[0].sha256 == hashlib.sha256(data).hexdigest()
    assert upload.metadata() == {"tags": ["é"]}


async def test_the_name_on_disk_is_ours(staging: Staging, tmp_path: Path) -> None:
    upload = await received(staging, file_part("../../../x", b"data") + END)
    (file,) = upload.files
    assert file.name == "x"
    assert file.folder.raw.is_relative_to(tmp_path)
    assert file.folder.raw.name == "raw"


async def test_a_name_of_five_thousand_letters_is_no_reason_to_fail(staging: Staging) -> None:
    upload = await received(staging, file_part("x" * 5000 + ".md", b"data") + END)
    assert upload.files[0].name.endswith(".md")


async def test_a_file_above_its_limit_is_cut_while_it_comes(staging: Staging) -> None:
    wire, upload = Wire(file_part("a.md", bytes(1_000_000)) + END), Upload()
    with pytest.raises(TooLarge):
        await receive(TYPE, aiter(wire), staging, SMALL, upload)
    assert wire.taken <= SMALL.file_bytes + 2 * 64 * 1024
    assert upload.files[0].folder.raw.stat().st_size <= SMALL.file_bytes


async def test_a_request_above_its_limit_is_cut_while_it_comes(staging: Staging) -> None:
    wire = Wire(b"".join(file_part(f"{at}.md", bytes(99_000)) for at in range(10)) + END)
    with pytest.raises(TooLarge):
        await receive(TYPE, aiter(wire), staging, SMALL, Upload())
    assert wire.taken <= SMALL.request_bytes + 64 * 1024


async def test_too_many_files_are_too_large(staging: Staging) -> None:
    with pytest.raises(TooLarge):
        await received(staging, b"".join(file_part(f"{at}.md", b"x") for at in range(4)) + END)


async def test_a_field_without_end_is_too_large(staging: Staging) -> None:
    body = part('Content-Disposition: form-data; name="metadata_json"', b"x" * 300_000)
    with pytest.raises(TooLarge):
        await receive(TYPE, aiter(Wire(body + body)), staging, UploadLimits(100, 3, 1_000_000), Upload())


@pytest.mark.parametrize(("name", "value"), [(20, 100_000), (50_000, 1)])
async def test_many_fields_are_too_large_together(staging: Staging, name: int, value: int) -> None:
    """They are kept in memory, and a request may have a gigabyte."""
    body = b"".join(part(f'Content-Disposition: form-data; name="{at:0{name}}"', b"x" * value) for at in range(20))
    wire, upload = Wire(body), Upload()
    with pytest.raises(TooLarge):
        await receive(TYPE, aiter(wire), staging, UploadLimits(100, 3, 1_000_000_000), upload)
    assert wire.taken <= 512 * 1024
    assert sum(len(key) + len(text) for key, text in upload.fields.items()) <= 256 * 1024


@pytest.mark.parametrize(
    ("type_", "body"),
    [
        (TYPE, file_part("a.md", b"cut")),
        (TYPE, file_part("a.md", b"cut")[:-10]),
        (TYPE, b"no multipart at all"),
        (TYPE, b""),
        (f"multipart/form-data; boundary={'b' * 5000}", b""),
        ("multipart/form-data", file_part("a.md", b"x") + END),
        ("application/json", b"{}"),
        ("", b""),
        (TYPE, b"--a-boundary\r\n" + b"X: y\r\n" * 1000 + b"\r\nx\r\n" + END),
    ],
)
async def test_a_body_that_is_no_whole_form_is_refused(staging: Staging, type_: str, body: bytes) -> None:
    with pytest.raises(BadRequest):
        await received(staging, body, type_=type_)


async def test_a_file_without_a_name_is_refused(staging: Staging) -> None:
    with pytest.raises(MissingFilename):
        await received(staging, file_part("", b"x") + END)


@pytest.mark.parametrize("field", [b"[]", b"nonsense", b'"text"', b"{'a': 1}"])
async def test_metadata_that_is_no_object_is_refused(staging: Staging, field: bytes) -> None:
    upload = await received(staging, part('Content-Disposition: form-data; name="metadata_json"', field) + END)
    with pytest.raises(BadRequest):
        upload.metadata()


async def test_staging_removes_what_killed_processes_left_and_nothing_of_living_ones(tmp_path: Path) -> None:
    left, other = tmp_path / f"{PREFIX}left", tmp_path / "other"
    for directory in (left, other):
        directory.mkdir()
        (directory / "lock").touch()
    living, staging = Staging(tmp_path), Staging(tmp_path)
    await living.open()
    folder = await living.folder()
    await staging.open()
    assert not left.exists()
    assert folder.path.exists()
    assert other.exists()
    await staging.aclose()
    await living.aclose()
    assert not folder.path.parent.exists()


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_a_directory_that_was_cleared_away_is_made_again(staging: Staging, tmp_path: Path) -> None:
    """As systemd-tmpfiles and tmpreaper do with what nobody has used for days."""
    (directory,) = names(tmp_path)
    shutil.rmtree(tmp_path / directory)
    uploads = await asyncio.gather(*(received(staging, file_part("a.md", b"data") + END) for _ in range(8)))
    (other,) = names(tmp_path)
    assert {upload.files[0].folder.path.parent for upload in uploads} == {tmp_path / other}
    beside = Staging(tmp_path)  # which finds it locked
    await beside.open()
    assert uploads[0].files[0].folder.raw.read_bytes() == b"data"
    await beside.aclose()
    await staging.aclose()
    assert names(tmp_path) == []


async def test_a_full_disk_is_said_as_such_and_names_the_place(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the file that is wrong, and the same upload is taken once there is room."""
    try:
        with small_disk(tmp_path / "small", 4) as disk:
            async with running(database, disk) as ingestion:
                filler = fill(disk)
                (answer,) = await ingestion.upload(("a.md", b"words " * 200_000), status=503)
                assert answer["detail"]["code"] == "storage_full"
                told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
                said = "No space left on device; TMPDIR names another place"
                assert told == [f"an upload could not be written below {disk}: {said}"]
                filler.unlink()
                await ingestion.put("a.md", b"words " * 200)
    except NoRight:
        pytest.skip("no right to mount a file system")


async def test_an_upload_that_is_too_large_is_answered_while_it_is_sent(ingestion: Ingestion) -> None:
    """The client sends for as long as it can: what the service takes is bounded, and it says why."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ingestion.port)
    head = (
        f"POST {BASE}/upload-process-documents HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    writer.write(head.encode())
    first = file_part("a.md", b"")[:-2]
    writer.write(b"%x\r\n%s\r\n" % (len(first), first))
    answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    sent = 0
    piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    while not answer.done() and sent < 100 * LIMITS.file_bytes:
        writer.write(piece)
        sent += len(piece)
        await asyncio.wait({answer}, timeout=0)
        if not answer.done():
            await writer.drain()
    assert (await answer).startswith(b"HTTP/1.1 413")
    writer.close()
    assert ingestion.staged() == []


async def test_a_client_that_reads_late_still_learns_that_it_was_too_large(ingestion: Ingestion) -> None:
    lines = await ingestion.upload(("a.md", bytes(3 * LIMITS.file_bytes)), status=413)
    assert lines[0]["detail"]["code"] == "too_large"


async def test_a_declared_length_above_the_limit_is_refused_at_once(ingestion: Ingestion) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ingestion.port)
    head = (
        f"POST {BASE}/upload-process-documents HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\nContent-Length: {10**9}"
    )
    writer.write(f"{head}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_broken_bodies_do_not_fill_the_log(ingestion: Ingestion, caplog: pytest.LogCaptureFixture) -> None:
    for body in (b"no form", b"--a-boundary\r\nContent-\x01: x\r\n\r\nx", file_part("a.md", b"cut")):
        headers = {"Content-Type": TYPE}
        answer = await ingestion.call("POST", "/upload-process-documents", data=body, headers=headers, status=422)
        assert answer["detail"]["code"] == "bad_request"
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(ingestion: Ingestion) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", ingestion.port)
    head = f"POST {BASE}/upload-process-documents HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\nContent-Length: 90000"
    writer.write(f"{head}\r\n\r\n".encode() + file_part("a.md", bytes(1000)))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    # Served after the other has ended: uploads leave nothing either way.
    assert (await ingestion.upload(("b.md", b"Fine.")))[-1]["status"] == "success"
    documents = await ingestion.call("POST", "/documents/browse", json={})
    assert [document["file_name"] for document in documents["documents"]] == ["b.md"]


@pytest.mark.parametrize("tags", ['{"tags": "x"}', '{"tags": [1]}', '{"tags": [""]}', '{"source_tag": 1}', "[]"])
async def test_metadata_of_another_shape_is_refused(ingestion: Ingestion, tags: str) -> None:
    body = file_part("a.md", b"x") + part('Content-Disposition: form-data; name="metadata_json"', tags.encode()) + END
    answer = await ingestion.call(
        "POST", "/upload-process-documents", data=body, headers={"Content-Type": TYPE}, status=422
    )
    assert answer["detail"]["code"] == "bad_request"
    assert ingestion.staged() == []
