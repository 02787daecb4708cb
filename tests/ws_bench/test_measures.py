"""`ws_bench run` as a process: what it watches, what it refuses, what it lets through."""

import asyncio
import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from backend_kit.kpi import Kpi
from tests.support.patience import PATIENCE_S
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, finish, scripted_service, start_bench

pytestmark = pytest.mark.servers

QUICK = ("-ramp-duration", "0s", "-timeout", f"{PATIENCE_S}s", "-no-live")


def result_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    counts = result["counts"]
    assert counts["success"] + counts["errors"] + counts["not_sent"] == counts["total"]
    return result


async def paced(service: ScriptedService, exchange: Exchange) -> None:
    await asyncio.sleep(0.02)
    await answer(service, exchange)


async def test_a_gate_that_does_not_hold_is_exit_code_1_and_one_that_does_is_0(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service:
        run = ("-url", service.url, "-clients=2", "-requests-per-client=5", "-json", str(out), *QUICK)
        good = await bench(*run, "-threshold", "turn_latency:p95<60s", "-threshold", "errors:count<1")
        bad = await bench(*run, "-threshold", "turn_p50<1ms", "-threshold", "errors:rate<1%", "-goodput", "turn:60s")
    assert (good.code, bad.code) == (0, 1)
    assert "Gate turn_latency:p95<60s: " in good.stdout
    assert "DOES NOT HOLD" in bad.stdout
    result = result_of(out)
    assert [gate["passed"] for gate in result["gates"]] == [False, True]
    assert (result["outcome"], result["exit_code"], result["goodput"]["share"]) == ("OK", 1, 1.0)


async def test_a_run_that_fails_its_gate_early_ends_early(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service:
        done = await bench(
            "-url", service.url, "-clients=4", "-requests-per-client=100000", "-threshold=turn_p50<1ms",
            "-abort-on-fail", "-json", str(out), *QUICK,
        )  # fmt: skip
    assert done.code == 1
    assert "Aborted: by turn_p50<1ms" in done.stdout
    result = result_of(out)
    assert (result["outcome"], result["counts"]["total"]) == ("OK", 400_000)
    assert result["counts"]["success"] >= 20
    assert sorted(service.deleted) == sorted(service.created)


async def test_a_duration_decides_how_many_turns_there_are(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service:
        done = await bench("-url", service.url, "-clients=3", "-duration=1s", "-json", str(out), *QUICK)
    assert done.code == 0
    result = result_of(out)
    assert result["counts"]["total"] == result["counts"]["success"] == len(service.asks) >= 3
    assert result["mode"] == "duration"


async def test_a_client_thinks_between_its_turns_but_not_before_the_first() -> None:
    async with (
        scripted_service() as service,
        start_bench("-url", service.url, "-clients=2", "-think=1h", "-requests-per-client=2", *QUICK) as process,
    ):
        await service.until(lambda: len(service.asks) >= 2)
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert (done.code, len(service.asks)) == (130, 2)


async def test_warm_up_and_cool_down_shorten_the_steady_window(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service:
        await bench(
            "-url", service.url, "-clients=10", "-rate=50/s", "-duration=2s", "-warmup=500ms", "-cooldown=25%",
            "-json", str(out), *QUICK,
        )  # fmt: skip
    result = result_of(out)
    assert result["steady"]["window_s"] == pytest.approx(1.0)
    assert result["steady"]["latency_ms"]["count"] == 50
    assert result["latency_ms"]["count"] == 100


async def test_an_open_loop_connects_again_after_a_break_and_counts_each_turn(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def every_tenth_breaks(service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number % 10 == 9:
            exchange.cut()
        else:
            await answer(service, exchange)

    async with scripted_service(every_tenth_breaks) as service:
        done = await bench("-url", service.url, "-clients=5", "-rate=50/s", "-duration=1s", "-json", str(out), *QUICK)
    assert done.code == 0
    result = result_of(out)
    assert result["counts"] == {"total": 50, "success": 45, "errors": 5, "not_sent": 0}
    assert result["errors_by_class"] == {"ws_close_1006": 5}
    assert service.sockets == 5 + result["recording"]["reconnects"]
    assert "churn" in done.stdout


async def test_a_second_final_is_an_error_whenever_it_comes(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def twice(service: ScriptedService, exchange: Exchange) -> None:
        await answer(service, exchange)
        messages = [exchange.message("assistant", "again")]
        head = {"session_id": exchange.ask["session_id"], "exchange_id": exchange.ask["client_exchange_id"]}
        await exchange.send("final", seq=9, messages=messages, session={}, **head)

    async with scripted_service(twice) as service:
        last = await bench(
            "-native", "-url", service.url, "-clients=1", "-requests-per-client=1", "-json", str(out), *QUICK
        )
        assert last.code == 3
        assert result_of(out)["errors_by_class"] == {"protocol_after_final": 1}
        between = await bench(
            "-native", "-url", service.url, "-clients=1", "-requests-per-client=3", "-json", str(out), *QUICK
        )
    assert between.code in (0, 3)
    assert "protocol_cross_talk" in result_of(out)["errors_by_class"]
    assert "cross_talk: 1 turns" in between.stdout


async def test_anothers_answer_is_cross_talk_in_the_compatible_protocol_too(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def mixed_up(service: ScriptedService, exchange: Exchange) -> None:
        exchange.ask["client_exchange_id"] = "somebody-elses"
        await answer(service, exchange)

    async with scripted_service(mixed_up) as service:
        done = await bench("-url", service.url, "-clients=1", "-requests-per-client=1", "-json", str(out), *QUICK)
    assert done.code == 3
    assert result_of(out)["errors_by_class"] == {"protocol_cross_talk": 1}


async def test_history_is_verified_before_sessions_are_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def forgetful(service: ScriptedService, exchange: Exchange) -> None:
        await answer(service, exchange)
        if exchange.number == 2:
            service.kept[exchange.ask["session_id"]] = []

    async with scripted_service() as service:
        run = (
            "-clients=2",
            "-requests-per-client=2",
            "-verify-history",
            "-json",
            str(out),
            "-ramp-duration=0s",
            "-no-live",
        )
        done = await bench("-url", service.url, *run, *QUICK)
        assert (done.code, result_of(out)["history"]["missing"]) == (0, 0)
        assert "History: 4 acknowledged turns: all found" in done.stdout
        assert sorted(service.deleted) == sorted(service.created)
    async with scripted_service(forgetful) as service:
        done = await bench("-url", service.url, *run, "-timeout=5s")
    assert done.code == 1
    result = result_of(out)
    assert result["history"]["missing"] >= 1
    assert result["counts"]["success"] == 4
    assert "MISSING" in done.stdout


async def test_misbehaving_clients_come_beside_the_measured_ones(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def slow(service: ScriptedService, exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await answer(service, exchange)

    async with scripted_service(slow) as service:
        done = await bench(
            "-native", "-url", service.url, "-clients=10", "-requests-per-client=8", "-idle-clients=7", "-burst=6",
            "-slow-reader=20%:20KB/s", "-hangup-rate=50%", "-seed=3", "-json", str(out), *QUICK,
        )  # fmt: skip
    assert done.code == 0
    result = result_of(out)
    assert result["counts"] == {"total": 80, "success": 80, "errors": 0, "not_sent": 0}
    assert result["latency_ms"]["count"] == 80
    besides = result["besides"]
    assert besides["idle"] == {"came": 7, "good": 7, "errors": {}}
    assert besides["burst"] == {"came": 6, "good": 6, "errors": {}}
    assert besides["slow readers"]["came"] == 2
    assert besides["slow readers"]["good"] >= 1
    assert 20 <= besides["hang-ups"]["came"] <= 60
    assert len(service.asks) > 80 + 6
    assert service.most_open >= 10 + 7 + 2
    assert service.close_codes.count(1006) >= 1
    assert sorted(service.deleted) == sorted(service.created)


async def test_who_hangs_up_can_come_back_and_resume(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    finals: dict[str, dict[str, Any]] = {}

    async def resumable(service: ScriptedService, exchange: Exchange) -> None:
        if exchange.ask["type"] == "resume":
            assert exchange.ask["after_seq"] >= 0
            await exchange.send("final", **finals[exchange.ask["exchange_id"]])
            return
        head = {"session_id": exchange.ask["session_id"], "exchange_id": exchange.ask["client_exchange_id"]}
        finals[head["exchange_id"]] = {
            "messages": [exchange.message("assistant", "x")],
            "session": {},
            "seq": 9,
            **head,
        }
        await exchange.send("delta", seq=1, rank=1, channel="final", text="x", **head)
        await asyncio.sleep(0.05)
        if not exchange.socket.closed:
            await exchange.send("final", **finals[head["exchange_id"]])

    async with scripted_service(resumable) as service:
        done = await bench(
            "-native", "-url", service.url, "-clients=2", "-requests-per-client=6", "-hangup-rate=100%", "-reconnect",
            "-json", str(out), *QUICK,
        )  # fmt: skip
    assert done.code == 0
    assert any(ask["type"] == "resume" for ask in service.asks)
    assert result_of(out)["besides"]["hang-ups"]["errors"] == {}


class Exposition:
    """Metrics of a service that knows its turns, as the services make them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.kpi = Kpi(self.registry, service="t", legacy_ms_names=False)
        wait = Histogram("app_db_pool_wait_seconds", "x", ["pool"], registry=self.registry, buckets=(0.01, 0.1, 1))
        self.wait = self.kpi.gauged_seconds("persist_pool_wait_ms", wait.labels("main"), pool="main")
        self.turns = Counter("app_turns", "x", ["status"], registry=self.registry)
        self.waiting = Gauge("app_db_pool_waiting", "x", registry=self.registry)
        Info("app_build", "x", registry=self.registry).info({"config_hash": "cafe", "git_sha": "1234"})

    def __call__(self) -> str:
        return generate_latest(self.registry).decode()


async def test_the_services_metrics_are_joined_over_the_steady_window(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    metrics = Exposition()
    # What happened before the run is not of it.
    metrics.turns.labels("ok").inc(1000)
    metrics.kpi.record_phase("llm_invoke", 5)

    async def counted(service: ScriptedService, exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        metrics.kpi.record_phase("llm_invoke", 0.02)
        metrics.wait.observe(0.5)
        metrics.turns.labels("ok").inc()
        head = {"session_id": exchange.ask["session_id"], "exchange_id": exchange.ask["client_exchange_id"]}
        rows = [{"phase": "llm_invoke", "depth": 0, "start_ms": 0.1, "ms": 15.0}]
        messages = [exchange.message("user", "q"), exchange.message("assistant", "a", extras={"total_ms": 15.5})]
        await exchange.send("final", seq=1, messages=messages, session={}, ledger=rows, **head)

    verdict = {"bound_by": "llm_floor", "share": 0.97, "ms_per_turn": 2994.1}
    async with scripted_service(
        counted, metrics=metrics, distributions=metrics.kpi.distributions, verdict=verdict
    ) as service:
        done = await bench(
            "-native", "-url", service.url, "-clients=4", "-requests-per-client=40", "-server-metrics",
            service.metrics_url, "-server-interval=100ms", "-json", str(out), "-html", str(tmp_path / "r.html"), *QUICK,
        )  # fmt: skip
    assert done.code == 0, done.stderr
    result = result_of(out)
    server = result["recording"]["server"]
    assert abs(server["turns"] - result["steady"]["turns"]) <= 8
    assert abs(server["phases"]["llm_invoke"]["count"] - server["turns"]) <= 8
    assert server["ended"] == {"ok": server["turns"]}
    assert server["phases"]["llm_invoke"]["p95"] == pytest.approx(20, rel=0.005)
    assert server["timers"]["pool wait"]["p99"] == pytest.approx(500, rel=0.005)
    assert server["builds"] == [{"config_hash": "cafe", "git_sha": "1234"}]
    assert server["verdict"]["bound_by"] == "llm_floor"
    assert len(server["series"]["at"]) >= 3
    assert result["steady"]["matched"] == result["steady"]["latency_ms"]["count"]
    assert result["steady"]["phases"]["llm_invoke"]["avg"] == 15.0
    assert result["steady"]["server_ms"]["p50"] == 15.5
    assert result["steady"]["unexplained_ms"]["min"] > 0
    assert any(flag.startswith("pool exhaustion") for flag in result["red_flags"])
    for words in (
        "WHERE THE TIME WENT",
        "unexplained (client - server)",
        "Verdict: bound_by=llm_floor share=0.97 ms_per_turn=2994.1",
        "config_hash=cafe",
    ):
        assert words in done.stdout


async def test_workers_keep_what_the_service_says_of_them_all(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    async with scripted_service(metrics=str, verdict={"bound_by": "llm_floor"}) as service:
        done = await bench("-workers=2", "-url", service.url, "-clients=2", "-requests-per-client=2", "-server-metrics",
                           service.metrics_url, "-json", str(out), *QUICK)  # fmt: skip
    assert done.code == 0, done.stderr
    assert result_of(out)["recording"]["verdict"]["bound_by"] == "llm_floor"


async def test_a_service_without_metrics_or_verdict_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced) as service:
        done = await bench(
            "-url", service.url, "-clients=2", "-requests-per-client=3", "-server-metrics", service.metrics_url,
            "-json", str(out), *QUICK,
        )  # fmt: skip
    assert (done.code, done.stderr) == (0, "")
    assert result_of(out)["recording"]["server"] is None


async def test_without_a_steady_window_the_verdict_is_of_the_whole_run(tmp_path: Path) -> None:
    """It was asked when the first client was done: of a part of the turns, and of what came before the run."""
    out = tmp_path / "out.json"
    async with scripted_service(paced, metrics=lambda: "# EOF\n", verdict={"bound_by": "llm_floor"}) as service:
        done = await bench(
            "-url", service.url, "-clients=4", "-requests-per-client=1", "-ramp-duration=1s", "-server-metrics",
            service.metrics_url, "-json", str(out), *QUICK,
        )  # fmt: skip
    assert done.code == 0, done.stderr
    result = result_of(out)
    assert result["steady"] is None
    verdict = result["recording"]["server"]["verdict"]
    assert verdict["turns"] == 4
    assert 1 <= verdict["window_s"] < 30


async def test_a_verdict_that_is_for_operators_is_missed_with_words(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(paced, metrics=lambda: "# EOF\n", verdict=403) as service:
        done = await bench(
            "-url", service.url, "-clients=2", "-requests-per-client=3", "-server-metrics", service.metrics_url,
            "-json", str(out), *QUICK,
        )  # fmt: skip
    assert done.code == 0
    server = result_of(out)["recording"]["server"]
    assert server["verdict"] is None
    assert any("403" in words and "operator_roles" in words for words in server["failures"])


async def test_a_process_is_watched_and_turns_are_listed(tmp_path: Path) -> None:
    out, rows, words = tmp_path / "out.json", tmp_path / "out.csv", tmp_path / "out.md"
    async with scripted_service(paced) as service:
        done = await bench(
            "-url", service.url, "-clients=2", "-duration=2500ms", "-watch-pid", str(os.getpid()), "-json", str(out),
            "-csv", str(rows), "-md", str(words), *QUICK,
        )  # fmt: skip
    assert done.code == 0
    result = result_of(out)
    peaks = result["recording"]["watched"]["peaks"][str(os.getpid())]
    assert peaks["rss_mb"] > 10
    assert peaks["sockets"] >= 1
    with rows.open() as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == result["counts"]["total"]
    assert all(float(row["latency_ms"]) >= 19 for row in listed)
    assert {row["frames"] for row in listed} == {"3"}
    assert result["frames_a_turn"] is None  # not streamed: each turn has as many
    assert words.read_text().startswith("# Ws bench summary\n\n- Outcome: OK\n")


async def test_metadata_says_where_and_by_what_and_holds_no_secret(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service() as service:
        await bench(
            "-url", service.url, "-clients=1", "-requests-per-client=1", "-token", "s3cret", "-json", str(out), *QUICK
        )
    text = out.read_text()
    about = json.loads(text)["generator"]
    assert "s3cret" not in text
    for key in (
        "argv",
        "git_sha",
        "python",
        "websockets",
        "cores",
        "cgroup",
        "open_files",
        "tcp",
        "clock",
        "load_average",
    ):
        assert key in about


async def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then() -> None:
    async with scripted_service(paced) as service:
        done = await bench(
            "-url", service.url, "-clients=2", "-duration=3s", "-ramp-duration=0s", "-live-interval=300ms"
        )
    lines = done.stderr.splitlines()
    assert len(lines) >= 2
    assert all(" turns=" in line and " in_flight=" in line and " errors: none left=" in line for line in lines)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-rate=5/s",), "-rate needs -duration"),
        (("-rate=5/s", "-stages=5:1s", "-duration=1s"), "exclude each other"),
        (("-rate=5/s", "-duration=1s", "-think=1s"), "closed loop"),
        (("-arrival=bursty",), "-arrival"),
        (("-duration=1s", "-requests-per-client=0"), "-duration needs"),
        (("-threshold=p95<3",), "threshold"),
        (("-abort-on-fail",), "-threshold"),
        (("-reconnect",), "-native"),
        (("-workers=0",), "-workers"),
        (("-server-metrics=localhost:9005",), "http://"),
        (("-slow-reader=10%",), "10%:2KB/s"),
        (("-warmup=soon",), "duration"),
        (("-html=/nonexistent/x.html",), "no directory"),
        (("-postgres=postgresql://nobody@127.0.0.1:1/none",), "-postgres: cannot connect"),
    ],
)
async def test_flags_that_make_no_sense_are_exit_code_2_with_one_line(argv: tuple[str, ...], said: str) -> None:
    done = await bench(*argv)
    assert done.code == 2
    assert said in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) == 1
