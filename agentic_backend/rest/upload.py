"""Parses the form of one attachment as it arrives: the session that it is for is known before its file is stored."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from starlette.requests import ClientDisconnect

from agentic_backend.errors import AttachmentTooLarge, BadRequest, MissingFilename
from backend_kit.http.multipart import BrokenForm, MultipartEvents, as_text, names_of

FORM_BYTES: Final = 64 * 1024
"""Bytes of a form's fields, and of a file before the field `session_id`."""
_FLUSH_BYTES: Final = 1024 * 1024
_MAX_ID_CHARS: Final = 64

Admit = Callable[[str, str], Awaitable[None]]
"""Called with the session's id and the file's name, as sent, before the file is stored; raises if it may not be."""


@dataclass(frozen=True, slots=True)
class Received:
    """A file on disk without a name there, read from its beginning; its reader must close it, by `upload.receive`'s
    stack. `size` in bytes."""

    session_id: str
    name: str
    size: int
    file: IO[bytes]


class _Sink:
    """An unnamed temporary file, which is opened, written and closed in threads, a megabyte at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._buffer = bytearray()

    @classmethod
    async def open(cls, directory: Path | None, stack: AsyncExitStack) -> "_Sink":
        """Open it; `stack` closes it."""
        file: IO[bytes] = await asyncio.to_thread(_unnamed, directory)
        stack.push_async_callback(asyncio.to_thread, file.close)
        return cls(file)

    async def add(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _FLUSH_BYTES:
            await self._flush()

    async def rewound(self) -> IO[bytes]:
        await self._flush()
        await asyncio.to_thread(self._file.seek, 0)
        return self._file

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        await asyncio.to_thread(self._file.write, data)


def _unnamed(directory: Path | None) -> IO[bytes]:
    if directory is not None:  # each time: a cleaner of temporary directories may have removed it
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=directory)


class _Form:
    """The parts of an upload. Until the session is known, little of the file is taken, and kept in memory."""

    def __init__(self, max_bytes: int, admit: Admit, directory: Path | None, stack: AsyncExitStack) -> None:
        self._max_bytes = max_bytes
        self._admit = admit
        self._directory = directory
        self._stack = stack
        self._field: str | None = None
        self._text = b""
        self._field_bytes = 0
        self._early = b""
        self._in_file = False
        self._session_id: str | None = None
        self._name: str | None = None
        self._size = 0
        self._sink: _Sink | None = None

    async def handle(self, event: str, value: bytes) -> None:
        """Take one event in."""
        if event == "begin":
            await self._begin(value)
        elif event == "data":
            await (self._file_data(value) if self._in_file else self._field_data(value))
        else:
            await self._end()

    async def received(self) -> Received:
        """The file, once the form is whole. Raises `BadRequest` where a part is missing."""
        if self._name is None:
            raise BadRequest("no file", field="file")
        if self._sink is None:
            raise BadRequest("no session_id", field="session_id")
        assert self._session_id is not None
        return Received(self._session_id, self._name, self._size, await self._sink.rewound())

    async def _begin(self, disposition: bytes) -> None:
        field, file = names_of(disposition)
        self._field, self._text, self._in_file = field, b"", file is not None
        if file is None:
            self._count(len(field))
            return
        if self._name is not None or field != "file":
            raise BadRequest("one file, named file", field="file")
        if not file:
            raise MissingFilename
        self._name = file
        if self._session_id is not None:
            await self._open(self._session_id, file)

    async def _field_data(self, value: bytes) -> None:
        self._count(len(value))
        self._text += value

    async def _file_data(self, value: bytes) -> None:
        self._size += len(value)
        if self._size > self._max_bytes:
            raise AttachmentTooLarge
        if self._sink is not None:
            await self._sink.add(value)
        elif self._size > FORM_BYTES:
            raise BadRequest("session_id comes before a file of this size", field="session_id")
        else:
            self._early += value

    async def _end(self) -> None:
        if not self._in_file and self._field == "session_id" and self._session_id is None:
            session_id = as_text(self._text)
            if not 0 < len(session_id) <= _MAX_ID_CHARS:
                raise BadRequest("no session_id", field="session_id")
            self._session_id = session_id
            if self._name is not None:
                await self._open(session_id, self._name)
        self._field, self._in_file = None, False

    async def _open(self, session_id: str, name: str) -> None:
        await self._admit(session_id, name)
        self._sink = await _Sink.open(self._directory, self._stack)
        await self._sink.add(self._early)
        self._early = b""

    def _count(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > FORM_BYTES:
            raise BadRequest("fields of more than 64 KiB")


async def receive(
    content_type: str,
    stream: AsyncIterator[bytes],
    max_bytes: int,
    admit: Admit,
    stack: AsyncExitStack,
    directory: Path | None = None,
) -> Received:
    """The file of a form, of at most `max_bytes`, in an unnamed temporary file in `directory` (None: the system's) that
    `stack` closes.

    Nothing of the file is stored before `admit` has returned; a file before the field `session_id` may have 64 KiB.
    Raises what `admit` raises, `BadRequest`, `MissingFilename`, or `AttachmentTooLarge` within one read of the limit.
    """
    form = _Form(max_bytes, admit, directory, stack)
    try:
        async for event, value in MultipartEvents(content_type, stream):
            await form.handle(event, value)
    except BrokenForm:
        raise BadRequest("no whole multipart/form-data", field="Content-Type") from None
    except ClientDisconnect:
        raise BadRequest("the client went away") from None
    return await form.received()
