"""The printed blocks, byte for byte, and the result file."""

import csv
import io
import re
from dataclasses import replace

import pytest

from ws_bench.config.flags import RunConfig, config_as_json, parse_run_flags
from ws_bench.config.golang import figure, milliseconds
from ws_bench.record.exposition import Figures
from ws_bench.record.recording import Recording, ServerView, SessionCounts
from ws_bench.record.results import TurnResult, gaps
from ws_bench.record.summary import RunReport, build_report
from ws_bench.report.report import Style, config_recap, csv_text, detail_block, result_json, summary_block

PLAIN = Style(enabled=False)


def report_of(
    config: RunConfig, results: list[TurnResult], elapsed_s: float, *, interrupted: bool = False
) -> RunReport:
    each = config.requests_per_client
    return build_report(
        Recording(
            config=config_as_json(config),
            started_unix=1767225600.0,
            total=config.clients * each if each else config.requests,
            elapsed_s=elapsed_s,
            turns=results,
            gaps=gaps(results),
            connect_ms=[1.25],
            sessions=SessionCounts(created=2, deleted=2, delete_failed=0),
            interrupted=interrupted,
            environment={"argv": ["run"]},
        )
    )


def turns(*latencies_ms: float, client: int = 0) -> list[TurnResult]:
    return [TurnResult(client=client, asked=0.0, ended=ms / 1000, first_token_ms=ms / 2) for ms in latencies_ms]


def test_summary_of_a_good_run() -> None:
    config = parse_run_flags(["-agent", "Rico", "-clients", "2", "-requests-per-client", "2"], {})
    report = report_of(config, turns(757.9, 1877.2, 2072.0, 6690.999), 31.8164)
    assert summary_block(report, PLAIN) == (
        "\n"
        "WS BENCH SUMMARY\n"
        "Outcome: OK\n"
        "Target: ws://127.0.0.1:8000/agentic/v1/chatbot/query/ws\n"
        "Agent ID: Rico\n"
        "Total requests: 4\n"
        "Concurrent clients: 2\n"
        "Requests per client: 2\n"
        "Success: 4 (100.00%)\n"
        "Errors: 0\n"
        "Elapsed: 31.816s\n"
        "Requests/sec: 0.13\n"
        "Latency ms (min/avg/p50/p95/p99/max): 757/2849/1877/6690/6690/6690\n"
    )


def test_summary_of_a_run_with_errors_in_total_mode() -> None:
    config = parse_run_flags(["-clients", "3", "-requests-per-client=0"], {})
    failed = TurnResult(client=1, asked=0, ended=1, error="ws_close_1011", detail="broken\nhere")
    report = report_of(config, [*turns(100.0), failed], 147.81)
    assert summary_block(report, PLAIN) == (
        "\n"
        "WS BENCH SUMMARY\n"
        "Outcome: DEGRADED\n"
        "Target: ws://127.0.0.1:8000/agentic/v1/chatbot/query/ws\n"
        "Agent ID: Georges\n"
        "Total requests: 3\n"
        "Concurrent clients: 3\n"
        "Success: 1 (33.33%)\n"
        "Errors: 1\n"
        "Elapsed: 2m27.81s\n"
        "Requests/sec: 0.01\n"
        "Latency ms (min/avg/p50/p95/p99/max): 100/100/100/100/100/100\n"
        "\n"
        "Sample errors:\n"
        "- ws_close_1011: broken here\n"
    )
    assert report.tally.not_sent == 1


def test_summary_without_a_success_has_no_rate_and_no_latency() -> None:
    config = parse_run_flags(["-clients", "1", "-requests-per-client", "1"], {})
    report = report_of(config, [TurnResult(client=0, asked=0, ended=1, error="tcp_refused")], 1.0)
    text = summary_block(report, PLAIN)
    assert "Outcome: FAILED\n" in text
    assert "Success: 0 (0.00%)\nErrors: 1\nElapsed: 1s\n\nSample errors:\n- tcp_refused\n" in text
    assert report.exit_code == 3


def test_an_interrupted_run_says_so_whatever_it_achieved() -> None:
    config = parse_run_flags(["-clients", "1"], {})
    assert report_of(config, turns(1.0), 1.0, interrupted=True).exit_code == 130
    assert "Outcome: INTERRUPTED\n" in summary_block(report_of(config, [], 1.0, interrupted=True), PLAIN)


def test_detail_follows_the_compatible_block() -> None:
    config = parse_run_flags(["-clients", "2", "-requests-per-client", "2"], {})
    results = [
        TurnResult(client=0, asked=1.0, ended=2.0, first_token_ms=10.0),
        TurnResult(client=0, asked=2.0, ended=3.0, first_token_ms=20.0),
        TurnResult(client=1, asked=1.5, ended=2.5, error="turn_timeout"),
    ]
    assert detail_block(report_of(config, results, 4.0), PLAIN) == (
        "\n"
        "WS BENCH DETAIL\n"
        "Setup: 1s\n"
        "Ramp: 500ms\n"
        "Steady window: 1.5s\n"
        "Steady turns/sec: 1.33\n"
        "Steady latency ms (min/avg/p50/p95/p99/max): 1000.0/1000.0/1000.0/1000.0/1000.0/1000.0\n"
        "  turn p50: 1000.00 ms, too few turns for an interval\n"
        "  turn p95: 1000.00 ms, too few turns for an interval\n"
        "  first token p50: 10.00 ms, too few turns for an interval\n"
        "  first token p95: 20.00 ms, too few turns for an interval\n"
        "  turns/s: 1.33, too few turns for an interval\n"
        "First token ms (min/avg/p50/p95/p99/max): 10.0/15.0/10.0/20.0/20.0/20.0\n"
        "Connect ms (min/avg/p50/p95/p99/max): 1.2/1.2/1.2/1.2/1.2/1.2\n"
        "Errors by class: turn_timeout=1\n"
        "Not sent: 1\n"
        "Sessions (created/deleted): 2/2\n"
        "Red flags: timeouts: 1\n"
    )


@pytest.mark.parametrize(("native", "shown"), [("true", ["Frames a turn (p50/p95/max): 7/52/52"]), ("false", [])])
def test_frames_are_shown_where_the_protocol_streams(native: str, shown: list[str]) -> None:
    config = parse_run_flags([f"-native={native}", "-clients", "1", "-requests-per-client", "4"], {})
    counts = (52, 7, 5, 400)
    results = [TurnResult(client=0, asked=n, ended=n + 1, frames=count) for n, count in enumerate(counts)]
    results[-1] = replace(results[-1], error="turn_timeout")
    text = detail_block(report_of(config, results, 4.0), PLAIN)
    assert [line for line in text.splitlines() if line.startswith("Frames")] == shown


def test_a_list_of_turns_has_their_frames() -> None:
    config = parse_run_flags(["-clients", "1", "-requests-per-client", "2"], {})
    results = [TurnResult(client=0, asked=0, ended=1, frames=9), TurnResult(client=0, asked=1, ended=2)]
    listed = csv.DictReader(io.StringIO(csv_text(report_of(config, results, 2.0))))
    assert [row["frames"] for row in listed] == ["9", ""]


def short_run() -> list[TurnResult]:
    """Twenty clients of three turns each, the first of whom has done before the last one begins."""
    return [
        TurnResult(
            client=client,
            asked=client * 0.1 + turn * 0.2,
            ended=client * 0.1 + turn * 0.2 + 0.15 + 0.001 * client,
            first_token_ms=100.0,
            phases={"llm_invoke": 140.0},
            top_phases=("llm_invoke",),
            server_ms=148.0,
        )
        for client in range(20)
        for turn in range(3)
    ]


def test_a_run_that_never_had_its_whole_load_on_is_told_as_a_whole_with_intervals() -> None:
    config = parse_run_flags(["-clients", "20", "-requests-per-client", "3", "-threshold", "turns:per_s>1"], {})
    report = report_of(config, short_run(), 4.0)
    text = detail_block(report, PLAIN)
    assert "Steady window: none (the whole load was never on at once)\n" in text
    assert "Whole run: 2.469s, ramp and end included\nTurns/sec: 24.30\n" in text
    assert re.search(r"^  turn p50: 159\.00 ms, 95 % within \d+\.\d\d \.\. \d+\.\d\d$", text, re.MULTILINE)
    assert re.search(r"^  turn p95: 168\.00 ms, 95 % within ", text, re.MULTILINE)
    assert "WHERE THE TIME WENT\nover the whole run, ms" in text
    assert "Gate turns:per_s>1: not measured: DOES NOT HOLD" in text
    result = result_json(report)
    assert result["steady"] is None
    assert isinstance(result["whole"], dict)
    assert result["whole"]["latency_ms"]["count"] == 60


def test_figures_are_told_as_people_write_them() -> None:
    assert [figure(value) for value in (2994.1, 3000.0, 0.97, 1_234_567.0, 0.0, 1e-9, 0.001)] == [
        "2994.1", "3000", "0.97", "1234567", "0", "1e-09", "0.001",
    ]  # fmt: skip


def test_a_fast_answer_is_not_one_of_0_ms() -> None:
    assert [milliseconds(value) for value in (3004.4, 10.4, 9.96, 0.44, 0.0)] == ["3004", "10", "10.0", "0.4", "0"]


def test_how_turns_ended_at_the_service_is_said() -> None:
    config = parse_run_flags(["-clients", "1", "-requests-per-client", "1"], {})
    report = report_of(config, turns(100.0), 1.0)
    report.recording.server = ServerView(
        begin=0.0, end=1.0, turns=3, builds=[], ended={"ok": 1, "error": 2}, phases={},
        timers={"turn": Figures(3, 100.0, 99.0, 101.0, 102.0), "GC pause": Figures(2, 0.5)}, statements={}, cpu=[0.5],
        busy=0.5, stalls=0, lost=0, pool_exhausted=False, verdict={"ms_per_turn": 2994.1}, series={}, failures=[],
    )  # fmt: skip
    text = detail_block(report, PLAIN)
    assert "Turns there: error=2 ok=1\n" in text
    assert "Verdict: ms_per_turn=2994.1\n" in text
    assert re.search(r"^turn +3 +100\.00 +99\.00 +101\.00 +102\.00$", text, re.MULTILINE)
    assert re.search(r"^GC pause +2 +0\.50 +- +- +-$", text, re.MULTILINE)


def test_the_recap_says_what_is_run_and_never_the_token() -> None:
    config = parse_run_flags(["-token", "s3cret", "-clients", "3", "-search-policy", "strict", "-native"], {})
    text = config_recap(config, PLAIN)
    assert text.startswith("\nWS BENCH CONFIG\nTarget: ws://127.0.0.1:8000/")
    assert "Search policy: strict\nMode: per-client\nClients: 3\nTotal requests: 30\nRequests per client: 10\n" in text
    assert "Session plan: create per client\n" in text
    assert "Timeout: 1m30s\n" in text
    assert "s3cret" not in text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours_only_on_a_terminal_that_wants_them(
    stream: io.StringIO, environ: dict[str, str], coloured: bool
) -> None:
    assert ("\033[" in Style.of(stream, environ).line("Errors", 1, "\033[31m")) is coloured


def test_the_result_file_holds_counts_figures_and_no_secret() -> None:
    argv = ["-token", "s3cret", "-clients=1", "-requests-per-client=2", "-url=ws://h/chatbot/query/ws?token=s3cret"]
    config = parse_run_flags(argv, {})
    result = result_json(report_of(config, turns(100.0), 2.0))
    assert (result["schema"], result["schema_version"]) == ("turnwise.ws_bench.run", 2)
    assert result["counts"] == {"total": 2, "success": 1, "errors": 0, "not_sent": 1}
    assert result["latency_ms"] == {
        "count": 1, "min": 100.0, "avg": 100.0, "p50": 100.0, "p95": 100.0, "p99": 100.0, "max": 100.0,
    }  # fmt: skip
    assert (result["gap_ms"], result["session_create_ms"], result["requests_per_s"]) == (None, None, 0.5)
    assert (result["outcome"], result["exit_code"], result["mode"]) == ("OK", 0, "per-client")
    assert "s3cret" not in str(result)
