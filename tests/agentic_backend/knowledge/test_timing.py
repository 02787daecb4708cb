"""What knowledge flow says of its time becomes rows of the turn, and nothing that is no such list does."""

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.knowledge.client import enter_timing
from backend_kit.kpi import Kpi, Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Kpi(CollectorRegistry(), service="agentic"), started=100.0)


def rows(ledger: Ledger, header: str) -> list[tuple[str, float, float]]:
    with ledger.activate():
        enter_timing(header, 100.010, 100.060)
    return [(row["phase"], row["start_ms"], row["ms"]) for row in ledger.rows()]


def test_the_parts_stand_in_the_middle_of_the_call(ledger: Ledger) -> None:
    header = "total;dur=40.000, embed_query;dur=20.000;start=1.000, lexical_query;dur=5.500;start=2.000"
    assert rows(ledger, header) == [("kf_embed_query", 16.0, 20.0), ("kf_lexical_query", 17.0, 5.5)]


def test_a_part_that_came_twice_has_two_rows(ledger: Ledger) -> None:
    header = "total;dur=40, db_pool_wait;dur=1;start=1, db_pool_wait;dur=2;start=10"
    assert rows(ledger, header) == [("kf_db_pool_wait", 16.0, 1.0), ("kf_db_pool_wait", 25.0, 2.0)]


def test_a_part_inside_another_is_as_deep_in_the_turn(ledger: Ledger) -> None:
    header = "total;dur=40, vector_rerank;dur=9;start=20;depth=0, rerank;dur=8;start=20.5;depth=1"
    with ledger.activate(), ledger.kpi.phase("kf_vector_search"):
        enter_timing(header, 100.010, 100.060)
    depths = {row["phase"]: row["depth"] for row in ledger.rows()}
    assert (depths["kf_vector_search"], depths["kf_vector_rerank"], depths["kf_rerank"]) == (0, 1, 2)


def test_a_rerank_feeds_the_phases_that_dashboards_read(ledger: Ledger) -> None:
    header = "total;dur=40, lexical_query;dur=5;start=1, vector_rerank;dur=3;start=20, rerank;dur=2;start=20.5"
    assert rows(ledger, header)[1:] == [("kf_vector_rerank", 35.0, 3.0), ("kf_rerank", 35.5, 2.0)]
    seen = {key: timer.rollup.seen() for key, timer in ledger.kpi.timers.items()}
    assert {key.partition("phase=")[2]: one["count"] for key, one in seen.items() if one} == {
        "vector_rerank": 1,
        "kf_vector_rerank": 1,
    }


@pytest.mark.parametrize(
    "header",
    [
        "",
        "embed_query;dur=20.000;start=1.000",
        "total;dur=60.000, embed_query;dur=20.000;start=1.000",
        "total;dur=40, embed_query;dur=41;start=0",
        "total;dur=40, embed_query;dur=20",
        "total;dur=-1, embed_query;dur=20;start=0",
        "total;dur=40, EMBED;dur=20;start=0, x y;dur=1;start=0",
        "total;dur=40, " + "embed_query;dur=1;start=0, " * 1000,
        "total;dur=nan, embed_query;dur=inf;start=0",
    ],
)
def test_what_cannot_be_true_enters_nothing(ledger: Ledger, header: str) -> None:
    assert rows(ledger, header) == []


def test_outside_a_turn_nothing_happens() -> None:
    enter_timing("total;dur=40, embed_query;dur=20;start=1", 0.0, 1.0)
