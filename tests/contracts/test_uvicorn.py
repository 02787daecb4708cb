"""What uvicorn, starlette and pydantic do as delivered (docs/libraries.md#U1 to U13).

Where one changes, our workaround must too: of U1, U2 and U7 it is in backend_kit/http/server.py, of U3 to U6 in
backend_kit/http/ws.py, of U8 in backend_kit/http/redact.py, of U12 in backend_kit/http/http1.py. U14, conformance, is
`tests/conformance`.
"""

import asyncio
import inspect
import logging
import re
import signal
from types import FrameType
from typing import Any

import pytest
import uvicorn
from h11._writers import ChunkedWriter
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.websockets import WebSocket
from uvicorn import _types
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Close
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from backend_kit.http import build_server, listen
from backend_kit.http.http1 import HardenedHttp
from backend_kit.http.redact import LOGGERS, RedactTokens
from backend_kit.http.ws import HardenedWS
from tests.backend_kit.http.socket_app import (
    SocketApp,
    at_end,
    close_code,
    connect,
    frame,
    handshake,
    no_drain,
    plain,
    read_frame,
)


@pytest.fixture
def socket_app() -> SocketApp:
    return SocketApp()


@pytest.fixture
def unfiltered() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for existing in [item for item in logger.filters if isinstance(item, RedactTokens)]:
            logger.removeFilter(existing)


@pytest.mark.servers
def test_u1_shutdown_closes_sockets_before_the_lifespan_hears_of_it(socket_app: SocketApp) -> None:
    with plain(socket_app) as running, connect(running.port) as sock:
        handshake(sock, "/echo")
        running.server.handle_exit(15, None)
        running.server._captured_signals.clear()
        assert close_code(sock) == 1012
        assert socket_app.next() == ("disconnect", 1012)
        assert socket_app.next() == ("lifespan", "shutdown")


@pytest.mark.servers
def test_u2_the_lifespan_ends_while_cancelled_handlers_still_run(socket_app: SocketApp) -> None:
    with plain(socket_app, timeout_graceful_shutdown=1) as running, connect(running.port) as sock:
        handshake(sock, "/stubborn")
        assert socket_app.next() == ("accepted",)
        running.server.should_exit = True
        assert socket_app.next() == ("lifespan", "shutdown")


@pytest.mark.parametrize(("sent", "code"), [(b"", None), (frame(1, b"a stop"), 1011)], ids=["nothing", "a message"])
@pytest.mark.servers
def test_u3_one_unread_message_kills_a_connection_that_answers_its_pings(
    socket_app: SocketApp, sent: bytes, code: int | None
) -> None:
    with plain(socket_app, ws_ping_interval=0.2, ws_ping_timeout=2.0) as running, connect(running.port) as sock:
        handshake(sock, "/deaf")
        sock.sendall(sent)
        for _ in range(5):
            opcode, payload = read_frame(sock)
            if opcode == 8:
                break
            assert opcode == 9
            sock.sendall(frame(10, payload))
        assert (int.from_bytes(payload[:2], "big") if opcode == 8 else None) == code


@pytest.mark.servers
def test_u4_a_peer_that_never_reads_keeps_its_task_and_socket(socket_app: SocketApp) -> None:
    with plain(socket_app, ws_ping_interval=0.2, ws_ping_timeout=0.2) as running, connect(running.port) as sock:
        handshake(sock, "/flood")
        assert socket_app.next() == ("accepted",)
        state = running.server.server_state
        running.until(socket_app, lambda: all(item.transport.is_closing() for item in state.connections))
        # The keepalive gave up and closed the transport; the flush never ends, so neither does the handler.
        assert running.on_loop(socket_app, lambda: (len(state.connections), len(state.tasks))) == (1, 1)
        assert socket_app.seen.empty()
        sock.close()
        assert socket_app.next()[0] == "send failed"


@pytest.mark.servers
def test_u5_a_handler_that_only_sends_is_not_told_that_its_client_left(socket_app: SocketApp) -> None:
    with plain(socket_app) as running:
        with connect(running.port) as sock:
            handshake(sock, "/deaf")
            assert socket_app.next() == ("accepted",)
        state = running.server.server_state
        running.until(socket_app, lambda: not state.connections)
        assert running.on_loop(socket_app, lambda: len(state.tasks)) == 1
        socket_app.let_go()
        assert socket_app.next() == ("receive", {"type": "websocket.disconnect", "code": 1005})


def test_u6_the_defaults_are_16_mib_and_compression() -> None:
    config = uvicorn.Config("app")
    assert (config.ws_max_size, config.ws_per_message_deflate) == (16 * 1024 * 1024, True)


@pytest.mark.servers
def test_u6_as_delivered_ten_megabytes_are_taken_and_compression_is_agreed_to(socket_app: SocketApp) -> None:
    with plain(socket_app) as running, connect(running.port) as sock:
        assert b"permessage-deflate" in handshake(sock, "/echo", "Sec-WebSocket-Extensions: permessage-deflate")
        sock.sendall(frame(2, bytes(10_000_000)))
        assert socket_app.next() == ("binary", 10_000_000)


@pytest.mark.servers
def test_u7_limit_concurrency_lets_sockets_in_and_shuts_health_out(socket_app: SocketApp) -> None:
    with plain(socket_app, limit_concurrency=2) as running:
        sockets = [connect(running.port) for _ in range(4)]
        assert all(handshake(sock, "/echo").startswith(b"HTTP/1.1 101") for sock in sockets)
        with connect(running.port) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 503")
        for sock in sockets:
            sock.close()


@pytest.mark.usefixtures("unfiltered")
@pytest.mark.servers
def test_u8_the_token_of_the_query_is_logged_in_clear(socket_app: SocketApp, caplog: pytest.LogCaptureFixture) -> None:
    """backend_kit/http/redact.py filters what goes to these loggers."""
    with caplog.at_level(logging.INFO), plain(socket_app, access_log=False) as running, connect(running.port) as sock:
        handshake(sock, "/echo?token=CANARY")
        sock.sendall(frame(8, b""))
        assert socket_app.next() == ("disconnect", 1005)
    # The loggers that our filter sits on: from another one the token would get past it.
    assert (
        {record.name for record in caplog.records if "CANARY" in record.getMessage()} == {"uvicorn.error"} <= {*LOGGERS}
    )


@pytest.mark.servers
def test_u9_a_foreign_origin_is_let_in(socket_app: SocketApp) -> None:
    with plain(socket_app) as running, connect(running.port) as sock:
        assert b" 101 " in handshake(sock, "/echo", "Origin: https://evil.example")


KILLERS = {
    "no JSON": ({"text": "{"}, ValueError),
    "a binary frame": ({"bytes": b"{}"}, KeyError),
    "deep nesting": ({"text": "[" * 100_000}, RecursionError),
    "a number of 5000 digits": ({"text": "9" * 5000}, ValueError),
}


@pytest.mark.parametrize(("message", "error"), KILLERS.values(), ids=KILLERS)
async def test_u10_what_a_client_sends_is_raised_in_the_handler(
    message: dict[str, Any], error: type[Exception]
) -> None:
    messages = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", **message}])

    async def receive() -> Any:
        return next(messages)

    async def send(_message: Any) -> None:
        await asyncio.sleep(0)

    socket = WebSocket({"type": "websocket", "headers": [], "path": "/", "query_string": b""}, receive, send)
    await socket.accept()
    with pytest.raises(error):
        await socket.receive_json()


class _Told(BaseModel):
    text: str


def test_u10_a_type_adapter_lets_nul_through() -> None:
    assert TypeAdapter(_Told).validate_json(b'{"text":"\\u0000"}').text == "\0"


def test_u11_an_error_of_pydantic_quotes_the_input_unless_it_is_told_not_to() -> None:
    class Hidden(_Told):
        model_config = ConfigDict(hide_input_in_errors=True)

    quoted = []
    for model in (_Told, Hidden):
        with pytest.raises(ValidationError) as failure:
            model.model_validate({"text": {"access_token": "CANARY"}})
        quoted.append("CANARY" in str(failure.value))
    assert quoted == [True, False]


def test_the_private_parts_of_sockets_that_we_extend_are_there() -> None:
    """backend_kit/http/ws.py overrides them in WebSocketsSansIOProtocol, reads and sets those of its codec, and names
    the types: what nobody calls would guard nothing."""
    ours = {"handle_events", "handle_ping", "handle_parser_exception", "keepalive_timeout", "send_receive_event_to_app"}
    assert ours | {"stop_keepalive", "run_asgi", "shutdown", "data_received"} <= vars(WebSocketsSansIOProtocol).keys()
    assert {"handle_text", "handle_cont", "connection_lost"} <= vars(WebSocketsSansIOProtocol).keys()
    codec = vars(ServerProtocol(logger=logging.getLogger("test")))
    assert {"events", "parser_exc", "handshake_exc", "debug", "logger", "available_extensions"} <= codec.keys()
    assert {"ASGISendEvent", "WebSocketScope"} <= vars(_types).keys()


def test_a_close_between_fragments_fails_the_connection_while_it_is_open() -> None:
    """backend_kit/http/ws.py answers it in place of the codec, which calls it a violation of the protocol."""
    codec = ServerProtocol(state=OPEN)
    codec.receive_data(frame(1, b"begun", fin=False) + frame(8, b"\x03\xe8"))
    assert codec.close_rcvd == Close(1000, "")
    assert codec.close_sent is not None
    assert codec.close_sent.code == 1002
    assert "fail" in ServerProtocol.__mro__[1].parse.__code__.co_names


async def test_what_a_send_of_ours_looks_at_is_there(socket_app: SocketApp) -> None:
    """backend_kit/http/ws.py writes frames of its own: while the peer reads, the connection stands, and nothing is
    compressed. The codec then holds nothing that would have to go out before."""
    config = uvicorn.Config(socket_app)
    config.load()
    made = WebSocketsSansIOProtocol(config, ServerState(), {})
    assert made.writable.is_set()
    assert (made.close_sent, made.disconnected) == (False, False)
    assert (made.conn.extensions, made.conn.data_to_send()) == ([], [])


async def test_the_private_parts_of_http_that_we_extend_are_there(socket_app: SocketApp) -> None:
    """backend_kit/http/http1.py overrides and reads them in H11Protocol."""
    assert {"data_received", "connection_made", "connection_lost"} <= vars(H11Protocol).keys()
    config = uvicorn.Config(socket_app)
    config.load()
    protocol = H11Protocol(config, ServerState(), {}, asyncio.get_running_loop())
    assert {"transport", "connections", "cycle", "access_log", "loop"} <= vars(protocol).keys()
    assert vars(protocol)["cycle"] is None
    assert "response_complete" in RequestResponseCycle.__init__.__code__.co_names


def test_what_a_request_in_progress_is_looked_at_and_given_is_there() -> None:
    """backend_kit/http/http1.py gives it another transport and headers before it runs, and ends it by its event."""
    assert {"handle_events", "handle_websocket_upgrade", "on_response_complete"} <= vars(H11Protocol).keys()
    assert {"pause_writing", "resume_writing", "_unset_keepalive_if_required"} <= vars(H11Protocol).keys()
    parts = {"transport", "default_headers", "more_body", "message_event", "waiting_for_100_continue"}
    assert parts <= {*RequestResponseCycle.__init__.__code__.co_names}
    # Its task begins after `handle_events`, and this is all that it asks of the transport.
    assert "create_task" in H11Protocol.handle_events.__code__.co_names
    source = inspect.getsource(RequestResponseCycle)
    assert {*re.findall(r"self\.transport\.(\w+)", source)} == {"write", "close", "is_closing"}


def test_what_a_piece_that_is_sent_at_once_looks_at_is_there() -> None:
    """backend_kit/http/http1.py writes chunks of its own: as h11 does, which keeps no count of them."""
    names = RequestResponseCycle.__init__.__code__.co_names
    assert {"response_started", "response_complete", "disconnected", "scope", "flow"} <= {*names}
    assert "write_paused" in FlowControl.__init__.__code__.co_names
    assert ChunkedWriter.send_data.__code__.co_names == ("len",)


def test_the_server_speaks_by_the_protocols_that_were_looked_at(socket_app: SocketApp) -> None:
    """backend_kit/http/http1.py and backend_kit/http/ws.py extend exactly these, whatever else can be imported."""
    config = build_server(socket_app, no_drain).config
    config.load()
    assert config.http_protocol_class.__mro__[1:3] == (HardenedHttp, H11Protocol)
    assert config.ws_protocol_class is not None
    assert config.ws_protocol_class.__mro__[1:3] == (HardenedWS, WebSocketsSansIOProtocol)


@pytest.mark.servers
async def test_the_server_gives_its_signals_to_one_method_and_serves_in_another(socket_app: SocketApp) -> None:
    """backend_kit/http/server.py overrides `handle_exit` and `main_loop`, and ends both by `should_exit`."""
    told: list[Any] = []

    class Watched(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the shape of a handler
            told.append(sig)
            self.should_exit = True

        async def main_loop(self) -> None:
            told.append("begun")
            signal.raise_signal(signal.SIGTERM)
            await super().main_loop()
            told.append("ended")

    with listen("127.0.0.1", 0) as sock:
        await Watched(uvicorn.Config(socket_app, log_config=None)).serve(sockets=[sock])
    assert told == ["begun", signal.SIGTERM, "ended"]


async def test_a_tick_renews_the_date_and_says_whether_to_end(socket_app: SocketApp) -> None:
    """backend_kit/http/server.py and turnwise/sample_tools.py call `on_tick` with 0, in a `main_loop` of their own."""
    server = uvicorn.Server(uvicorn.Config(socket_app, log_config=None))
    assert await server.on_tick(0) is False
    [(name, _)] = server.server_state.default_headers
    assert name == b"date"
    server.should_exit = True
    assert await server.on_tick(0) is True


async def test_the_wait_for_a_ping_is_the_interval_less_the_last_round_trip(socket_app: SocketApp) -> None:
    """backend_kit/http/ws.py sets `last_ping_rtt` at first, so that sockets opened together are not pinged together."""
    config = uvicorn.Config(socket_app, ws_ping_interval=20.0)
    config.load()
    protocol = WebSocketsSansIOProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    protocol.last_ping_rtt = 15.0
    before = protocol.loop.time()
    protocol.start_keepalive()
    assert protocol.ping_timer is not None
    assert 4.9 < protocol.ping_timer.when() - before < 20.0
    protocol.stop_keepalive()


@pytest.mark.servers
def test_u12_half_a_head_is_waited_for(socket_app: SocketApp) -> None:
    with (
        plain(socket_app, timeout_keep_alive=1) as running,
        connect(running.port) as sock,
        connect(running.port) as other,
    ):
        sock.sendall(b"GET / HTTP/1.1\r\nHost:")
        other.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert at_end(other)
        state = running.server.server_state
        running.until(socket_app, lambda: len(state.connections) == 1)
        (waiting,) = state.connections
        # No timer of any kind is set for it.
        assert "timeout_keep_alive_task" in vars(waiting)
        assert (
            running.on_loop(socket_app, lambda: [name for name, it in vars(waiting).items() if hasattr(it, "when")])
            == []
        )


@pytest.mark.servers
def test_u13_a_close_before_accept_is_a_403_and_one_after_it_has_its_code(socket_app: SocketApp) -> None:
    with plain(socket_app) as running:
        with connect(running.port) as sock:
            assert handshake(sock, "/refuse").startswith(b"HTTP/1.1 403")
        with connect(running.port) as sock:
            handshake(sock, "/unwelcome")
            assert close_code(sock) == 4401


@pytest.mark.servers
def test_u13_a_denial_has_its_status_and_headers_and_is_logged_as_a_failure(
    socket_app: SocketApp, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(socket_app) as running, connect(running.port) as sock:
        answer = handshake(sock, "/deny")
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 2" in answer.lower()
        assert at_end(sock)
    assert [record.name for record in caplog.records if "without completing handshake" in record.getMessage()] == [
        "uvicorn.error"
    ]
