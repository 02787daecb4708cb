"""The summary log against the line formats that dashboards and greps know."""

import io
import re
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Gauge

from backend_kit.kpi import Kpi, Summary
from backend_kit.kpi.summary import Due, ProcessLine
from tests.backend_kit.kpi.conftest import TellingStream
from tests.support.clock import Clock
from tests.support.patience import PATIENCE_S

NUMBER = r"-?\d+\.\d\d"
PERCENTILES = rf"p50={NUMBER} p95={NUMBER} p99={NUMBER}"
TIMER = re.compile(
    rf"\[KPI\]\[SUMMARY\] timer (\S+) count=(\d+) avg={NUMBER} min={NUMBER} max=({NUMBER})(?: {PERCENTILES})?$"
)
GAUGE = re.compile(
    rf"\[KPI\]\[SUMMARY\] gauge (\S+) count=(\d+) last=(-?\d+\.\d{{4}}) avg={NUMBER} min={NUMBER} max={NUMBER}"
    rf"(?: {PERCENTILES})?$"
)
PROCESS = re.compile(
    rf"cpu_pct=({NUMBER}|n/a) rss_mb=({NUMBER}|n/a) rss_pct=({NUMBER}|n/a) vms_mb=({NUMBER}|n/a) open_fds=(\d+|n/a)"
    rf"(?: threads=(\d+|n/a) gc_count=(\d+) gc_ms=({NUMBER}) gc_max_ms=({NUMBER}))?$"
)
PUBLISHED = (
    "[KPI][SUMMARY] timer app.phase_latency_ms|phase=vector_search count=89 avg=1912.17 min=1306.00 max=2420.00",
    "[KPI][SUMMARY] gauge event_loop_lag_ms count=98 last=0.0326 avg=0.06 min=0.01 max=1.46",
    "[KPI][SUMMARY] cpu_pct=14.19 rss_mb=282.36 rss_pct=0.89 vms_mb=1733.68 open_fds=61",
)


def summary_of(kpi: Kpi, stream: io.StringIO | None = None, **options: object) -> Summary:
    return Summary(kpi, stream=stream or io.StringIO(), **{"interval_s": 60.0, **options})  # type: ignore[arg-type]


OWN = "[KPI][SUMMARY] cpu_pct="
"""How the line of this process begins."""


def messages(stream: io.StringIO) -> list[str]:
    """All but those of the children that other tests have given this process."""
    lines = [line.split(" turnwise.kpi ", 1)[1] for line in stream.getvalue().splitlines()]
    return [line for line in lines if not line.startswith("[KPI][PROCESS]")]


def test_the_expressions_of_this_file_are_those_of_the_published_lines() -> None:
    assert TIMER.match(PUBLISHED[0])
    assert GAUGE.match(PUBLISHED[1])
    assert PROCESS.match(PUBLISHED[2].removeprefix("[KPI][SUMMARY] "))


def test_lines_have_the_published_format_with_percentiles_after_it(kpi: Kpi) -> None:
    for ms in (1306.0, 2420.0, 1912.17):
        kpi.record_phase("vector_search", ms / 1e3)
    kpi.record_phase("vector_search", 0.0005, "timeout")
    kpi.gauge("event_loop_lag_ms").set(1.46)
    kpi.gauge("event_loop_lag_ms").set(0.03264)
    kpi.counter("turns|agent=Georges").inc()
    spreads = (
        ("timer app.phase_latency_ms|phase=vector_search count=3", "1879.39 min=1306.00 max=2420.00", 1912.17, 2420.0),
        ("timer app.phase_latency_ms|phase=vector_search|status=timeout count=1", "0.50 min=0.50 max=0.50", 0.5, 0.5),
        ("gauge event_loop_lag_ms count=2 last=0.0326", "0.75 min=0.03 max=1.46", 0.03, 1.46),
    )
    assert summary_of(kpi).lines() == [
        *(f"[KPI][SUMMARY] {a} avg={b} p50={p50:.2f} p95={p95:.2f} p99={p95:.2f}" for a, b, p50, p95 in spreads),
        "[KPI][SUMMARY] counter turns|agent=Georges count=1",
    ]


def test_what_is_late_by_more_than_its_interval_comes_once() -> None:
    due = Due(10.0, 0.0)
    assert [due.passed(now) for now in (9.9, 10.2, 10.3, 20.1, 55.0, 55.1, 64.9, 65.0)] == [
        *(False, True, False, True),
        *(True, False, False, True),
    ]
    assert not Due(0.0, 0.0).passed(1e9)


def test_what_must_not_happen_is_told_at_0_too(kpi: Kpi) -> None:
    kpi.told_at_zero += ["persist_lost", "rank_conflicts"]
    summary = summary_of(kpi, top_n=3)
    assert summary.lines() == [f"[KPI][SUMMARY] counter {name} count=0" for name in ("persist_lost", "rank_conflicts")]
    kpi.counter("persist_lost|reason=full").inc(2)
    assert summary.lines() == [
        "[KPI][SUMMARY] counter rank_conflicts count=0",
        "[KPI][SUMMARY] counter persist_lost|reason=full count=2",
    ]


WITHOUT_DESCRIPTORS = """
import os, resource, sys, time
from prometheus_client import CollectorRegistry
from backend_kit.kpi import Kpi, Summary

kpi = Kpi(CollectorRegistry(), service="test")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
if sys.argv[1] == "at the start":
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
summary = Summary(kpi, interval_s=0.05, process_interval_s=0.05, stream=sys.stdout)
summary.start()
while sys.argv[1] == "later" and len(taken) < 64:
    try:
        taken.append(os.dup(0))
    except OSError:
        break
time.sleep(1.0)
print("free again", kpi.vigil.failures, flush=True)
for descriptor in taken:
    os.close(descriptor)
sys.stdin.read()
summary.close()
"""


@pytest.mark.servers
@pytest.mark.parametrize("when", ["at the start", "later"])
def test_the_summary_outlives_a_process_without_descriptors(when: str) -> None:
    program = [sys.executable, "-u", "-c", WITHOUT_DESCRIPTORS, when]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        # The limit of a test bounds both waits.
        said = iter(process.stdout or ())
        assert any(line.startswith("free again") for line in said)
        lines = (line.rstrip().partition("[KPI][SUMMARY] ")[2] for line in said)
        assert any(PROCESS.match(line) and "n/a" not in line for line in lines)
        process.communicate()
    assert process.returncode == 0


def test_each_summary_starts_the_window_again(kpi: Kpi) -> None:
    summary = summary_of(kpi)
    kpi.record_phase("agent_init", 0.001)
    assert len(summary.lines()) == 1
    assert summary.lines() == []


def test_a_level_gauge_is_said_again_and_a_sampled_one_is_not(kpi: Kpi) -> None:
    prometheus = Gauge("app_persist_oldest_seconds", "Age.", registry=kpi.registry)
    oldest = kpi.gauge("persist_oldest_ms", prometheus, level=True, child_scale=1e-3)
    sockets = kpi.gauge("ws_connections", level=True)
    kpi.gauge("never_set", level=True)
    oldest.set(250.0)
    sockets.inc()
    sockets.inc(2)
    sockets.dec()
    kpi.gauge("persist_sql_ms").set(3.0)
    summary = summary_of(kpi)
    summary.lines()
    lasts = {match[1]: float(match[3]) for line in summary.lines() if (match := GAUGE.match(line))}
    assert lasts == {"persist_oldest_ms": 250.0, "ws_connections": 2.0}
    assert kpi.registry.get_sample_value("app_persist_oldest_seconds") == 0.25
    assert kpi.registry.get_sample_value("persist_sql_ms") == 3.0


def test_the_average_of_a_level_is_over_time_however_often_it_was_set() -> None:
    clock = Clock()
    kpi = Kpi(CollectorRegistry(), service="agentic", clock=clock)
    running = kpi.gauge("kf.searches_running", level=True)

    def line(after_s: float) -> str:
        clock.now += after_s
        (told,) = summary.lines()
        return told.removeprefix("[KPI][SUMMARY] gauge kf.searches_running ").partition(" p50")[0]

    running.set(9.0)
    clock.now += 30.0
    summary = summary_of(kpi)
    summary.begin("")
    # Eight seconds at 2, then a moment in which much comes and goes: by its samples the average would be 4.
    clock.now += 1.0
    running.set(2.0)
    clock.now += 8.0
    for level in (4.0, 6.0, 4.0, 0.0):
        running.set(level)
    assert line(1.0) == "count=6 last=0.0000 avg=2.50 min=0.00 max=9.00"
    # What it was when the window began counts until it changes, and in all of a window without a change.
    clock.now += 5.0
    running.inc(3.0)
    assert line(5.0) == "count=2 last=3.0000 avg=1.50 min=0.00 max=3.00"
    assert line(10.0) == "count=1 last=3.0000 avg=3.00 min=3.00 max=3.00"
    assert line(0.0) == "count=1 last=3.0000 avg=3.00 min=3.00 max=3.00"


def keys_of(lines: list[str], kind: str) -> list[str]:
    return [line.split()[2] for line in lines if line.startswith(f"[KPI][SUMMARY] {kind} ")]


def test_without_a_limit_all_keys_stand_by_name(kpi: Kpi) -> None:
    for name in ("b", "a"):
        kpi.timer(name).observe(1.0)
        kpi.gauge(name).set(0.0)
    lines = summary_of(kpi).lines()
    assert keys_of(lines, "timer") == keys_of(lines, "gauge") == ["a", "b"]


def test_a_limit_never_cuts_what_every_summary_has(kpi: Kpi) -> None:
    """At full load thirty keys have a sample a turn: what a reader looks for first must be among what is said."""
    for number in range(30):
        for _ in range(20):
            kpi.timer(f"a_{number:02d}").observe(float(number))
    for phase in ("llm_invoke", "stream_agent_response", "persist_tx", "stream_total", "spool_ack"):
        kpi.record_phase(phase, 0.001)
    kpi.record_phase("llm_invoke", 0.001, "timeout")
    for key in ("app.turn_latency_ms|agent=Rico", "app.turn_latency_ms|agent=Georges", "app.ttft_ms|agent=Rico"):
        kpi.timer(key).observe(1.0)
    kpi.timer("app.overhead_ms").observe(1.0)
    kpi.timer("app.turn_latency_msx").observe(0.0)
    lines = summary_of(kpi, top_n=2).lines()
    assert keys_of(lines, "timer") == [
        "app.phase_latency_ms|phase=llm_invoke",
        "app.phase_latency_ms|phase=llm_invoke|status=timeout",
        "app.phase_latency_ms|phase=stream_agent_response",
        "app.phase_latency_ms|phase=persist_tx",
        "app.phase_latency_ms|phase=stream_total",
        "app.turn_latency_ms|agent=Georges",
        "app.turn_latency_ms|agent=Rico",
        "app.ttft_ms|agent=Rico",
        "app.overhead_ms",
        "a_29",
        "a_28",
    ]


def test_a_limit_orders_the_rest_by_what_they_took_in_all(kpi: Kpi) -> None:
    for name, count, ms in (("often", 50, 0.1), ("long", 1, 900.0), ("middle", 3, 5.0)):
        for _ in range(count):
            kpi.timer(name).observe(ms)
    assert keys_of(summary_of(kpi, top_n=2).lines(), "timer") == ["long", "middle"]


def test_with_a_limit_gauges_that_stayed_at_0_make_room(kpi: Kpi) -> None:
    for name in ("a_zero", "b_zero", "turns_inflight"):
        kpi.gauge(name, level=True).set(0.0)
    kpi.gauge("turns_inflight", level=True).set(5.0)
    kpi.gauge("z", level=True).set(1.0)
    kpi.gauge("event_loop_lag_ms").set(0.2)
    summary = summary_of(kpi, top_n=1)
    assert keys_of(summary.lines(), "gauge") == ["event_loop_lag_ms", "turns_inflight"]
    kpi.gauge("turns_inflight", level=True).set(0.0)
    summary.lines()
    assert keys_of(summary.lines(), "gauge") == ["z"]


def test_a_counter_is_never_rounded_to_nothing(kpi: Kpi) -> None:
    given = {"cost|model=gpt": 0.00231, "turn_wait_s|cause=llm_floor": 2.9941, "turns": 3, "tiny": 4e-7}
    for key, value in given.items():
        kpi.counter(key).inc(value)
    for _ in range(10):
        kpi.counter("sum").inc(0.1)
    kpi.counter("large").inc(12_345_678.0)
    counted = dict(line.split()[2:] for line in summary_of(kpi).lines())
    assert counted == {
        "cost|model=gpt": "count=0.00231",
        "turn_wait_s|cause=llm_floor": "count=2.994",
        "turns": "count=3",
        "tiny": "count=0.000000400",
        "sum": "count=1.000",
        "large": "count=12345678",
    }


def test_with_a_limit_a_loss_stands_before_what_is_counted_often(kpi: Kpi) -> None:
    for number in range(9):
        kpi.counter(f"cache|result={number}").inc(1000)
    kpi.counter("persist_lost|reason=poison").inc()
    kpi.counter("cost|model=gpt").inc(0.001)
    lines = summary_of(kpi, top_n=1).lines()
    assert keys_of(lines, "counter") == ["persist_lost|reason=poison", "cost|model=gpt", "cache|result=0"]


def test_owners_add_lines(kpi: Kpi) -> None:
    kpi.add_lines(lambda: ["db_pool=main size=20 checked_out=3"])
    assert summary_of(kpi).lines() == ["[KPI][SUMMARY] db_pool=main size=20 checked_out=3"]


def test_last_words_end_each_summary_as_they_are(kpi: Kpi) -> None:
    stream = io.StringIO()
    kpi.add_closing_lines(lambda: ["[KPI][VERDICT] bound_by=nobody"])
    summary = summary_of(kpi, stream)
    summary.start()
    kpi.record_phase("agent_init", 0.001)
    summary.close()
    assert messages(stream)[-1] == "[KPI][VERDICT] bound_by=nobody"
    assert len(messages(stream)) == 3


@pytest.mark.parametrize(
    ("log_level", "said"), [("debug", "INFO"), ("info", "INFO"), ("warning", "WARNING"), ("ERROR", "WARNING")]
)
def test_the_last_summary_is_written_at_close_whatever_the_log_level(kpi: Kpi, log_level: str, said: str) -> None:
    stream = io.StringIO()
    summary = summary_of(kpi, stream, log_level=log_level)
    summary.start()
    kpi.record_phase("agent_init", 0.001)
    summary.close()
    summary.close()
    first, last = messages(stream)
    assert TIMER.match(first)
    assert PROCESS.match(last.removeprefix("[KPI][SUMMARY] "))
    assert all(f" {said} turnwise.kpi " in line for line in stream.getvalue().splitlines())


def test_a_summary_comes_each_interval(kpi: Kpi) -> None:
    stream = TellingStream(OWN, 3)
    summary = summary_of(kpi, stream, interval_s=0.01, process_interval_s=0.01)
    summary.start()
    assert stream.seen.wait(30)
    summary.close()


def test_an_interval_of_0_writes_notices_only(kpi: Kpi) -> None:
    stream = io.StringIO()
    summary = summary_of(kpi, stream, interval_s=0.0)
    summary.start()
    kpi.record_phase("agent_init", 0.001)
    summary.notice("[KPI][STALL] lag_ms=200")
    summary.close()
    assert messages(stream) == ["[KPI][STALL] lag_ms=200"]
    assert " WARNING " in stream.getvalue()


def test_a_process_interval_of_0_leaves_the_process_line_out(kpi: Kpi) -> None:
    stream = io.StringIO()
    summary = summary_of(kpi, stream, process_interval_s=0.0)
    summary.start()
    kpi.record_phase("agent_init", 0.001)
    summary.close()
    assert len(messages(stream)) == 1


def test_the_process_line_comes_at_its_own_interval(kpi: Kpi) -> None:
    stream = TellingStream(OWN, 3)
    summary = summary_of(kpi, stream, process_interval_s=0.01)
    kpi.record_phase("agent_init", 0.001)
    summary.start()
    assert stream.seen.wait(30)
    assert not any(TIMER.match(line) for line in messages(stream))
    summary.close()
    assert [bool(TIMER.match(line)) for line in messages(stream)[-2:]] == [True, False]


def test_summaries_wait_for_no_process_line(kpi: Kpi) -> None:
    stream = TellingStream("agent_init", 3)
    summary = summary_of(kpi, stream, interval_s=0.01, process_interval_s=60.0)
    summary.start()
    while not stream.seen.wait(0.01):
        kpi.record_phase("agent_init", 0.001)
    assert OWN not in stream.getvalue()
    summary.close()
    assert stream.getvalue().count(OWN) == 1


def test_notices_never_block_and_are_bounded(kpi: Kpi) -> None:
    stream = io.StringIO()
    summary = summary_of(kpi, stream, interval_s=0.0)
    for number in range(1000):
        summary.notice(f"notice {number}")
    summary.start()
    summary.close()
    assert messages(stream) == [f"notice {number}" for number in range(64)]


def test_the_process_line_tells_of_this_process() -> None:
    match = PROCESS.match(ProcessLine()())
    assert match is not None
    assert float(match[2]) > 1
    assert int(match[5]) > 2


def test_the_first_window_begins_when_the_start_is_over(kpi: Kpi) -> None:
    stream = TellingStream("[KPI][START]")
    summary = summary_of(kpi, stream, interval_s=0.01, process_interval_s=0.0)
    summary.start(held=True)
    kpi.record_phase("session_read", 2.3)
    kpi.gauge("persist_sql_ms").set(1660.0)
    kpi.counter("persist_replayed").inc(2)
    summary.begin("[KPI][START] status=ready")
    assert stream.seen.wait(PATIENCE_S)
    kpi.gauge("persist_sql_ms").set(1.0)
    summary.close()
    said = messages(stream)
    assert said[0] == "[KPI][START] status=ready", "no summary before it, however often one was due"
    assert "[KPI][SUMMARY] counter persist_replayed count=2" in said
    assert not [line for line in said if "session_read" in line or "max=1660" in line]
    assert [line for line in said if " gauge persist_sql_ms count=1 " in line]


def test_the_process_line_has_threads_and_the_pauses_of_its_window() -> None:
    pauses = iter([(7, 1.0, 0.5), (3, 0.0125, 0.0075)])
    match = PROCESS.match(ProcessLine(lambda: next(pauses))())
    assert match is not None
    assert int(match[6]) >= 1
    assert match.groups()[6:] == ("3", "12.50", "7.50")


def test_two_summaries_do_not_write_each_others_lines() -> None:
    streams = [io.StringIO(), io.StringIO()]
    kpis = [Kpi(CollectorRegistry(), service=name) for name in ("one", "two")]
    summaries = [summary_of(kpi, stream) for kpi, stream in zip(kpis, streams, strict=True)]
    for summary in summaries:
        summary.start()
    kpis[0].record_phase("agent_init", 0.001)
    for summary in summaries:
        summary.close()
    assert [len(messages(stream)) for stream in streams] == [2, 1]
