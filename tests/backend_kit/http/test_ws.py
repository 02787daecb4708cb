"""Our WebSocket protocol against raw frames."""

import asyncio
import contextlib
import logging
import socket
import zlib

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode
from websockets.sync import client

from backend_kit.http import ServeSettings
from backend_kit.http.ws import HardenedWS, text_frame
from tests.backend_kit.http.socket_app import (
    TEXTS,
    Running,
    SocketApp,
    at_end,
    close_code,
    connect,
    frame,
    handshake,
    read_frame,
    running,
)

pytestmark = pytest.mark.servers

KEEPALIVE = ServeSettings(ws_ping_interval_s=0.2, ws_ping_timeout_s=0.2)
SMALL_BUFFER = 4096


@pytest.fixture
def socket_app() -> SocketApp:
    return SocketApp()


def all_gone(server: Running, socket_app: SocketApp) -> None:
    """Return once the server holds neither connection nor task."""
    state = server.server.server_state
    server.until(socket_app, lambda: not state.connections and not state.tasks)


def test_a_peer_that_never_reads_is_dropped_with_its_task(socket_app: SocketApp) -> None:
    with running(socket_app, KEEPALIVE) as server, connect(server.port, receive_buffer=SMALL_BUFFER) as sock:
        handshake(sock, "/flood")
        assert socket_app.next() == ("accepted",)
        assert socket_app.next()[0] == "send failed"
        all_gone(server, socket_app)


def test_what_is_sent_at_once_stops_at_a_peer_that_never_reads(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port, receive_buffer=SMALL_BUFFER) as sock:
        handshake(sock, "/flood-now")
        what, count = socket_app.next()
        assert what == "full"
        assert count > 0
        sock.close()
        assert socket_app.next() == ("gone", False)
        all_gone(server, socket_app)


def test_the_abort_handle_drops_a_peer_that_never_reads(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port, receive_buffer=SMALL_BUFFER) as sock:
        handshake(sock, "/abort")
        assert socket_app.next() == ("aborted",)
        all_gone(server, socket_app)


def test_a_request_has_the_same_handle(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port, receive_buffer=SMALL_BUFFER) as sock:
        sock.sendall(b"GET /abort HTTP/1.1\r\nHost: x\r\n\r\n")
        assert socket_app.next() == ("aborted",)
        all_gone(server, socket_app)


def test_a_peer_that_does_not_answer_our_close_is_dropped(socket_app: SocketApp) -> None:
    with running(socket_app, ServeSettings(ws_linger_s=0.2)) as server, connect(server.port) as sock:
        handshake(sock, "/unwelcome")
        assert socket_app.next() == ("closed",)
        all_gone(server, socket_app)
        assert close_code(sock) == 4401


def test_a_healthy_peer_stays_through_many_pings(socket_app: SocketApp) -> None:
    # All of them together outlast the time for one answer.
    settings = ServeSettings(ws_ping_interval_s=0.2, ws_ping_timeout_s=3.0)
    with running(socket_app, settings) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        for _ in range(16):
            opcode, payload = read_frame(sock)
            assert opcode == 9
            sock.sendall(frame(10, payload))
        sock.sendall(frame(1, b"still here"))
        while (said := read_frame(sock))[0] == 9:  # the next ping may come before it
            sock.sendall(frame(10, said[1]))
        assert said == (1, b"still here")


def test_sockets_that_are_opened_together_are_not_pinged_together(socket_app: SocketApp) -> None:
    with running(socket_app) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            handshake(stack.enter_context(connect(server.port)), "/echo")

        def waits_s() -> list[float]:
            sockets = server.server.server_state.connections
            timers = [sock.ping_timer for sock in sockets if isinstance(sock, HardenedWS) and sock.ping_timer]
            return [timer.when() - asyncio.get_running_loop().time() for timer in timers]

        server.until(socket_app, lambda: len(waits_s()) == 20)
        waits = server.on_loop(socket_app, waits_s)
        assert len({round(wait) for wait in waits}) > 5
        assert max(waits) <= ServeSettings().ws_ping_interval_s


def test_a_silent_peer_is_told_1011(socket_app: SocketApp) -> None:
    with running(socket_app, KEEPALIVE) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        assert close_code(sock) == 1011
        assert socket_app.next()[0] == "disconnect"
        all_gone(server, socket_app)


SIZE = 4096
SETTINGS = ServeSettings(ws_max_size=SIZE, ws_linger_s=0.5)
VIOLATIONS = {
    "text that is not UTF-8": (frame(1, b"\xff\xfe"), 1007),
    "text cut in a character": (frame(1, "é".encode()[:1]), 1007),
    "bad UTF-8 over fragments": (frame(1, b"ok", fin=False) + frame(0, b"\xc3\x28"), 1007),
    "a surrogate in UTF-8": (frame(1, b"\xed\xa0\x80"), 1007),
    "too big": (frame(1, b"x" * (SIZE + 1)), 1009),
    "too big, announced": (frame(1, b"x", length=2**40), 1009),
    "too big over fragments": (frame(1, b"x" * 3000, fin=False) + frame(0, b"x" * 3000), 1009),
    "continuation of nothing": (frame(0, b"x"), 1002),
    "text within a fragmented text": (frame(1, b"x", fin=False) + frame(1, b"x"), 1002),
    "reserved bit": (frame(1, b"x", reserved=0x40), 1002),
    "reserved opcode": (frame(3, b"x"), 1002),
    "reserved control opcode": (frame(11, b""), 1002),
    "fragmented ping": (frame(9, b"", fin=False), 1002),
    "long ping": (frame(9, b"x" * 126), 1002),
    "close of one byte": (frame(8, b"\x03"), 1002),
    "close with a reserved code": (frame(8, b"\x03\xed"), 1002),
    "close with a bad reason": (frame(8, b"\x03\xe8\xff"), 1007),
    "no mask": (b"\x81\x01x", 1002),
}


@pytest.mark.parametrize(("sent", "code"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_is_answered_with_its_code(
    socket_app: SocketApp, sent: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with running(socket_app, SETTINGS) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        sock.sendall(sent)
        assert close_code(sock) == code
        assert at_end(sock)
        sock.close()
        assert socket_app.next()[0] == "disconnect"
        all_gone(server, socket_app)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_code_reaches_a_peer_that_is_still_sending(socket_app: SocketApp) -> None:
    with running(socket_app, ServeSettings(ws_max_size=SIZE)) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        sock.sendall(frame(1, b"x" * 10_000_000))
        assert close_code(sock) == 1009


def test_what_inflates_beyond_the_limit_is_1009(socket_app: SocketApp) -> None:
    settings = ServeSettings(ws_max_size=SIZE, ws_deflate=True)
    deflate = zlib.compressobj(wbits=-12)
    bomb = (deflate.compress(b"\0" * 10_000_000) + deflate.flush(zlib.Z_SYNC_FLUSH))[:-4]
    # Small on the wire in three pieces, none above the limit.
    pieces = [bomb[start : start + SIZE] for start in range(0, len(bomb), SIZE)]
    frames = [
        frame(1 if index == 0 else 0, piece, fin=index == len(pieces) - 1, reserved=0x40 if index == 0 else 0)
        for index, piece in enumerate(pieces)
    ]
    with running(socket_app, settings) as server, connect(server.port) as sock:
        answer = handshake(sock, "/echo", "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=12")
        assert b"permessage-deflate" in answer
        sock.sendall(b"".join(frames))
        assert close_code(sock) == 1009


def test_compression_is_off_unless_it_is_asked_for(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        assert b"permessage-deflate" not in handshake(sock, "/echo", "Sec-WebSocket-Extensions: permessage-deflate")


def test_binary_frames_reach_the_application(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        sock.sendall(frame(2, b"\0\1"))
        assert socket_app.next() == ("binary", 2)
        assert close_code(sock) == 1003


def test_fragments_and_control_frames_between_them_are_one_message(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        whole = "déjà".encode()
        sock.sendall(frame(1, whole[:2], fin=False) + frame(9, b"are you there") + frame(0, whole[2:]))
        assert read_frame(sock) == (10, b"are you there")
        assert read_frame(sock) == (1, whole)


def test_the_close_code_of_the_peer_reaches_the_application(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        sock.sendall(frame(8, (4000).to_bytes(2, "big") + b"client_stop"))
        assert close_code(sock) == 4000
        assert socket_app.next() == ("disconnect", 4000)


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/echo?" + "x" * 9000, "X: y", b"414"),
        ("/echo", "Authorization: Bearer " + "x" * 9000, b"431"),
        ("/echo", "Sec-WebSocket-Key: again", b"400"),
    ],
)
def test_a_head_that_the_codec_refuses_is_answered_and_ended(
    socket_app: SocketApp, path: str, header: str, status: bytes
) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        assert handshake(sock, path, header).split(b" ")[1] == status
        assert at_end(sock)
        all_gone(server, socket_app)


def test_the_shutdown_survives_sockets_in_every_state(socket_app: SocketApp) -> None:
    with running(socket_app, ServeSettings(ws_linger_s=0.2)) as server:
        closing, stuck, open_one, half = (connect(server.port, receive_buffer=SMALL_BUFFER) for _ in range(4))
        handshake(closing, "/unwelcome")
        assert socket_app.next() == ("closed",)
        handshake(stuck, "/flood")
        assert socket_app.next() == ("accepted",)
        handshake(open_one, "/echo")
        half.sendall(b"GET / HTTP/1.1\r\nHo")
        server.server.should_exit = True
        assert close_code(open_one) == 1012
        server.join()
        for sock in (closing, stuck, open_one, half):
            sock.close()
    kinds = {item[0] for item in _drained(socket_app)}
    assert kinds == {"send failed", "disconnect", "lifespan"}


def _drained(socket_app: SocketApp) -> list[tuple[object, ...]]:
    return [socket_app.seen.get_nowait() for _ in range(socket_app.seen.qsize())]


def test_the_socket_has_its_options(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        (protocol,) = server.server.server_state.connections
        served = protocol.transport.get_extra_info("socket")
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_socket_keeps_nothing_of_its_handshake(socket_app: SocketApp) -> None:
    with running(socket_app) as server, connect(server.port) as sock:
        handshake(sock, "/echo")
        (protocol,) = server.server.server_state.connections
        server.until(socket_app, lambda: "scope" not in vars(protocol))
        assert vars(protocol).keys().isdisjoint({"scope", "request", "response"})


@pytest.mark.parametrize("level", [5, logging.DEBUG, logging.INFO])
def test_no_token_is_logged_at_any_level(socket_app: SocketApp, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(level)
    with running(socket_app) as server, connect(server.port) as sock:
        handshake(
            sock,
            "/echo?%74oken=CANARY1&x=1&access_token=CANARY2",
            "Authorization: Bearer CANARY3",
            "Sec-WebSocket-Protocol: turnwise.v1, bearer.CANARY4",
        )
        sock.sendall(frame(1, b'{"access_token":"CANARY5"}') + frame(1, b"\xff"))
        assert close_code(sock) == 1007
        with connect(server.port) as other:
            other.sendall(b"GET /?token=CANARY6 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert at_end(other)
    assert "[accepted]" in caplog.text
    assert "CANARY" not in caplog.text


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_our_text_frames_are_those_of_the_codec(size: int) -> None:
    text = b"\xc3\xa9" * (size // 2) + b"x" * (size % 2)
    codec = Frame(Opcode.TEXT, text).serialize(mask=False)
    assert text_frame(text) == codec


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_texts_go_out_in_order_between_others_and_end_with_the_connection(
    socket_app: SocketApp, compression: str | None
) -> None:
    settings = ServeSettings(ws_deflate=True)
    with running(socket_app, settings) as server, client.connect(f"{server.url}/texts", compression=compression) as ws:
        assert bool(ws.protocol.extensions) == (compression is not None)
        heard = [ws.recv() for _ in TEXTS]
        with pytest.raises(ConnectionClosedError):
            ws.recv()
        assert heard == list(TEXTS)
        assert ws.protocol.close_rcvd is not None
        assert ws.protocol.close_rcvd.code == 4000
    assert socket_app.next() == ("send failed", "ClientDisconnected")


def test_texts_to_a_peer_that_never_reads_wait_and_fail_with_its_connection(socket_app: SocketApp) -> None:
    with running(socket_app, KEEPALIVE) as server, connect(server.port, receive_buffer=SMALL_BUFFER) as sock:
        handshake(sock, "/flood-texts")
        assert socket_app.next()[0] == "send failed"
        all_gone(server, socket_app)
