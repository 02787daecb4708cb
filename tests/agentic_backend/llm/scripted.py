"""A model server that does exactly what a test says, down to the byte, over plain TCP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Write = Callable[[bytes], Awaitable[None]]
Step = Callable[[Write], Awaitable[None]]
"""Answers one request. What is not `Content-Length`d or chunked ends when the step returns."""

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Request:
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class ScriptedModel:
    """`requests` in order of arrival; `gone` is set when a client has closed a connection that had no whole answer."""

    base_url: str
    requests: list[Request] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    written: int = 0


@asynccontextmanager
async def scripted(*steps: Step) -> AsyncIterator[ScriptedModel]:
    """Serve the steps, one a request, the last one again and again."""
    model = ScriptedModel("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        model.connections += 1
        answered = False

        async def write(data: bytes) -> None:
            model.written += len(data)
            writer.write(data)
            await writer.drain()

        try:
            if (request := await _read(reader)) is not None:
                model.requests.append(request)
                step = steps[min(len(model.requests), len(steps)) - 1]
                answering = asyncio.ensure_future(step(write))
                hanging_up = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({answering, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    return
                hanging_up.cancel()
                answering.result()
                answered = True
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            if not answered:
                model.gone.set()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    model.base_url = f"http://{host}:{port}/v1"
    async with server:
        yield model


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.decode().split("\r\n")[1:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(headers, json.loads(body))


def token(text: str, **more: Any) -> bytes:
    """A chunk of text as an event."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more})


def finish(reason: str = "stop") -> bytes:
    """The chunk that says why the model stopped."""
    return event({"model": "scripted", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage(read: int, written: int) -> bytes:
    """The chunk that counts tokens."""
    counts = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return event({"choices": [], "usage": counts})


def event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def sends(*pieces: bytes) -> Step:
    """Write the pieces and end."""

    async def step(write: Write) -> None:
        for piece in pieces:
            await write(piece)

    return step


def streams(*pieces: bytes) -> Step:
    """Write an event stream of the pieces and end."""
    return sends(SSE_HEAD, *pieces)


def stalls_after(*pieces: bytes) -> Step:
    """Write an event stream of the pieces and then nothing, for ever."""

    async def step(write: Write) -> None:
        await write(SSE_HEAD)
        for piece in pieces:
            await write(piece)
        await asyncio.Event().wait()

    return step


def status(code: int, *headers: str, body: bytes = b"{}") -> Step:
    """Answer with a status."""
    lines = [
        f"HTTP/1.1 {code} X",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    lines += headers
    return sends("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
