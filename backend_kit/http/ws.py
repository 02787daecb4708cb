"""The WebSocket protocol of uvicorn, made safe against peers that do not read, do not answer, or break the rules.

uvicorn closes a transport and then waits for its buffer to empty, which never happens with a peer that reads nothing
(docs/libraries.md#U4). Here every closing is bounded: what is still unsent after `linger_s` is dropped with the
connection.
"""

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
from asyncio.transports import BaseTransport
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from uvicorn._types import ASGISendEvent, WebSocketScope
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Close, CloseCode, Frame
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from backend_kit.http.context import route_of

WRITE_HIGH_WATER_BYTES = 64 * 1024
READ_SLICE_BYTES = 4 * 1024
"""Bytes parsed before yielding: uvloop reads up to 256,000, which as empty pings blocked the loop for 1.3 s."""
FRAMES_PER_S = 2000
"""Frames of any kind that a peer may send in a second of the clock; more is 1008."""
FRAGMENTS = 4096
"""Fragments of one message; more is 1008. Empty ones do not add to its size, but each is kept."""
USER_TIMEOUT_MS = 20_000
"""Linux gives a connection up when sent data stays unacknowledged, or a zero window shut, for this long."""
_Decoder: Final = getincrementaldecoder("utf-8")
_TEXT: Final = b"\x81"
"""The first byte of a frame that is a whole text message."""


def text_frame(text: bytes) -> bytes:
    """A whole text message as a server's frame (RFC 6455 §5.2): not masked, not compressed."""
    size = len(text)
    if size < 126:
        return b"%b%c%b" % (_TEXT, size, text)
    if size < 65536:
        return b"%b\x7e%b%b" % (_TEXT, size.to_bytes(2, "big"), text)
    return b"%b\x7f%b%b" % (_TEXT, size.to_bytes(8, "big"), text)


def limit_unread(transport: BaseTransport) -> None:
    """Have the kernel drop a peer that takes nothing for `USER_TIMEOUT_MS`, and send small writes immediately."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # These fail if the peer is gone already, which the transport reports anyway.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def _is_address(host: str) -> bool:
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


class FragmentProtocol(ServerProtocol):
    """The codec of the library, which takes a Close between the fragments of a message for a violation; RFC 6455 allows
    a control frame there (§5.4). It is answered as any other Close, and the message is dropped."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """Fail the connection; where a Close that is none of its own fault came, with the code of that."""
        received = self.close_rcvd
        if received is not None and self.state is OPEN:
            code = CloseCode.NORMAL_CLOSURE if received.code == CloseCode.NO_STATUS_RCVD else received.code
            reason = received.reason
        super().fail(code, reason)


class HardenedWS(WebSocketsSansIOProtocol):
    """`uvicorn.Config(ws=HardenedWS)`. The application finds callables in `scope["state"]`: `abort` drops the
    connection at once, for a writer whose send deadline has passed, at any time and more than once; `send_texts` sends
    text messages, a tenth of the work of one ASGI `send` a message; `send_texts_now` does where that need not wait.

    A violation of the protocol, or of the bounds above, is answered with its close code (1002, 1007, 1008, 1009); then
    the sending side is shut and what still comes is discarded for at most `linger_s`, so that the code reaches a peer
    in the middle of sending.
    """

    linger_s = 5.0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: Any = None,
        *,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """As uvicorn's. `on_end` is called when the connection has ended."""
        ours = {"abort": self.abort, "send_texts": self.send_texts, "send_texts_now": self.send_texts_now}
        # What an HTTP connection gives its requests would keep that alive as long as this.
        given = {name: value for name, value in app_state.items() if name not in ("send_now", "on_gone")}
        super().__init__(config, server_state, {**given, **ours}, _loop)
        self.close_timeout = self.linger_s
        # uvicorn hands its own logger to the codec, which then prints headers and frames at DEBUG, tokens included.
        codec = self.conn
        codec.parser.close()  # it refers to the codec, which would stay until a collection
        self.conn = FragmentProtocol(
            extensions=codec.available_extensions,
            max_size=config.ws_max_size,
            logger=logging.getLogger("websockets.server"),
        )
        self.conn.debug = False  # it would print the same, to that logger
        self._on_end = on_end
        self._decoder = _Decoder()
        # uvicorn takes the last round trip off the wait for the next ping: so the first comes after a half to a whole
        # interval, and sockets that were opened together, after a restart, are not pinged together ever after.
        self.last_ping_rtt = random.uniform(0.0, (self.ping_interval or 0.0) / 2)  # noqa: S311 - no secret
        self._linger_timer: asyncio.TimerHandle | None = None
        self._seen: dict[int, int] = {}  # how many frames came in this second of the loop's clock

    def abort(self) -> None:
        """Drop the connection now, with all unsent data."""
        if self.transport is not None and not self.disconnected:
            self.transport.abort()

    def connection_made(self, transport: BaseTransport) -> None:
        """Set the limits of the socket, then as uvicorn does."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        limit_unread(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn does; then tell, and break the circles through what the application was given."""
        super().connection_lost(exc)
        if self._on_end is not None:
            self._on_end()
            self._on_end = None
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self.app_state = {}
        self.conn.parser.close()

    def data_received(self, data: bytes) -> None:
        """Feed the codec; after a violation, discard."""
        for start in range(0, len(data), READ_SLICE_BYTES):
            if self.conn.parser_exc is not None or self.disconnected:
                return
            super().data_received(data[start : start + READ_SLICE_BYTES])
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # The codec refused the head (414, 431) and wrote why; uvicorn would wait for more indefinitely.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        self._end_closing()

    def handle_events(self) -> None:
        """Hand over what was parsed, within the limits above."""
        second = int(self.loop.time())
        self._seen = {second: self._seen.get(second, 0) + len(self.conn.events)}
        super().handle_events()
        if self._seen[second] > FRAMES_PER_S or len(self.frames) > FRAGMENTS:
            self._fail(CloseCode.POLICY_VIOLATION)

    def handle_ping(self) -> None:
        """Answer, unless the peer does not read: then nothing more is written, and the keepalive decides."""
        pong = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pong))

    def keepalive_timeout(self) -> None:
        """Handle a missing pong: drop immediately if bytes are unsent, as the close frame could not be sent either."""
        if not self.close_sent and self.transport.get_write_buffer_size() > 0:
            self.abort()
            return
        super().keepalive_timeout()
        self._end_closing()

    def shutdown(self) -> None:
        """Close with 1012, unless the connection is closing already (uvicorn would raise and stop there)."""
        if self.transport.is_closing() or (self.handshake_complete and self.conn.state is not OPEN):
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()
        self._end_closing()

    async def send(self, message: ASGISendEvent) -> None:
        """Send as uvicorn does; a refusal by HTTP answer completes the handshake too, without an ERROR line.

        Raises ClientDisconnected on a connection that was closed here for a violation. uvicorn logs path and query of
        each handshake from its scope, which nothing else reads after the answer: so it is replaced, and the log shows
        the route and the peer.
        """
        if not self.handshake_complete and self.initial_response is None:
            self.scope = self._loggable()
        if self.close_sent and self.initial_response is None and message["type"] == "websocket.send":
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.accept" and self.handshake_complete:
            # Nothing reads these again; the application has the headers in its scope.
            del self.request, self.response, self.scope
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    async def send_texts(self, texts: Sequence[bytes]) -> None:
        """Send text messages, each whole and encoded as UTF-8, in one write, once the handshake is accepted.

        Waits first while the peer does not read. Raises ClientDisconnected, an OSError, once the connection is gone.
        uvicorn makes seven calls a frame to build what `text_frame` builds. With permessage-deflate agreed the codec
        makes the frames, since it holds the compressor's state.
        """
        await self.writable.wait()
        if not self.send_texts_now(texts):
            raise ClientDisconnected

    def send_texts_now(self, texts: Sequence[bytes]) -> bool:
        """`send_texts` at once. False, with nothing sent, while the peer does not read or once it is gone."""
        if not self.writable.is_set() or self.disconnected or self.close_sent or self.conn.state is not OPEN:
            return False
        if self.conn.extensions:
            for text in texts:
                self.conn.send_text(text)
            frames = self.conn.data_to_send()
        else:
            frames = [text_frame(text) for text in texts]
        self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        return True

    def handle_text(self, event: Frame) -> None:
        """Take a text, or its first fragment."""
        if not event.fin:
            self._decoder.reset()
            self._check_fragment(event)
        super().handle_text(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a further fragment."""
        if self.curr_msg_data_type == "text":
            self._check_fragment(event)
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Give a whole message to the application; text that is not UTF-8 is 1007 and no log line."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA)
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Send the close frame that the codec chose, shut the sending side, and leave the peer time to read it."""
        if self.close_sent:
            return
        self.stop_keepalive()
        sent = self.conn.close_sent or Close(CloseCode.ABNORMAL_CLOSURE, "")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason})
        self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.linger_s, self.abort)

    async def run_asgi(self) -> None:
        """Run the application; its end closes the connection, even if the peer never answers our close frame."""
        await super().run_asgi()
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = None if self.disconnected else self.loop.call_later(self.linger_s, self.abort)
        self._end_closing()

    def _loggable(self) -> WebSocketScope:
        """The scope for logging, without anything that the client chose."""
        client = self.scope["client"]
        # A trusted proxy may pass on what a client sent.
        peer = client if client is not None and _is_address(client[0]) else self.client
        known = {**self.scope, "client": peer, "path": route_of(cast("dict[str, Any]", self.scope))}
        return cast("WebSocketScope", {**known, "raw_path": b"", "query_string": b"", "headers": []})

    def _check_fragment(self, event: Frame) -> None:
        """Fail at the fragment that cannot be a part of a text, however many are still to come."""
        try:
            self._decoder.decode(event.data, event.fin)
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA)

    def _fail(self, code: CloseCode) -> None:
        """Fail the connection for a violation that the codec accepts."""
        if self.conn.state is OPEN:
            self.conn.fail(code)
            self.handle_parser_exception()

    def _end_closing(self) -> None:
        """Bound the flush of a transport that is closing."""
        if self._linger_timer is None and not self.disconnected and self.transport.is_closing():
            self._linger_timer = self.loop.call_later(self.linger_s, self.abort)
