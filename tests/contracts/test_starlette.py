"""What starlette does below its requests and responses; what it does with sockets stands in test_uvicorn.py."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "headers": [],
    "query_string": b"",
    "asgi": {"spec_version": "2.4"},
}


async def nothing() -> Any:
    raise AssertionError("nobody reads the request")


def part(name: str, data: bytes, file: str = "") -> bytes:
    called = f'; filename="{file}"' if file else ""
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{called}\r\n\r\n'
    return head.encode() + data + b"\r\n"


def parser(*parts: bytes, **limits: int) -> MultiPartParser:
    async def stream() -> AsyncGenerator[bytes, None]:
        for one in (*parts, b"--b--\r\n"):
            yield one

    return MultiPartParser(Headers({"content-type": "multipart/form-data; boundary=b"}), stream(), **limits)


async def test_a_form_has_its_file_on_disk_and_its_size_beside_it() -> None:
    """agentic_backend/rest/attachments.py parses forms itself, under limits that `Request.form` does not take."""
    form = await parser(part("file", b"x" * 2000, "a.txt"), part("session_id", b"s"), max_part_size=1000).parse()
    file = form["file"]
    assert isinstance(file, UploadFile)
    assert (file.filename, file.size, file.file.read()) == ("a.txt", 2000, b"x" * 2000)
    assert form["session_id"] == "s"
    await form.close()
    assert file.file.closed


@pytest.mark.parametrize(
    ("parts", "limits"),
    [
        ([part("a", b"x" * 1001)], {"max_part_size": 1000}),
        ([part("a", b"x"), part("b", b"x")], {"max_fields": 1}),
        ([part("a", b"x", "a"), part("b", b"x", "b")], {"max_files": 1}),
    ],
    ids=["size of a field", "fields", "files"],
)
async def test_a_form_beyond_a_limit_is_refused(parts: list[bytes], limits: dict[str, int]) -> None:
    """agentic_backend/rest/attachments.py answers 400 to it."""
    with pytest.raises(MultiPartException):
        await parser(*parts, **limits).parse()


async def test_a_stream_is_sent_by_the_method_that_we_override() -> None:
    """knowledge_flow_backend/library/router.py overrides `stream_response`, to end a download that fails halfway."""
    sent: list[Any] = []

    class Cut(StreamingResponse):
        async def stream_response(self, send: Any) -> None:
            await send("by ours")

    async def send(message: Any) -> None:
        sent.append(message)

    await Cut(iter([b"a"]))(SCOPE, nothing, send)
    assert sent == ["by ours"]


async def test_what_nobody_handles_is_answered_and_then_raised_again() -> None:
    """backend_kit/http/errors.py renders a 500 and leaves the traceback to the server, which gets the error too."""
    sent: list[Any] = []

    async def broken(_request: Request) -> Response:
        raise RuntimeError("broken")

    async def render(_request: Request, _error: Exception) -> Response:
        return Response(b"ours", 500)

    async def send(message: Any) -> None:
        sent.append(message)

    app = Starlette(routes=[Route("/", broken)], exception_handlers={Exception: render})
    with pytest.raises(RuntimeError, match="broken"):
        await app(dict(SCOPE), nothing, send)
    assert [message.get("body", message.get("status")) for message in sent] == [500, b"ours"]
