"""Doors that answer a request by an event stream, as a `ClientSocket`: an ask is a request, a frame is an event."""

import asyncio
from collections import deque
from collections.abc import Mapping

import aiohttp

from ws_bench.errors import TurnBroken, json_or_text, refusal_text
from ws_bench.load.client import AUTH_STATUSES, CLOSE_TIMEOUT_S, ClientSocket

KEPT_S = 4.0
"""For how long a connection may be idle and used again: less than the 5 s after which the service closes it."""
_SESSION_HEADER = "X-Turnwise-Session-Id"


class StreamConnector:
    """Opens nothing itself: a client's connection is opened by its first ask, and kept."""

    dials = False

    def __init__(self, url: str, headers: Mapping[str, str], *, max_size: int, insecure: bool = False) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
        self._max_size = max_size
        self._insecure = insecure

    async def connect(self, *, bytes_per_s: float = 0.0) -> ClientSocket:
        """See `Connector.connect`; it reads as fast as it can. Raises ValueError for `bytes_per_s`."""
        if bytes_per_s:
            raise ValueError("an event stream is read as fast as it comes")
        # A connection of each client's own, as a socket is.
        connector = aiohttp.TCPConnector(limit=1, ssl=not self._insecure, keepalive_timeout=KEPT_S)
        timeout = aiohttp.ClientTimeout(total=None)
        http = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self._stream(http, self._url, self._max_size)

    def _stream(self, http: aiohttp.ClientSession, url: str, max_size: int) -> ClientSocket:
        return _EventStream(http, url, max_size)


class RunConnector(StreamConnector):
    """The same for runs of LangGraph's API: an ask begins with a line that has its path below the URL, and a frame is
    an event with its name, `{"event", "data"}`."""

    def _stream(self, http: aiohttp.ClientSession, url: str, max_size: int) -> ClientSocket:
        return _RunStream(http, url.rstrip("/"), max_size)


class _EventStream:
    """A `ClientSocket` whose frames are the data of the events of the answer to the newest ask."""

    def __init__(self, http: aiohttp.ClientSession, url: str, max_size: int) -> None:
        self._http = http
        self._url = url
        self._max_size = max_size
        self._answer: aiohttp.ClientResponse | None = None
        self._rest = b""
        self._data: list[bytes] = []
        self._events: deque[bytes] = deque()
        self._late: deque[bytes] = deque()
        self._closed = False
        self.kept_session = ""

    async def send(self, text: str) -> None:
        await self._end_answer()
        try:
            url, body = self._addressed(text)
            answer = await self._http.post(url, data=body.encode(), allow_redirects=False)
            if answer.status != 200:
                raise _refusal(answer.status, await answer.read())
        except aiohttp.ClientError as failure:
            raise http_failure(failure) from failure
        if answer.content_type != "text/event-stream":
            answer.close()
            raise TurnBroken("protocol_no_stream", answer.content_type)
        self._answer = answer
        self.kept_session = answer.headers.get(_SESSION_HEADER, self.kept_session)

    async def recv(self) -> bytes:
        if self._closed:
            if self._late:
                return self._late.popleft()
            raise TurnBroken("stream_closed")
        while not self._events:
            if self._answer is None:
                raise TurnBroken("stream_cut", "the answer ended before its terminal event")
            await self._read(self._answer)
        return self._events.popleft()

    async def close(self, code: int = 1000, _reason: str = "done", /) -> None:
        if code == 1000:
            await self._end_answer()
        else:
            self.abort()
        self._closed = True
        await self._http.close()

    def abort(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def _addressed(self, text: str) -> tuple[str, str]:
        """Where an ask goes, and its body."""
        return self._url, text

    async def _end_answer(self) -> None:
        """Read the answer to its end, so that its connection can be used again; what still comes is late."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._answer is not None:
                    await self._read(self._answer)
        except (TurnBroken, TimeoutError):
            self.abort()
        self._late.extend(self._events)
        self._events.clear()
        self._rest, self._data = b"", []

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        """Take what has come. Raises `TurnBroken`."""
        try:
            chunk = await answer.content.readany()
        except aiohttp.ClientError as failure:
            self.abort()
            raise TurnBroken("stream_cut", type(failure).__name__) from failure
        if not chunk:
            self._answer = None
            self._ended()
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line.removesuffix(b"\r"))
        if len(self._rest) + sum(map(len, self._data)) > self._max_size:
            raise TurnBroken("event_too_large", f"more than {self._max_size} bytes")

    def _take(self, line: bytes) -> None:
        """One line of the stream: data of an event, its end, or what is not needed (comments, its id and name)."""
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            self._events.append(b"\n".join(self._data))
            self._data = []

    def _ended(self) -> None:
        """The answer came to its end, as its framing says: one that is cut never does."""


class _RunStream(_EventStream):
    """A `ClientSocket` whose frames are named events. Where no event says the end, the end of the answer does."""

    def __init__(self, http: aiohttp.ClientSession, url: str, max_size: int) -> None:
        super().__init__(http, url, max_size)
        self._name = b""
        self._over = True

    def _addressed(self, text: str) -> tuple[str, str]:
        path, _, body = text.partition("\n")
        self._name, self._over = b"", False
        return self._url + path, body

    def _take(self, line: bytes) -> None:
        if line.startswith(b"event:"):
            self._name = line[6:].strip()
        elif not line and self._data:
            data = b"\n".join(self._data)
            self._events.append(b'{"event":"%s","data":%s}' % (self._name, data))
            self._over = self._over or self._name == b"end"
            self._name, self._data = b"", []
        else:
            super()._take(line)

    def _ended(self) -> None:
        if not self._over:
            self._over = True
            self._events.append(b'{"event":"end","data":null}')


def http_failure(failure: aiohttp.ClientError) -> TurnBroken:
    """The error class of a request that got no answer."""
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return TurnBroken("dns", str(failure))
    if isinstance(failure, aiohttp.ClientSSLError):
        return TurnBroken("tls", f"{failure.host}:{failure.port}")
    if isinstance(failure, aiohttp.ClientConnectorError):
        return TurnBroken("tcp_refused", f"{failure.host}:{failure.port}")
    if isinstance(failure, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return TurnBroken("tcp_reset")
    return TurnBroken("http_broken", type(failure).__name__)


def _refusal(status: int, body: bytes) -> TurnBroken:
    kind = f"auth_{status}" if status in AUTH_STATUSES else f"http_{status}"
    # The next ask is a request of its own.
    return TurnBroken(kind, refusal_text(json_or_text(body)), usable=True)
