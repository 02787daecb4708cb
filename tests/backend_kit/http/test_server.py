"""The server as a process: how it ends, and how it fails to begin."""

import http.client
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which

import pytest
import uvicorn

from backend_kit.http import CannotListen, ServeSettings, listen
from backend_kit.http.server import DrainServer
from backend_kit.settings import ConnectionBounds
from tests.backend_kit.http.socket_app import (
    SocketApp,
    close_code,
    connect,
    frame,
    handshake,
    no_drain,
    read_frame,
    running,
)
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess

MODULE = "tests.backend_kit.http.drain_app"


@contextmanager
def service(mode: str, *, traceback_allowed: bool = False) -> Iterator[tuple[ModuleProcess, int]]:
    port = free_port()
    # Whoever runs the tests may have been started by nohup.
    hears = [which("env") or "", "--default-signal=HUP"]
    with ModuleProcess(
        MODULE, str(port), mode, under=hears, traceback_allowed=traceback_allowed, stop_s=5.0
    ) as process:
        if mode == "slow-start":
            process.wait_for_line("^starting")
        else:
            process.wait_for_http(f"http://127.0.0.1:{port}/healthz")
        yield process, port


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.servers
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_drains_while_everything_goes_on_answering(sig: signal.Signals) -> None:
    with service("normal") as (process, port), connect(port) as sock:
        handshake(sock, "/echo")
        assert (status(port, "/healthz"), status(port, "/ready")) == (200, 200)
        process.send(sig)
        process.wait_for_line("drain began")
        assert (status(port, "/healthz"), status(port, "/ready")) == (200, 503)
        sock.sendall(frame(1, b"in mid-turn"))
        assert read_frame(sock) == (1, b"in mid-turn")
        sock.sendall(frame(1, b"finish"))
        assert read_frame(sock) == (1, b"finish")
        assert close_code(sock) == 1012
        assert process.wait() == 0
        told = [line for line in process.output.splitlines() if not line.startswith(("INFO", "starting"))]
        assert told == ["started", "drain began", "drain ended", "socket ended with 1012", "closed"]


@pytest.mark.servers
def test_a_second_signal_ends_a_drain_that_would_not() -> None:
    with service("hang", traceback_allowed=True) as (process, _):
        process.send(signal.SIGTERM)
        process.wait_for_line("drain began")
        process.send(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 1
        assert "drain ended" not in process.output


@pytest.mark.servers
def test_who_is_started_by_nohup_does_not_end_with_its_terminal() -> None:
    port = free_port()
    nohup = [which("env") or "", "--ignore-signal=HUP"]
    with ModuleProcess(MODULE, str(port), "normal", under=nohup) as process, socket.socket() as sock:
        process.wait_for_http(f"http://127.0.0.1:{port}/healthz")
        process.send(signal.SIGHUP)
        assert (status(port, "/ready"), "drain began" in process.output) == (200, False)
        sock.connect(("127.0.0.1", port))
        handshake(sock, "/echo")
        process.send(signal.SIGTERM)
        process.wait_for_line("drain began")
        sock.sendall(frame(1, b"finish"))
        assert process.wait() == 0


@pytest.mark.servers
def test_a_second_signal_ends_a_start_that_would_not() -> None:
    with service("slow-start", traceback_allowed=True) as (process, _):
        process.send(signal.SIGTERM)
        process.send(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 1


@pytest.mark.servers
def test_a_drain_that_fails_still_closes_in_order() -> None:
    with service("broken", traceback_allowed=True) as (process, _):
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "task drain failed" in process.output
        process.wait_for_line("^closed")


@pytest.mark.servers
def test_a_drain_beyond_its_limit_is_given_up() -> None:
    with service("limited", traceback_allowed=True) as (process, _):
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "TimeoutError" in process.output
        process.wait_for_line("^closed")


@pytest.mark.servers
@pytest.mark.parametrize(("limit", "warned"), [(100, True), (1024, False)])
def test_a_limit_of_few_descriptors_is_said_at_the_start(limit: int, warned: bool) -> None:
    port = free_port()
    with ModuleProcess(MODULE, str(port), "normal", under=[which("prlimit") or "", f"--nofile={limit}"]) as process:
        process.wait_for_http(f"http://127.0.0.1:{port}/healthz")
        assert (f"the process may open {limit} files" in process.output) == warned
        process.kill()


@pytest.mark.servers
def test_what_cannot_be_listened_on_is_said_in_one_line() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as caught:
            listen("127.0.0.1", port)
        assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    with pytest.raises(CannotListen, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign requested address"):
        listen("192.0.2.1", 0)
    with pytest.raises(CannotListen, match=r"no-such-host\.invalid"):
        listen("no-such-host.invalid", 0)


@pytest.mark.servers
def test_both_families_are_listened_on() -> None:
    with listen("::1", 0) as sock:
        assert sock.family == socket.AF_INET6


@pytest.mark.servers
async def test_the_end_is_awaited_and_not_looked_for() -> None:
    ticks = list[int]()

    class Counting(DrainServer):
        async def on_tick(self, counter: int) -> bool:
            ticks.append(counter)
            if len(ticks) == 1:
                self.stop()
            return await super().on_tick(counter)

    server = Counting(uvicorn.Config(SocketApp(), log_config=None, lifespan="off"), no_drain, tick_s=3600.0)
    with listen("127.0.0.1", 0) as sock:
        await server.serve(sockets=[sock])
    assert ticks == [0, 0]


HEAD = ServeSettings(connections=ConnectionBounds(head_s=2.0))


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HT", b"HTTP/1.1 408 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"HTTP/1.1 408 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nGET / HTTP", b"HTTP/1.1 200 "),
    ],
)
@pytest.mark.servers
def test_a_connection_without_a_whole_head_is_ended(sent: bytes, answer: bytes) -> None:
    with running(SocketApp(), HEAD) as server, connect(server.port) as sock:
        sock.sendall(sent)
        received = b""
        while chunk := _received(sock):
            received += chunk
        assert received[: len(answer)] == answer
        assert len(received) == 0 or answer


@pytest.mark.servers
def test_a_second_request_has_the_same_time_for_its_head() -> None:
    with running(SocketApp(), HEAD) as server, connect(server.port) as sock:
        for _ in range(2):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(4096).endswith(b"ok")
        sock.sendall(b"GET / HT")
        assert sock.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert _received(sock) == b""


@pytest.mark.servers
def test_what_has_its_head_is_not_timed() -> None:
    socket_app = SocketApp()
    with running(socket_app, HEAD) as server, connect(server.port) as sock, connect(server.port) as silent:
        handshake(sock, "/echo")
        assert _received(silent) == b""
        sock.sendall(frame(1, b"still here"))
        assert read_frame(sock) == (1, b"still here")


PIECES = b"one" + b"x" * 70_000 + b"two" + b"last"


@pytest.mark.servers
def test_pieces_that_are_sent_at_once_are_those_of_the_answer() -> None:
    socket_app = SocketApp()
    with running(socket_app) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        for _ in range(2):  # on one connection
            connection.request("GET", "/pieces")
            assert connection.getresponse().read() == PIECES
            assert socket_app.seen.get(timeout=PATIENCE_S) == ("pieces", False, [True] * 4, False)
        connection.close()


@pytest.mark.servers
def test_a_client_that_knows_no_chunks_gets_none() -> None:
    socket_app = SocketApp()
    with running(socket_app) as server, connect(server.port) as sock:
        sock.sendall(b"GET /pieces HTTP/1.0\r\n\r\n")
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
        assert received.endswith(b"\r\n\r\n" + PIECES)
        assert socket_app.seen.get(timeout=PATIENCE_S) == ("pieces", False, [False] * 4, False)


@pytest.mark.servers
def test_no_piece_is_sent_at_once_to_a_client_that_is_behind_or_has_gone() -> None:
    socket_app = SocketApp()
    with running(socket_app) as server:
        with connect(server.port) as sock:
            sock.sendall(b"GET /flood-pieces HTTP/1.1\r\nHost: x\r\n\r\n")
            full, count = socket_app.seen.get(timeout=PATIENCE_S)
            assert (full, count > 0) == ("full", True)
        assert socket_app.seen.get(timeout=PATIENCE_S) == ("gone", False)


@pytest.mark.servers
def test_who_waits_for_a_client_to_go_is_told_without_reading() -> None:
    socket_app = SocketApp()
    with running(socket_app) as server:
        with connect(server.port) as sock:
            sock.sendall(b"GET /gone HTTP/1.1\r\nHost: x\r\n\r\n")
            assert socket_app.seen.get(timeout=PATIENCE_S) == "waits"
        assert socket_app.seen.get(timeout=PATIENCE_S) == ("gone", True, False)


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such option")
@pytest.mark.servers
def test_the_kernel_takes_little_for_a_peer_that_does_not_read() -> None:
    with listen("127.0.0.1", 0) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()) as peer:
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 * 1024
                assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) != 128 * 1024
