"""A multipart form as it comes off the wire: what each read of it has brought, in order, with nothing kept."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_HEADER_BYTES: Final = 64 * 1024
_MAX_HEADERS: Final = 16


class BrokenForm(Exception):
    """The body is no whole multipart form."""


class MultipartEvents:
    """The events of one form. Implements an iteration over `(kind, value)`.

    `begin` opens a part, its value is the Content-Disposition; `data` is some of its content, `end` closes it. Headers
    of a part are bounded, and no more of its content is held than one read of the stream has.
    """

    def __init__(self, content_type: str, stream: AsyncIterator[bytes]) -> None:
        """Raises `BrokenForm` for another content type."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise BrokenForm
        self._stream = stream
        self._seen: list[tuple[str, bytes]] = []
        self._name = self._value = self._disposition = b""
        self._whole = False
        try:
            self._parser = MultipartParser(
                boundary, self._callbacks(), max_header_count=_MAX_HEADERS, max_header_size=_MAX_HEADER_BYTES
            )
        except FormParserError:
            raise BrokenForm from None  # of a boundary that is too long

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        """The events; raises `BrokenForm`, or what the stream raises."""
        async for data in self._stream:
            try:
                self._parser.write(data)
            except FormParserError:
                raise BrokenForm from None
            seen, self._seen = self._seen, []
            for event in seen:
                yield event
        if not self._whole:
            raise BrokenForm

    def _callbacks(self) -> "MultipartCallbacks":
        """The parser's hooks; the spans it gives are copied, as it reuses its buffer."""
        return {
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._begin,
            "on_part_data": lambda data, start, end: self._seen.append(("data", data[start:end])),
            "on_part_end": lambda: self._seen.append(("end", b"")),
            "on_end": self._end,
        }

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _begin(self) -> None:
        self._seen.append(("begin", self._disposition))
        self._disposition = b""

    def _end(self) -> None:
        self._whole = True


def names_of(disposition: bytes) -> tuple[str, str | None]:
    """The name of a part, and that of its file: None where it is a field."""
    _, options = parse_options_header(disposition)
    file = options.get(b"filename")
    return as_text(options.get(b"name", b"")), None if file is None else as_text(file)


def as_text(raw: bytes) -> str:
    """UTF-8 as browsers send it, else Latin-1, which cannot fail."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
