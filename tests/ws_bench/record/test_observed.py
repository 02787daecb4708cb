"""Percentiles between two reads of a service's distributions: against the real Kpi, and none where it tells none."""

import json

import pytest
from prometheus_client import CollectorRegistry, Histogram

from backend_kit.kpi import Kpi
from ws_bench.record.exposition import Figures
from ws_bench.record.observed import ObservedValues, observed_figures, observed_labels, read_observed
from ws_bench.record.results import percentile


class Service:
    """A Kpi, read as `/distributions` shows it."""

    def __init__(self, started: float = 1.0) -> None:
        self.kpi = Kpi(CollectorRegistry(), service="t")
        self.started = started

    def read(self) -> ObservedValues:
        told = {"unit": "ms", "started": self.started, "distributions": self.kpi.distributions()}
        return read_observed(json.dumps(told))


def test_percentiles_are_those_of_what_came_between_two_reads() -> None:
    service = Service()
    turn = service.kpi.timer("app.turn_latency_ms|agent=Georges")
    for ms in (10.0, 50.0, 9000.0):
        turn.observe(ms)
    before = service.read()
    values = [3000.0 + 0.85 * number for number in range(100)]
    for ms in values:
        turn.observe(ms)
    figures = observed_figures([(before, service.read())], ["app.turn_latency_ms"])
    assert figures is not None
    assert figures.count == 100
    assert figures.avg == pytest.approx(sum(values) / 100)
    for share, seen in ((0.5, figures.p50), (0.95, figures.p95), (0.99, figures.p99)):
        assert seen == pytest.approx(percentile(values, share), rel=0.004)


def test_labels_choose_and_the_rest_is_pooled() -> None:
    service = Service()
    child = Histogram("app_db_statement_seconds", "x", ["pool", "op"], registry=service.kpi.registry)
    before = service.read()
    for pool, op, seconds in (("main", "select", 0.001), ("batch", "commit", 0.004), ("main", "commit", 0.008)):
        service.kpi.gauged_seconds("persist_sql_ms", child.labels(pool, op), pool=pool, op=op).observe(seconds)
    after = service.read()
    assert observed_labels([after], "persist_sql_ms", "op") == {"select", "commit"}
    commits = observed_figures([(before, after)], ["persist_sql_ms"], op="commit")
    every = observed_figures([(before, after)], ["persist_sql_ms", "none"])
    assert commits is not None
    assert every is not None
    assert (commits.count, every.count) == (2, 3)
    assert (commits.p50, commits.p99) == (pytest.approx(4, rel=0.004), pytest.approx(8, rel=0.004))
    assert observed_figures([(before, after)], ["persist"], op="commit") is None


def test_processes_are_pooled_and_one_that_began_anew_counts_whole() -> None:
    one, other, anew = Service(), Service(2.0), Service(3.0)
    for service, ms in ((one, 1.0), (other, 100.0), (anew, 200.0)):
        service.kpi.timer("embed").observe(ms)
    figures = observed_figures([(one.read(), one.read()), (other.read(), anew.read())], ["embed"])
    assert figures is not None
    assert (figures.count, figures.p99) == (1, pytest.approx(200, rel=0.004))


@pytest.mark.parametrize("text", ["", "<html>", "[]", "{}", '{"started": 1, "distributions": [1]}'])
def test_what_is_no_such_answer_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="no distributions"):
        read_observed(text)


def test_percentiles_of_an_older_result_are_left_out() -> None:
    old = {"count": 5, "avg": 3010.0, "p50": 3750.0, "p95": 4875.0, "p99": 4975.0, "low": 5.0, "top": False}
    assert Figures.from_json(old) == Figures(5, 3010.0)
