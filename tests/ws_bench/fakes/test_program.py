"""`ws_bench mock-llm` and its measurement as processes."""

import signal
import socket

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.processes import ModuleProcess
from ws_bench.errors import UsageError
from ws_bench.fakes.mock_llm import parse_mock_flags

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_serves_and_ends_cleanly(number: signal.Signals) -> None:
    with ModuleProcess("ws_bench", "mock-llm", "--port", "0") as process:
        line = process.wait_for_line(r"^mock-llm listening on (http://127\.0\.0\.1:\d+)$")
        process.wait_for_http(f"{line.group(1)}/healthz")
        process.send(number)
        assert process.wait() == 0
        assert process.output.splitlines() == [line.group(0)]


def test_it_ends_with_streams_open() -> None:
    with ModuleProcess("ws_bench", "mock-llm", "--port", "0", "--ttft", "600000") as process:
        where = process.wait_for_line(r"listening on (http://.*:(\d+))$")
        port = int(where.group(2))
        body = b'{"model":"mock","stream":true,"messages":[{"role":"user","content":"x"}]}'
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            # An answer on another connection: by then the server has read this one too.
            process.wait_for_http(f"{where.group(1)}/healthz")
            process.send(signal.SIGTERM)
            assert process.wait() == 0
            assert client.recv(1) == b""


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with ModuleProcess("ws_bench", "mock-llm", "--port", str(port)) as process:
            assert process.wait() == 2
            assert process.output == f"ws_bench: cannot listen on 127.0.0.1:{port}: the port is taken\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["--ttft", "soon"],
        ["--port", "70000"],
        ["--port", "x"],
        ["--speed", "1"],
        ["--error", "2"],
        ["--embed-latency", "5"],
    ],
)
def test_bad_flags_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_mock_flags(argv)


def test_knobs_are_flags_too() -> None:
    options = parse_mock_flags(["--ttft", "3000", "--gap", "20", "--tokens", "50", "--floor", "10", "--status", "429"])
    knobs = options.knobs
    assert (knobs.ttft_ms, knobs.gap_ms, knobs.tokens, knobs.floor_ms) == (3000, 20, 50, 10)
    assert (knobs.status, knobs.error) == (429, 1.0)
    assert (options.host, options.port, options.model) == ("127.0.0.1", 8099, "mock")


@pytest.mark.parametrize(("bound", "code", "verdict"), [("1000", 0, "met"), ("0", 1, "NOT MET")])
def test_the_measurement_prints_figure_bound_and_verdict(bound: str, code: int, verdict: str) -> None:
    small = ("--streams", "10", "--tokens", "5", "--gap", "5", "--seconds", "2", "--bound", bound)
    with ModuleProcess("ws_bench.fakes.measure", *small) as process:
        assert process.wait() == code
        last = process.output.splitlines()[-1]
        assert last.startswith("cores: ")
        assert last.endswith(f"bound: {float(bound):g}  verdict: {verdict}")
        assert " 0 wrong" in process.output
