"""What the benches make of their figures: ratios round by round, changes of a configuration, the clock of a process."""

import os
from typing import Any

import pytest

from tests.bench.bench import ROOT, Verdicts, cores, pinned_to
from tests.bench.deployment import busy_s, cpu_s
from tests.bench.matrix import SWITCHES, Acceptance, Effect, both, hold_accepted, setting
from tests.bench.measured import Sample, Series
from ws_bench.record.stacks import DOES, ROOMS, Stack, does, library, parse
from ws_bench.record.timing import Timings, repetitions


def figures(cpu_ms: float, **other: Any) -> Sample:
    return Sample(
        **{
            "turns": 10.0,
            "turns_per_s": 1.0,
            "cpu_ms": cpu_ms,
            "frames_per_turn": 3.0,
            "p50_ms": 1.0,
            "p99_ms": 2.0,
            "service_share": 0.9,
            "others_share": 0.5,
            "foreign_share": 0.0,
            **other,
        }
    )


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    ours = Series([figures(1.0), figures(2.0), figures(30.0)])
    theirs = Series([figures(4.0), figures(10.0), figures(60.0)])
    assert ours.ratios(theirs) == [0.25, 0.2, 0.5]
    assert ours.ratio(theirs) == 0.25
    assert ours.cpu_ms == 2.0
    assert ours.spread == "1.00..30.00"


def test_what_speaks_against_a_figure_is_said() -> None:
    assert Series([figures(1.0)]).doubts == ""
    doubtful = Series([figures(1.0), figures(1.0, others_share=0.99, foreign_share=0.25)])
    assert doubtful.doubts == "load-limited in 1 of 2, up to 25% foreign load"
    assert figures(2.0).turns_per_core_s == 500.0


def test_a_setting_is_changed_by_its_name_and_nothing_else() -> None:
    config: dict[str, Any] = {"app": {"port": 1}, "persistence": {"ack": "none"}}
    both(setting("app.log_level", "debug"), setting("a.b.c", 2))(config)
    assert config == {"app": {"port": 1, "log_level": "debug"}, "persistence": {"ack": "none"}, "a": {"b": {"c": 2}}}


def test_an_effect_is_more_or_less_than_unchanged() -> None:
    effect = Effect(SWITCHES[0], Series([figures(1.5), figures(1.0)]), Series([figures(1.0), figures(1.0)]))
    assert effect.on_cpu == 0.25
    assert effect.spread == "+0.0%..+50.0%"
    assert effect.on("p99_ms") == 0.0


def test_an_acceptance_is_held_to_one_commit_and_what_is_allowed_beside_it() -> None:
    def waits(*firsts_s: float) -> Series:
        return Series([figures(1.0, firsts_s=(first_s,)) for first_s in firsts_s])

    switch = next(one for one in SWITCHES if one.later_ms == 1.5)
    effect = Effect(switch, waits(0.005, 0.009, 0.040), waits(0.002, 0.005, 0.011))
    verdicts = Verdicts()
    for commit_ms in (2.75, 2.0):
        hold_accepted([Acceptance(effect, commit_ms)], verdicts, slack=1.0)
    judged = [(row.figure, row.goal, row.verdict) for row in verdicts.rows if "later" in row.what]
    assert judged == [("4 ms", "<= 4.25 ms", "ok"), ("4 ms", "<= 3.5 ms", "MISSED")]
    hold_accepted([Acceptance(Effect(switch, waits(0.005), Series([figures(1.0)])), 2.5)], verdicts, slack=1.0)
    assert verdicts.failed == 2  # of what was never accepted nothing is known


def test_a_bound_below_and_a_bound_above_are_counted_where_they_are_missed() -> None:
    verdicts = Verdicts()
    verdicts.hold("a", 1.0, 1.0, "x")
    verdicts.hold_at_least("b", 1.0, 1.0, "x")
    assert verdicts.failed == 0
    verdicts.hold("a", 1.1, 1.0, "x")
    verdicts.hold_at_least("b", 0.9, 1.0, "x")
    assert verdicts.failed == 2


def test_the_cpu_of_a_process_is_that_of_the_system() -> None:
    before = os.times()
    read = cpu_s(os.getpid())
    after = os.times()
    assert before.user + before.system - 0.02 <= read <= after.user + after.system + 0.02
    assert busy_s(set(range(os.cpu_count() or 1))) >= read


def test_the_columns_of_a_case() -> None:
    costs = [float(number) for number in range(1, 1001)]
    line = Timings(costs).line().split()
    assert line[:7] == ["1,998", "1.00", "500.50", "750.00", "990.00", "995.00", "999.00"]
    assert line[-1] == "1000"
    assert float(line[7].rstrip("%")) == pytest.approx(3.575, abs=0.01)


def test_a_sample_repeats_until_the_clock_is_not_in_it() -> None:
    def add_up(times: range) -> None:
        for _ in times:
            sum(range(200))

    assert repetitions(add_up) > 1


def test_what_a_stack_is_known_by_is_there() -> None:
    """A function that has gone would leave its CPU to another row, and nobody would see it."""
    parts = [part for _, parts in DOES for part in parts if ".py:" in part]
    assert parts
    for part in parts:
        path, _, function = part.partition(":")
        found = [module for package in ROOMS for module in (ROOT / package).rglob(path.rpartition("/")[2])]
        texts = [module.read_text() for module in found if module.as_posix().endswith(f"/{path}")]
        assert any(f"def {function}" in text for text in texts), part
    folders = [part for _, parts in DOES for part in parts if part.startswith(tuple(f"{room}/" for room in ROOMS))]
    assert folders
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_a_stack_of_the_loop_is_what_the_loop_called() -> None:
    loop = "main (/x/agentic_backend/__main__.py:36);Runner.run (/usr/lib/asyncio/runners.py:118)"
    site = "/venv/lib/python3.11/site-packages"
    stacks = parse(
        [
            f"{loop} 5",
            f"{loop};write (/x/agentic_backend/surfaces/langgraph/stream.py:9) 1",
            f"{loop};astream ({site}/langgraph/pregel/main.py:9) 1",
            f"{loop};sender (/x/agentic_backend/chat/socket.py:9);send ({site}/uvicorn/ws.py:1) 3",
            f"{loop};SocketWriter._send_events (/x/agentic_backend/chat/writer.py:9);send ({site}/uvicorn/ws.py:1) 3",
            "_bootstrap (/usr/lib/threading.py:1);Spool._write_all (/x/agentic_backend/spool/spool.py:7) 2",
        ]
    )
    assert stacks[0] == Stack((), 5)
    assert [does(stack) for stack in stacks] == [
        "event loop and its system calls",
        "door: its own shapes",
        "graph",
        "socket: frames in; HTTP",
        "socket: frames out",
        "spool (thread)",
    ]
    assert [library(stack) for stack in stacks] == [
        "uvloop",
        "agentic_backend",
        "langgraph",
        "uvicorn",
        "uvicorn",
        "agentic_backend",
    ]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_a_service_has_its_own_core_also_where_the_bench_has_the_others() -> None:
    mine, others = cores()
    before = os.sched_getaffinity(0)
    with pinned_to(others):
        with pinned_to(mine):
            assert os.sched_getaffinity(0) == mine
        with pinned_to(mine | others):
            assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(0) == others
    assert os.sched_getaffinity(0) == before
