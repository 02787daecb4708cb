"""Clients of HTTP/1.1 that are slow, broken or too many."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from backend_kit.http import ServeSettings
from backend_kit.settings import ConnectionBounds
from tests.backend_kit.http.socket_app import LARGE, SocketApp, connect, frame, handshake, read_frame, running
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def bounded(**bounds: Any) -> ServeSettings:
    return ServeSettings(connections=ConnectionBounds.model_validate(bounds), health_paths=("/healthz",))


SLOW = bounded(body_bytes_per_s=1000, body_window_s=0.2)


def post(path: str, length: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def rest_of(sock: socket.socket) -> bytes:
    """All up to the end of the connection, whichever way it ends."""
    received = b""
    try:
        while chunk := sock.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def from_address(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, (address, 0))


# Bodies


@pytest.mark.parametrize("sent", [b"", b"x", b"x" * 100])
def test_a_body_that_does_not_come_is_ended_and_its_request_too(sent: bytes) -> None:
    socket_app = SocketApp()
    with running(socket_app, SLOW) as server, connect(server.port) as sock:
        sock.sendall(post("/read", 10_000) + sent)
        assert rest_of(sock).startswith(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n")
        assert socket_app.next() == ("cut off",)


def test_what_came_at_once_does_not_pay_for_what_comes_later() -> None:
    socket_app = SocketApp()
    with running(socket_app, SLOW) as server, connect(server.port) as sock:
        sock.sendall(post("/read", 1_000_001) + bytes(1_000_000))
        assert rest_of(sock).startswith(b"HTTP/1.1 408 ")
        assert socket_app.next() == ("cut off",)


@pytest.mark.parametrize("expects", [(), ("Expect: 100-continue",)])
def test_a_body_that_the_application_does_not_read_is_not_timed(expects: tuple[str, ...]) -> None:
    """The service is late and not the client, for as long as another client takes to be ended twice."""
    socket_app = SocketApp()
    size = 300_000
    with running(socket_app, SLOW) as server, connect(server.port) as sock:
        sock.sendall(post("/read-later", size, *expects) + (b"" if expects else bytes(size - 1)))
        for _ in range(3):
            with connect(server.port) as other:
                other.sendall(post("/read", 10))
                assert rest_of(other).startswith(b"HTTP/1.1 408 ")
                assert socket_app.next() == ("cut off",)
        socket_app.let_go()
        if expects:
            assert sock.recv(4096).startswith(b"HTTP/1.1 100 ")
        sock.sendall(bytes(size if expects else 1))
        assert sock.recv(4096).endswith(b"ok")
        assert socket_app.next() == ("body", size)


def test_a_body_whose_answer_has_begun_is_cut_off_with_it() -> None:
    socket_app = SocketApp()
    with running(socket_app, SLOW) as server, connect(server.port) as sock:
        sock.sendall(post("/answer-then-read", 10))
        received = rest_of(sock)
        assert received.endswith(b"begun\r\n")
        assert b"408" not in received
        assert socket_app.next() == ("read until", "http.disconnect")


def test_without_a_minimum_a_body_may_take_its_time() -> None:
    socket_app = SocketApp()
    settings = bounded(body_bytes_per_s=0, body_window_s=0.1, head_s=0.5)
    with running(socket_app, settings) as server, connect(server.port) as sock, connect(server.port) as silent:
        sock.sendall(post("/read", 1))
        assert rest_of(silent) == b""
        sock.sendall(b"x")
        assert sock.recv(4096).endswith(b"ok")


# Answers before the body


@pytest.mark.parametrize("more", [0, 5_000_000])
def test_an_answer_before_the_body_says_so_arrives_and_ends_the_connection(more: int) -> None:
    with running(SocketApp()) as server, connect(server.port) as sock:
        sock.sendall(post("/", 10_000_000) + b"x" + bytes(more))
        head, _, body = rest_of(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close" in head
        assert body == b"ok"


def test_an_answer_to_a_whole_request_leaves_the_connection() -> None:
    with running(SocketApp()) as server, connect(server.port) as sock:
        for _ in range(3):
            sock.sendall(post("/read", 3) + b"abc")
            answer = sock.recv(4096)
            assert answer.endswith(b"ok")
            assert b"close" not in answer


def test_requests_in_one_piece_are_answered_in_order_and_the_broken_one_last() -> None:
    with running(SocketApp()) as server, connect(server.port) as sock:
        sock.sendall(post("/read", 3) + b"abc" + GET + b"GET / HTTP/1.1\nHost: x\r\n\r\n" + GET)
        statuses = [line for line in rest_of(sock).split(b"\r\n") if b"HTTP/1.1 " in line]
        assert [status[-15:] for status in statuses[-1:]] == [b"400 Bad Request"]
        assert len(statuses) == 3


def test_a_broken_chunk_behind_the_beginning_of_an_answer_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    socket_app = SocketApp()
    with running(socket_app) as server, connect(server.port) as sock:
        sock.sendall(b"POST /answer-then-read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        received = b""
        while b"begun" not in received:
            received += sock.recv(4096)
        sock.sendall(b"none\r\n")
        assert rest_of(sock) in (b"", b"\r\n")
        assert socket_app.next() == ("read until", "http.disconnect")
    told = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert told == ["a connection from 127.0.0.1 was refused or ended: a request was not HTTP/1.1"]


# Answers that are not read


def test_a_large_answer_in_one_message_is_handed_over_as_it_is_read() -> None:
    """What bounds the requests at work bounds the memory of their answers only if it holds until they were taken."""
    socket_app = SocketApp()
    with running(socket_app) as server, connect(server.port, receive_buffer=65536) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        head = sock.recv(4096)
        assert b"content-length: %d" % LARGE in head
        assert ask(server.port, GET).startswith(b"HTTP/1.1 200 ")  # the loop has had its turn
        assert socket_app.seen.empty()
        body = head.partition(b"\r\n\r\n")[2]
        while len(body) < LARGE:
            body += sock.recv(1 << 20)
        assert body == bytes(range(256)) * (LARGE // 256)
        assert socket_app.next() == ("handed over",)
        sock.sendall(GET)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_an_answer_that_is_not_read_is_ended_and_named(caplog: pytest.LogCaptureFixture) -> None:
    socket_app = SocketApp()
    with running(socket_app, bounded(answer_s=0.2)) as server, connect(server.port, receive_buffer=4096) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert socket_app.next() == ("handed over",)  # to nobody
        server.until(socket_app, lambda: not server.server.server_state.connections)
        assert len(rest_of(sock)) < LARGE
    told = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert told == [
        "a connection from 127.0.0.1 was refused or ended: an answer was not read within connections.answer_s"
    ]


# Too many


@contextmanager
def half_bodies(port: int, count: int, address: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Requests whose application has begun to read them."""
    with ExitStack() as stack:
        socks = [stack.enter_context(from_address(port, address)) for _ in range(count)]
        for sock in socks:
            sock.sendall(post("/read", 1000) + b"x")
        yield socks


def ask(port: int, request: bytes, address: str = "127.0.0.1") -> bytes:
    with from_address(port, address) as sock:
        sock.sendall(request)
        received = b""
        while not received.endswith((b"ok", b"}")):
            chunk = sock.recv(4096)
            assert chunk, received
            received += chunk
        return received


def test_a_flood_of_unfinished_requests_gives_way_to_whole_ones() -> None:
    socket_app = SocketApp()
    with running(socket_app, bounded(max_open=20)) as server, connect(server.port) as working:
        handshake(working, "/echo")
        with half_bodies(server.port, 60) as flood:
            for _ in range(5):
                assert ask(server.port, GET).startswith(b"HTTP/1.1 200 ")
                assert ask(server.port, GET, "127.0.0.9").startswith(b"HTTP/1.1 200 ")
            for sock in flood[:41]:
                assert rest_of(sock) == b""
            working.sendall(frame(1, b"still here"))
            assert read_frame(working) == (1, b"still here")


def test_above_the_bound_there_is_health_and_a_word_for_everybody_else() -> None:
    with running(SocketApp(), bounded(max_open=3)) as server, ExitStack() as stack:
        working = [stack.enter_context(connect(server.port)) for _ in range(3)]
        for sock in working:
            handshake(sock, "/echo")
        refused = ask(server.port, GET)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 2" in refused
        assert b'"code":"overloaded"' in refused
        assert ask(server.port, HEALTH).startswith(b"HTTP/1.1 200 ")
        with connect(server.port) as late:
            assert handshake(late, "/echo").startswith(b"HTTP/1.1 503 ")
        for sock in working:
            sock.sendall(frame(1, b"still here"))
            assert read_frame(sock) == (1, b"still here")


def test_the_bound_of_an_address_leaves_the_others_alone() -> None:
    with running(SocketApp(), bounded(per_address=2)) as server, ExitStack() as stack:
        working = [stack.enter_context(from_address(server.port, "127.0.0.2")) for _ in range(2)]
        for sock in working:
            handshake(sock, "/echo")
        assert ask(server.port, GET, "127.0.0.2").startswith(b"HTTP/1.1 503 ")
        assert ask(server.port, HEALTH, "127.0.0.2").startswith(b"HTTP/1.1 200 ")
        assert ask(server.port, GET, "127.0.0.3").startswith(b"HTTP/1.1 200 ")


def test_a_trusted_proxy_has_no_bound_of_its_own_and_names_its_clients() -> None:
    socket_app = SocketApp()
    settings = bounded(per_address=1, trusted_proxies=["127.0.0.2"])
    with running(socket_app, settings) as server, ExitStack() as stack:
        named = b"GET /client HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n"
        for _ in range(3):
            handshake(stack.enter_context(from_address(server.port, "127.0.0.2")), "/echo")
        assert ask(server.port, named, "127.0.0.2").startswith(b"HTTP/1.1 200 ")
        assert socket_app.next() == ("client", "192.0.2.7")
        assert ask(server.port, named, "127.0.0.3").startswith(b"HTTP/1.1 200 ")
        assert socket_app.next() == ("client", "127.0.0.3")


def test_a_client_that_does_not_read_its_answer_gives_way() -> None:
    socket_app = SocketApp()
    with running(socket_app, bounded(max_open=1)) as server, connect(server.port, receive_buffer=4096) as deaf:
        deaf.sendall(b"GET /flood-pieces HTTP/1.1\r\nHost: x\r\n\r\n")
        assert socket_app.next()[0] == "full"
        assert ask(server.port, GET).startswith(b"HTTP/1.1 200 ")
        assert socket_app.next() == ("gone", False)


def test_a_place_is_free_again_however_a_connection_ends() -> None:
    with running(SocketApp(), bounded(max_open=2)) as server:
        for number in range(6):
            with connect(server.port) as sock:
                if number % 2:
                    handshake(sock, "/unwelcome")
                    sock.sendall(frame(8, b""))
                else:
                    handshake(sock, "/refuse")
                rest_of(sock)
        assert ask(server.port, GET).startswith(b"HTTP/1.1 200 ")
        with connect(server.port) as sock, connect(server.port) as other:
            assert handshake(sock, "/echo").startswith(b"HTTP/1.1 101 ")
            assert handshake(other, "/echo").startswith(b"HTTP/1.1 101 ")
