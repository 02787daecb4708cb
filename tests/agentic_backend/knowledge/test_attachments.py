"""What the client of attachments makes of knowledge flow's answers."""

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator

import pytest
from aiohttp import BodyPartReader, web

from agentic_backend.errors import KfUnavailable, Unauthenticated, UploadProcessingFailed
from agentic_backend.knowledge import AttachmentClient, AttachmentEndpoint, Caller, Ingested, Redrawn
from backend_kit.auth import Credentials
from backend_kit.http import listen
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

ANSWER = {"document_uid": "d1", "mime_type": "text/plain", "preview": "Hello"}


class Knowledge:
    """A knowledge flow that answers as the test says; `heard` is what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.body: object = ANSWER
        self.heard: list[tuple[str, str, str | None]] = []
        self.uploaded: dict[str, tuple[str | None, bytes]] = {}
        self.hang: asyncio.Event | None = None
        self.answer: web.Response | None = None

    async def handle(self, request: web.Request) -> web.Response:
        """Any request."""
        self.heard.append((request.method, request.path_qs, request.headers.get("Authorization")))
        if request.method == "POST":
            async for part in await request.multipart():
                assert isinstance(part, BodyPartReader)
                self.uploaded[str(part.name)] = (part.filename, bytes(await part.read()))
        if self.hang is not None:
            await self.hang.wait()
        if self.answer is not None:
            return self.answer
        if self.status == 204:
            return web.Response(status=204)
        return web.json_response(self.body, status=self.status)


@pytest.fixture
def knowledge() -> Knowledge:
    return Knowledge()


@pytest.fixture
async def client(knowledge: Knowledge) -> AsyncIterator[AttachmentClient]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", knowledge.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    sock = listen("127.0.0.1", 0)
    await web.SockSite(runner, sock).start()
    made = AttachmentClient(AttachmentEndpoint(f"http://127.0.0.1:{sock.getsockname()[1]}/kf", ingest_s=600))
    yield made
    await made.aclose()
    await runner.cleanup()


async def ingest(client: AttachmentClient) -> Ingested:
    return await client.ingest(io.BytesIO(b"Hello"), 'a "b".md', "s1", Caller(Credentials("ann")))


async def test_a_file_goes_with_its_name_its_session_and_its_senders_token(
    client: AttachmentClient, knowledge: Knowledge
) -> None:
    found = await client.ingest(io.BytesIO(b"Hello"), "r\u00e9sum\u00e9.md", "s1", Caller(Credentials("ann")))
    assert (found.document_uid, found.mime_type, found.preview) == ("d1", "text/plain", "Hello")
    assert knowledge.heard == [("POST", "/kf/fast/ingest", "Bearer ann")]
    assert knowledge.uploaded == {"session_id": (None, b"s1"), "file": ("r\u00e9sum\u00e9.md", b"Hello")}


class Watched(tempfile.SpooledTemporaryFile[bytes]):
    """What a received form holds its file in; it tells how often it was closed."""

    closings = 0

    def close(self) -> None:
        self.closings += 1
        super().close()


async def test_the_file_is_its_senders_to_close(client: AttachmentClient) -> None:
    """Two who close a file on disk at once make one of them fail, and with it an upload that was done."""
    file = Watched()
    file.write(b"Hello")
    file.seek(0)
    await client.ingest(file, "a.md", "s1", Caller(Credentials("ann")))
    await asyncio.get_running_loop().shutdown_default_executor()  # what would have been closed in a thread is
    assert file.closings == 0
    file.close()


@pytest.mark.parametrize(
    ("status", "body", "error", "sentence"),
    [
        (400, {"detail": {"message": "It is empty."}}, UploadProcessingFailed, "It is empty."),
        (413, {"detail": {"code": "too_large", "message": "x" * 999}}, UploadProcessingFailed, "x" * 300),
        (422, {"detail": "odd"}, UploadProcessingFailed, ""),
        (401, {}, Unauthenticated, None),
        (503, {}, KfUnavailable, None),
        (302, {}, KfUnavailable, None),
        (200, {"document_uid": "d1"}, KfUnavailable, None),
        (200, ["d1"], KfUnavailable, None),
    ],
)  # fmt: skip
async def test_an_upload_that_is_not_done(
    client: AttachmentClient,
    knowledge: Knowledge,
    status: int,
    body: object,
    error: type[Exception],
    sentence: str | None,
) -> None:
    knowledge.status, knowledge.body = status, body
    with pytest.raises(error) as caught:
        await ingest(client)
    if isinstance(caught.value, UploadProcessingFailed):
        assert caught.value.sentence == sentence
    assert len(knowledge.heard) == 1


def drawn(body: bytes = b"pixels", **headers: str) -> web.Response:
    said = {"X-Image-Width": "640", "X-Image-Height": "480", "Content-Type": "image/png"}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(body=body, headers=said)


async def test_an_image_comes_back_drawn_anew(client: AttachmentClient, knowledge: Knowledge) -> None:
    knowledge.answer = drawn()
    found = await client.redraw(io.BytesIO(b"Hello"), "a.png", Caller(Credentials("ann")))
    assert found == Redrawn("image/png", 640, 480, b"pixels")
    assert knowledge.heard == [("POST", "/kf/fast/image", "Bearer ann")]
    assert knowledge.uploaded == {"file": ("a.png", b"Hello")}


@pytest.mark.parametrize(
    "answer",
    [
        drawn(b""),
        drawn(Content_Type="text/html"),
        drawn(Content_Type="image/svg+xml"),
        drawn(X_Image_Width="0"),
        drawn(X_Image_Width="2049"),
        drawn(X_Image_Height="tall"),
        drawn(bytes(10 * 1024 * 1024 + 1)),
        web.json_response({}),
        web.Response(status=500),
        web.Response(status=404),
    ],
)
async def test_what_is_no_image_is_not_taken_for_one(
    client: AttachmentClient, knowledge: Knowledge, answer: web.Response
) -> None:
    knowledge.answer = answer
    with pytest.raises(KfUnavailable):
        await client.redraw(io.BytesIO(b"Hello"), "a.png", Caller(Credentials("ann")))


async def test_deletions(client: AttachmentClient, knowledge: Knowledge) -> None:
    caller = Caller(Credentials("ann"))
    for knowledge.status in (204, 404):
        await client.delete("d1", "s 1", caller)
    knowledge.status, knowledge.body = 200, {"deleted": 2}
    await client.delete_session("s1", caller)
    assert knowledge.heard == [
        ("DELETE", "/kf/fast/ingest/d1?session_id=s+1", "Bearer ann"),
        ("DELETE", "/kf/fast/ingest/d1?session_id=s+1", "Bearer ann"),
        ("DELETE", "/kf/fast/ingest?session_id=s1", "Bearer ann"),
    ]
    knowledge.status = 500
    for call in (client.delete("d1", "s1", caller), client.delete_session("s1", caller)):
        with pytest.raises(KfUnavailable):
            await call


async def test_nobody_there_and_nobody_answering(knowledge: Knowledge, client: AttachmentClient) -> None:
    nowhere = AttachmentClient(AttachmentEndpoint(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(KfUnavailable):
        await nowhere.delete("d1", "s1", Caller())
    await nowhere.aclose()
    knowledge.hang = asyncio.Event()
    late = AttachmentClient(AttachmentEndpoint(str(client._ingest.origin()), delete_s=0.05))
    with pytest.raises(KfUnavailable):
        await late.delete("d1", "s1", Caller())
    await late.aclose()
    knowledge.hang.set()
