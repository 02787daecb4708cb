"""Takes a multipart upload off the wire to disk, and cuts it where it grows beyond its limits."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from backend_kit.http.multipart import BrokenForm, MultipartEvents, as_text, names_of
from backend_kit.wire import InvalidJson, loads
from knowledge_flow_backend.errors import BadRequest, MissingFilename, TooLarge
from knowledge_flow_backend.ingest.names import label
from knowledge_flow_backend.ingest.staging import Folder, Staging

_FLUSH_BYTES = 1024 * 1024
_MAX_FIELD_BYTES = 256 * 1024
"""Bound of all fields of a request with their names: they are kept in memory."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Bounds of one request: bytes of a file, files, bytes in all."""

    file_bytes: int
    files: int
    request_bytes: int


@dataclass(slots=True)
class ReceivedFile:
    """One file on disk. `name` is a clean label, `sha256` the hash of its bytes in hex."""

    name: str
    folder: Folder
    size: int = 0
    sha256: str = ""


@dataclass(slots=True)
class Upload:
    """What a request brought."""

    files: list[ReceivedFile] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, object]:
        """The JSON object of `metadata_json`, empty where it was not sent. Raises `BadRequest`."""
        try:
            value = loads(self.fields.get("metadata_json") or "{}")
        except InvalidJson:
            raise BadRequest("metadata_json is not JSON", field="metadata_json") from None
        if not isinstance(value, dict):
            raise BadRequest("metadata_json is not an object", field="metadata_json")
        return value


async def receive(
    content_type: str, stream: AsyncIterator[bytes], staging: Staging, limits: UploadLimits, upload: Upload
) -> None:
    """Fill `upload` from a request's body, also where it breaks off: the caller drops its folders in any case.

    Raises `TooLarge` within one network read of a limit, `BadRequest` for a body that is no whole multipart form,
    `MissingFilename`, or OSError where the disk refuses.
    """
    total = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal total
        async for data in stream:
            total += len(data)
            if total > limits.request_bytes:
                raise TooLarge("request")
            yield data

    form = _Form(staging, limits, upload)
    try:
        async for event, value in MultipartEvents(content_type, counted()):
            await form.handle(event, value)
    except BrokenForm:
        raise BadRequest("no whole multipart/form-data", field="Content-Type" if not total else None) from None
    finally:
        await form.close()


class _Form:
    """Turns a form's events into files and fields, one part at a time."""

    def __init__(self, staging: Staging, limits: UploadLimits, upload: Upload) -> None:
        self._staging = staging
        self._limits = limits
        self._upload = upload
        self._field: str | None = None
        self._text = b""
        self._field_bytes = 0
        self._file: _Sink | None = None

    async def handle(self, event: str, value: bytes) -> None:
        """Take one event in."""
        match event:
            case "begin":
                await self._begin(value)
            case "data":
                await self._data(value)
            case "end":
                await self._end()

    async def close(self) -> None:
        """Close a file that was cut."""
        if self._file is not None:
            await self._file.close()
            self._file = None

    async def _begin(self, disposition: bytes) -> None:
        field, file = names_of(disposition)
        if file is None:
            self._field, self._text = field, b""
            self._keep(len(field))
            return
        name = label(file)
        if not name:
            raise MissingFilename
        if len(self._upload.files) >= self._limits.files:
            raise TooLarge("files")
        received = ReceivedFile(name, await self._staging.folder())
        self._upload.files.append(received)
        self._file = await asyncio.to_thread(_Sink, received)

    async def _data(self, value: bytes) -> None:
        if self._file is not None:
            if self._file.received.size + len(value) > self._limits.file_bytes:
                raise TooLarge("file")
            await self._file.add(value)
        else:
            self._keep(len(value))
            self._text += value

    def _keep(self, size: int) -> None:
        """Count what a field takes. Raises `TooLarge`."""
        self._field_bytes += size
        if self._field_bytes > _MAX_FIELD_BYTES:
            raise TooLarge("field")

    async def _end(self) -> None:
        if self._file is not None:
            await self.close()
        elif self._field is not None:
            self._upload.fields[self._field] = as_text(self._text)
        self._field = None


class _Sink:
    """A file that is written and hashed in a thread, a megabyte at a time."""

    def __init__(self, received: ReceivedFile) -> None:
        self.received = received
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = Path(received.folder.raw).open("xb")  # noqa: SIM115 - closed by close()

    async def add(self, data: bytes) -> None:
        self.received.size += len(data)
        self._buffer += data
        if len(self._buffer) >= _FLUSH_BYTES:
            await asyncio.to_thread(self._flush)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _flush(self) -> None:
        self._hash.update(self._buffer)
        self._file.write(self._buffer)
        self._buffer.clear()

    def _close(self) -> None:
        with self._file:
            self._flush()
        self.received.sha256 = self._hash.hexdigest()
