"""`ws_bench run` as a process against a service of known behaviour: flow, counts, classes, exit codes."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, finish, scripted_service, start_bench

pytestmark = pytest.mark.servers

QUICK = ("-ramp-duration", "0s", "-timeout", f"{PATIENCE_S}s")


def result_of(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text())
    counts = result["counts"]
    assert counts["success"] + counts["errors"] + counts["not_sent"] == counts["total"]
    assert sum(result["errors_by_class"].values()) == counts["errors"]
    assert isinstance(result, dict)
    return result


async def test_flags_alone_run_clients_on_their_own_sockets_and_sessions(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service() as service:
        done = await bench("-url", service.url, "-clients", "2", "-requests-per-client=3", "-json", str(out), *QUICK)
    assert (done.code, done.stderr) == (0, "")
    assert "\nWS BENCH SUMMARY\nOutcome: OK\n" in done.stdout
    assert "\nTotal requests: 6\nConcurrent clients: 2\nRequests per client: 3\nSuccess: 6 (100.00%)\n" in done.stdout
    assert done.stdout.index("Latency ms") < done.stdout.index("First token ms")
    assert (service.sockets, len(service.asks)) == (2, 6)
    assert sorted(service.deleted) == sorted(service.created) == ["session-0", "session-1"]
    assert service.bodies[0] == {"agent_id": "Georges", "title": "Benchmark"}
    assert service.tokens[0] == ("Bearer fake-token", None)
    assert service.close_codes == [1000, 1000]
    ask = service.asks[0]
    assert (ask["type"], ask["message"], ask["agent_id"]) == ("ask", "Hello", "Georges")
    assert len({one["client_exchange_id"] for one in service.asks}) == 6
    result = result_of(out)
    assert result["counts"] == {"total": 6, "success": 6, "errors": 0, "not_sent": 0}
    assert (result["latency_ms"]["count"], result["first_token_ms"]["count"]) == (6, 6)
    assert result["protocol"] == "compatible"


async def test_native_protocol_measures_first_token_and_gaps(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service() as service:
        done = await bench(
            "run", "--native", "--url", service.url, "--clients", "2", "--requests-per-client", "2",
            "--json", str(out), *QUICK,
        )  # fmt: skip
    assert done.code == 0
    result = result_of(out)
    assert result["protocol"] == "turnwise.v1"
    assert (result["first_token_ms"]["count"], result["gap_ms"]["count"]) == (4, 4)
    assert "Gap ms (min/avg/p50/p95/p99/max): " in done.stdout


async def test_a_service_without_the_native_protocol_is_told_apart(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(protocols=()) as service:
        done = await bench(
            "-native", "-url", service.url, "-clients=1", "-requests-per-client=1", "-json", str(out), *QUICK
        )
    assert done.code == 3
    assert result_of(out)["errors_by_class"] == {"protocol_not_native": 1}


async def test_a_refused_handshake_is_counted_by_its_status(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    port = free_port()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"detail":{"code":"overloaded","message":"Too many sockets."}}'
        head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", port):
        url = f"ws://127.0.0.1:{port}/agentic/v1/chatbot/query/ws"
        done = await bench(
            "-url", url, "-session", "s", "-clients=1", "-requests-per-client=2", "-json", str(out), *QUICK
        )
    assert done.code == 3
    result = result_of(out)
    assert result["errors_by_class"] == {"ws_handshake_503": 1}
    assert "- ws_handshake_503: overloaded, Too many sockets.\n" in done.stdout
    assert result["counts"]["not_sent"] == 1


async def test_total_mode_opens_a_session_and_a_socket_a_request() -> None:
    async with scripted_service() as service:
        done = await bench(
            "-url", service.url, "-clients", "2", "-requests-per-client", "0", "-requests", "5", "-token-in-query",
            "-token", "abc", *QUICK,
        )  # fmt: skip
    assert done.code == 0
    assert "Requests per client" not in done.stdout.split("WS BENCH SUMMARY")[1]
    assert (service.sockets, len(service.asks), len(service.created)) == (5, 5, 5)
    assert sorted(service.deleted) == sorted(service.created)
    assert service.tokens == [(None, "abc")] * 5
    assert "abc" not in done.stdout


async def test_a_given_session_is_shared_and_left_alone() -> None:
    async with scripted_service() as service:
        done = await bench("-url", service.url, "-session", "mine", "-clients=2", "-requests-per-client=1", *QUICK)
    assert done.code == 0
    assert (service.created, service.deleted) == ([], [])
    assert {ask["session_id"] for ask in service.asks} == {"mine"}


async def test_prepared_sessions_are_created_first_and_deleted_last() -> None:
    created_at_first_ask: list[int] = []
    deleted_at_last_ask: list[int] = []

    async def watch(service: ScriptedService, exchange: Exchange) -> None:
        created_at_first_ask.append(len(service.created))
        deleted_at_last_ask.append(len(service.deleted))
        await answer(service, exchange)

    async with scripted_service(watch) as service:
        done = await bench(
            "-url", service.url, "-prepare-sessions", "-prepare-concurrency=2", "-clients=3", "-requests-per-client=1",
            *QUICK,
        )  # fmt: skip
    assert done.code == 0
    assert created_at_first_ask == [3, 3, 3]
    assert deleted_at_last_ask == [0, 0, 0]
    assert sorted(service.deleted) == sorted(service.created)


async def test_sessions_stay_where_deleting_is_off() -> None:
    async with scripted_service() as service:
        await bench("-url", service.url, "-delete-session=false", "-clients=1", "-requests-per-client=1", *QUICK)
    assert (len(service.created), service.deleted) == (1, [])


async def test_a_truncated_stream_is_never_a_success(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def cut(_: ScriptedService, exchange: Exchange) -> None:
        await exchange.send("stream", message=exchange.message("user", "x"))
        await exchange.send("stream", message=exchange.message("assistant", "half an ans"))
        exchange.cut()

    async with scripted_service(cut) as service:
        done = await bench("-url", service.url, "-clients=2", "-requests-per-client=3", "-json", str(out), *QUICK)
    assert done.code == 3
    assert "Outcome: FAILED" in done.stdout
    result = result_of(out)
    assert result["counts"] == {"total": 6, "success": 0, "errors": 2, "not_sent": 4}
    assert result["errors_by_class"] == {"ws_close_1006": 2}
    assert result["latency_ms"] is None
    assert sorted(service.deleted) == sorted(service.created)


async def test_a_polite_close_before_the_final_is_no_success_either(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def leave(_: ScriptedService, exchange: Exchange) -> None:
        await exchange.socket.close(code=1000)

    async with scripted_service(leave) as service:
        done = await bench("-url", service.url, "-clients=1", "-requests-per-client=1", "-json", str(out), *QUICK)
    assert done.code == 3
    assert result_of(out)["errors_by_class"] == {"ws_close_1000": 1}


async def test_one_error_frame_degrades_a_run_and_ends_that_client(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def second_fails(service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number == 1:
            await exchange.send("error", content="Try again.", session_id="s", code="overloaded")
            await exchange.socket.close(code=1011)
        else:
            await answer(service, exchange)

    async with scripted_service(second_fails) as service:
        done = await bench("-url", service.url, "-clients=1", "-requests-per-client=4", "-json", str(out), *QUICK)
    assert done.code == 0
    assert "Outcome: DEGRADED" in done.stdout
    assert "Sample errors:\n- server_error_event(overloaded): Try again.\n" in done.stdout
    result = result_of(out)
    assert result["counts"] == {"total": 4, "success": 1, "errors": 1, "not_sent": 2}


async def test_a_final_that_only_apologises_is_an_error_and_the_client_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def apologise(service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number == 0:
            sorry = exchange.message("assistant", "Sorry.", extras={"error": "llm_unavailable"}, finish_reason="other")
            await exchange.send("final", messages=[exchange.message("user", "x"), sorry], session={})
        else:
            await answer(service, exchange)

    async with scripted_service(apologise) as service:
        done = await bench("-url", service.url, "-clients=1", "-requests-per-client=3", "-json", str(out), *QUICK)
    assert done.code == 0
    result = result_of(out)
    assert result["counts"] == {"total": 3, "success": 2, "errors": 1, "not_sent": 0}
    assert result["errors_by_class"] == {"server_error_event(llm_unavailable)": 1}
    assert "- server_error_event(llm_unavailable): Sorry.\n" in done.stdout


async def test_a_native_error_event_leaves_the_socket_usable(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def first_fails(service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number == 0:
            await exchange.send("error", code="llm_timeout", message="late", exchange_id="x", seq=0)
        else:
            await answer(service, exchange)

    async with scripted_service(first_fails) as service:
        done = await bench(
            "-native", "-url", service.url, "-clients=1", "-requests-per-client=2", "-json", str(out), *QUICK
        )
    assert (done.code, service.sockets) == (0, 1)
    result = result_of(out)
    assert result["errors_by_class"] == {"server_error_event(llm_timeout)": 1}
    # The frame that ended a turn counts, and only good turns are shown.
    assert result["recording"]["turns"]["frames"] == [1, 5]
    assert (result["frames_a_turn"]["count"], result["frames_a_turn"]["max"]) == (1, 5)


async def test_silence_is_a_timeout_that_stops_the_turn(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def silent(_: ScriptedService, exchange: Exchange) -> None:
        if exchange.ask["message"] == "begin":
            await exchange.send("stream", message=exchange.message("user", "x"))

    async with scripted_service(silent) as service:
        for message, kind, frames in (("Hello", "ask_timeout", 0), ("begin", "turn_timeout", 1)):
            done = await bench(
                "-url", service.url, "-clients=1", "-requests-per-client=2", "-ramp-duration=0", "-timeout=5s",
                "-message", message, "-json", str(out),
            )  # fmt: skip
            assert done.code == 3
            assert result_of(out)["errors_by_class"] == {kind: 1}
            assert result_of(out)["recording"]["turns"]["frames"] == [frames]
    assert service.close_codes == [4000, 4000]


async def test_nobody_listening_is_a_failed_run(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    url = f"ws://127.0.0.1:{free_port()}/agentic/v1/chatbot/query/ws"
    done = await bench("-url", url, "-clients=3", "-requests-per-client=2", "-json", str(out), *QUICK)
    assert done.code == 3
    assert result_of(out)["errors_by_class"] == {"tcp_refused": 3}
    # The same words for each of the three are said once.
    assert done.stdout.count("- tcp_refused: 127.0.0.1:") == 1
    done = await bench("-url", url, "-session=s", "-clients=3", "-requests-per-client=2", "-json", str(out), *QUICK)
    assert done.code == 3
    assert result_of(out)["errors_by_class"] == {"tcp_refused": 3}


async def test_a_session_that_cannot_be_created_is_an_error_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    refusal = {"detail": {"code": "limit_reached", "message": "At most 3 conversations.", "request_id": "r"}}
    async with scripted_service(create_status=403, refusal=refusal) as service:
        done = await bench("-url", service.url, "-clients=2", "-requests-per-client=2", "-json", str(out), *QUICK)
    assert "- session_create_403: limit_reached, At most 3 conversations.\n" in done.stdout
    assert done.code == 3
    result = result_of(out)
    assert result["errors_by_class"] == {"session_create_403": 2}
    assert result["counts"]["not_sent"] == 2


async def test_failed_preparation_is_exit_code_2_with_one_line() -> None:
    async with scripted_service(create_status=500) as service:
        done = await bench("-url", service.url, "-prepare-sessions", "-clients=2", *QUICK)
    assert done.code == 2
    assert done.stderr == "ws_bench: prepare sessions failed: session_create_500\n"
    assert "SUMMARY" not in done.stdout
    assert service.asks == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-clients", "none"), "-clients"),
        (("-no-such-flag",), "no-such-flag"),
        (("sweeep",), "unknown command 'sweeep'"),
        (("-json", "/nonexistent/dir/out.json"), "no directory"),
    ],
)
async def test_bad_usage_is_exit_code_2_with_one_line(argv: tuple[str, ...], said: str) -> None:
    done = await bench(*argv)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[0]


async def test_help_lists_every_flag() -> None:
    done = await bench("run", "-h")
    assert done.code == 0
    for flag in ("-url", "-create-session", "-requests-per-client", "-native", "-include-corpus-scope", "-json"):
        assert f"\n  {flag}" in done.stdout
    overview = await bench("-h")
    assert "mock-llm" in overview.stdout
    # Without a word it does not load an address that nobody named with 150 clients.
    assert await bench() == overview


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_lets_turns_end_deletes_sessions_and_reports(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out.json"
    release = asyncio.Event()

    async def held(service: ScriptedService, exchange: Exchange) -> None:
        await release.wait()
        await answer(service, exchange)

    async with scripted_service(held) as service, start_bench(
        "-url", service.url, "-clients=2", "-requests-per-client=50", "-json", str(out), *QUICK, "-grace=1h",
        "-timeout=1h",
    ) as process:  # fmt: skip
        await service.until(lambda: len(service.asks) >= 2)
        process.send_signal(number)
        assert process.stderr is not None
        assert b"interrupted" in await process.stderr.readline()
        release.set()
        done = await finish(process)
    assert done.code == 130
    assert "Outcome: INTERRUPTED" in done.stdout
    result = result_of(out)
    assert result["counts"] == {"total": 100, "success": 2, "errors": 0, "not_sent": 98}
    assert sorted(service.deleted) == sorted(service.created) == ["session-0", "session-1"]


async def test_after_the_grace_time_running_turns_are_cancelled_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def never(_: ScriptedService, __: Exchange) -> None:
        return

    async with scripted_service(never) as service, start_bench(
        "-url", service.url, "-clients=1", "-requests-per-client=3", "-json", str(out), *QUICK, "-grace=0s",
        "-timeout=1h",
    ) as process:  # fmt: skip
        await service.until(lambda: len(service.asks) >= 1)
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    result = result_of(out)
    assert result["errors_by_class"] == {"client_cancel": 1}
    assert result["counts"]["not_sent"] == 2
    assert service.close_codes == [4000]
    assert service.deleted == service.created


async def test_a_second_interrupt_stops_at_once() -> None:
    async def never(_: ScriptedService, __: Exchange) -> None:
        return

    async with (
        scripted_service(never) as service,
        start_bench("-url", service.url, "-clients=1", *QUICK, "-grace=1h", "-timeout=1h") as process,
    ):
        await service.until(lambda: len(service.asks) >= 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 130
    assert "SUMMARY" not in done.stdout


async def test_debug_events_go_to_stderr() -> None:
    async with scripted_service() as service:
        done = await bench("-url", service.url, "-clients=1", "-requests-per-client=1", "-debug-events", *QUICK)
    assert done.stderr.count("event raw: ") == 3


async def test_an_event_above_the_read_limit_breaks_the_turn(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service() as service:
        done = await bench(
            "-url", service.url, "-clients=1", "-requests-per-client=1", "-read-limit-bytes=100", "-json", str(out),
            *QUICK,
        )  # fmt: skip
    assert done.code == 3
    assert result_of(out)["errors_by_class"] == {"ws_close_1009": 1}
