"""Thresholds and goodput."""

import pytest

from ws_bench.config.options import parse_gate, parse_goodput
from ws_bench.errors import UsageError
from ws_bench.record.gates import check_gates, goodput
from ws_bench.record.results import TurnResult, spread


@pytest.mark.parametrize(
    ("text", "metric", "figure", "bound"),
    [
        ("turn_latency:p95<4000ms", "turn_latency", "p95", 4000.0),
        ("turn_p95<4s", "turn_latency", "p95", 4000.0),
        ("latency:avg<=250", "turn_latency", "avg", 250.0),
        ("ttft:p99<500ms", "ttft", "p99", 500.0),
        ("first_token:p50 < 1m", "ttft", "p50", 60_000.0),
        ("errors:rate<0.1%", "errors", "rate", 0.001),
        ("errors:count<1", "errors", "count", 1.0),
        ("not_sent:count<=0", "not_sent", "count", 0.0),
        ("turns:per_s>20/s", "turns", "per_s", 20.0),
    ],
)
def test_a_threshold_says_what_it_means(text: str, metric: str, figure: str, bound: float) -> None:
    gate = parse_gate(text)
    assert (gate.metric, gate.figure) == (metric, figure)
    assert gate.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    "text",
    [
        "p95<4s",
        "turn:p42<4s",
        "turn:p95=4s",
        "turn:p95<",
        "turn:rate<3",
        "errors:p95<3",
        "turn:p95<fast",
        "ttft:per_s>3",
    ],
)
def test_a_threshold_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="threshold"):
        parse_gate(text)


def test_gates_are_held_against_figures_counts_and_shares() -> None:
    texts = ["turn_p95<100ms", "turn_max<100ms", "errors:rate<1%", "errors:count<3", "turns:per_s>=5", "ttft:p50<1s"]
    results = check_gates(
        [parse_gate(text) for text in texts],
        {"turn_latency": spread([10.0, 50.0, 99.0]), "ttft": None},
        {"errors": 2, "not_sent": 0, "turns": 5.0},
        100,
    )
    assert [(one.text, one.passed) for one in results] == list(
        zip(texts, [True, True, False, True, True, False], strict=True)
    )
    # What was not measured does not hold: a gate that cannot fail is none.
    assert results[-1].value is None


def test_goodput_needs_every_limit() -> None:
    limits = parse_goodput("ttft:300ms turn:4s")
    assert limits == {"ttft": 300.0, "turn_latency": 4000.0}
    turns = [
        TurnResult(client=0, asked=0, ended=3, first_token_ms=200),
        TurnResult(client=0, asked=0, ended=5, first_token_ms=200),
        TurnResult(client=0, asked=0, ended=3, first_token_ms=400),
        TurnResult(client=0, asked=0, ended=3),
        TurnResult(client=0, asked=0, ended=1, first_token_ms=1, error="turn_timeout"),
    ]
    good = goodput(limits, turns, 8, 2.0)
    assert (good.share, good.turns_per_s) == (1 / 8, 0.5)
    with pytest.raises(UsageError):
        parse_goodput("gap:3ms")
