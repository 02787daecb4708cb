"""Server-sent events from bytes: a parser that does no I/O and holds no more than its bound."""

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_FIELD: Final = b"data: "
_NEXT: Final = b"\n\n" + _FIELD


class SseTooLarge(ValueError):
    """A line or an event grew beyond the parser's bound."""


class SseParser:
    """Turns the bytes of a stream, cut anywhere, into the data of its events (WHATWG HTML §9.2.6).

    Lines end in LF, CRLF or CR. Several `data` lines of one event are joined by LF. Comments, `event`, `id` and
    `retry` are read over. An event that the stream's end cuts off is never delivered. Memory is bounded by
    `max_bytes` plus one fed chunk.
    """

    __slots__ = ("_after_cr", "_at_start", "_data", "_data_bytes", "_max_bytes", "_partial")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes, in order. Raises `SseTooLarge`."""
        if (whole := self._whole_events(chunk)) is not None:
            return whole
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_lf(chunk)
        lines = chunk.split(b"\n")
        if self._partial:
            # A bytearray grows in place: a line that comes byte by byte costs its length, not its square.
            self._partial += lines[0]
            if len(lines) > 1:
                lines[0] = bytes(self._partial)
                self._partial.clear()
            else:
                lines.clear()
        if lines:
            self._partial += lines.pop()
        if len(self._partial) > self._max_bytes:
            raise SseTooLarge(f"a line of more than {self._max_bytes} bytes")
        events: list[bytes] = []
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
                self._data_bytes = 0
        return events

    def _whole_events(self, chunk: bytes) -> list[bytes] | None:
        """The data of a chunk that is whole events of one `data` line each, as model servers write them, else None."""
        if self._partial or self._data or self._after_cr or len(chunk) > self._max_bytes:
            return None
        if not chunk.startswith(_FIELD) or not chunk.endswith(b"\n\n") or b"\r" in chunk:
            return None
        events = chunk[len(_FIELD) : -2].split(_NEXT)
        if chunk.count(b"\n") != 2 * len(events):
            return None
        self._at_start = False
        return events

    def _with_lf(self, chunk: bytes) -> bytes:
        """The chunk with every line end as LF. A CR at its end counts at once; an LF that follows it is then void."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _field(self, line: bytes) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
        elif line == b"data":
            value = b""
        else:
            return
        self._data_bytes += len(value) + 1
        if self._data_bytes > self._max_bytes + 1:
            raise SseTooLarge(f"an event of more than {self._max_bytes} bytes")
        self._data.append(value)
