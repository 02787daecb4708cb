"""Takes a multipart upload off the wire to disk, and cuts it where it grows beyond its limits."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from backend_kit.wire import InvalidJson, loads
from knowledge_flow_backend.errors import BadRequest, MissingFilename, TooLarge
from knowledge_flow_backend.ingest.names import label
from knowledge_flow_backend.ingest.staging import Folder, Staging

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_FLUSH_BYTES = 1024 * 1024
_MAX_FIELD_BYTES = 256 * 1024
"""Bound of all fields of a request with their names: they are kept in memory."""
_MAX_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 16


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
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequest("not multipart/form-data", field="Content-Type")
    form = _Form(staging, limits, upload)
    events = _Events()
    parser = MultipartParser(
        boundary, events.callbacks(), max_header_count=_MAX_HEADERS, max_header_size=_MAX_HEADER_BYTES
    )
    total = 0
    try:
        async for data in stream:
            total += len(data)
            if total > limits.request_bytes:
                raise TooLarge("request")
            parser.write(data)
            for event, value in events.take():
                await form.handle(event, value)
    except FormParserError:
        raise BadRequest("a broken multipart body") from None
    finally:
        await form.close()
    if not form.complete:
        raise BadRequest("a multipart body that ends early")


class _Events:
    """What the parser, which calls back synchronously, has seen in one read."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, bytes]] = []

    def take(self) -> list[tuple[str, bytes]]:
        """What came since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def callbacks(self) -> "MultipartCallbacks":
        """The parser's hooks; the spans it gives are copied, as it reuses its buffer."""
        return {
            "on_header_field": self._span("header_field"),
            "on_header_value": self._span("header_value"),
            "on_header_end": self._mark("header_end"),
            "on_headers_finished": self._mark("headers_finished"),
            "on_part_data": self._span("part_data"),
            "on_part_end": self._mark("part_end"),
            "on_end": self._mark("end"),
        }

    def _mark(self, name: str) -> Callable[[], None]:
        return lambda: self._seen.append((name, b""))

    def _span(self, name: str) -> Callable[[bytes, int, int], None]:
        return lambda data, start, end: self._seen.append((name, data[start:end]))


class _Form:
    """Turns the parser's events into files and fields, one part at a time."""

    def __init__(self, staging: Staging, limits: UploadLimits, upload: Upload) -> None:
        self._staging = staging
        self._limits = limits
        self._upload = upload
        self._name = self._value = self._disposition = b""
        self._field: bytes | None = None
        self._text = b""
        self._field_bytes = 0
        self._file: _Sink | None = None
        self.complete = False

    async def handle(self, event: str, value: bytes) -> None:
        """Take one event in."""
        match event:
            case "part_data":
                await self._data(value)
            case "header_field":
                self._name += value
            case "header_value":
                self._value += value
            case "header_end":
                if self._name.lower() == b"content-disposition":
                    self._disposition = self._value
                self._name = self._value = b""
            case "headers_finished":
                await self._begin()
            case "part_end":
                await self._end()
            case "end":
                self.complete = True

    async def close(self) -> None:
        """Close a file that was cut."""
        if self._file is not None:
            await self._file.close()
            self._file = None

    async def _begin(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        raw = options.get(b"filename")
        if raw is None:
            self._field, self._text = options.get(b"name", b""), b""
            self._keep(len(self._field))
            return
        name = label(_text(raw))
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
            self._upload.fields[_text(self._field)] = _text(self._text)
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


def _text(raw: bytes) -> str:
    """UTF-8 as browsers send it, else Latin-1, which cannot fail."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
