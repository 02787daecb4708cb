"""What of a phase is its own, and for which cause it counts."""

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AGENT_PHASES
from agentic_backend.verdict import CAUSES, own_ms
from agentic_backend.verdict.causes import HOPS, account_of
from backend_kit.kpi import PHASES, Kpi, Ledger

Rows = list[tuple[str, int, float, float]]


def owned(rows: Rows) -> dict[str, float]:
    ledger = Ledger(Kpi(CollectorRegistry(), service="t"), started=0.0)
    for phase, depth, start, end in rows:
        ledger.add(phase, start, end, depth)
    sums: dict[str, float] = {}
    for phase, ms in own_ms(ledger.rows()):
        sums[phase] = sums.get(phase, 0.0) + ms
    return {phase: round(ms, 3) for phase, ms in sums.items()}


def test_a_phase_owns_what_no_inner_phase_covers() -> None:
    rows: Rows = [
        ("history_restore", 0, 0.0, 0.010),
        ("db_pool_wait", 1, 0.001, 0.005),
        ("db_statement", 1, 0.005, 0.009),
        ("stream_agent_response", 0, 0.010, 1.0),
        ("vector_search", 1, 0.020, 0.220),
        ("kf_vector_search", 2, 0.025, 0.215),
        ("llm_invoke", 1, 0.300, 0.900),
    ]
    assert owned(rows) == {
        "history_restore": 2.0,
        "db_pool_wait": 4.0,
        "db_statement": 4.0,
        "stream_agent_response": 190.0,
        "vector_search": 10.0,
        "kf_vector_search": 190.0,
        "llm_invoke": 600.0,
    }


def test_what_a_rerank_takes_within_its_search_counts_for_the_rerank() -> None:
    rows: Rows = [
        ("vector_search", 1, 0.0, 0.200),
        ("kf_vector_search", 2, 0.001, 0.199),
        ("kf_lexical_query", 3, 0.010, 0.040),
        ("kf_vector_rerank", 3, 0.050, 0.180),
        ("kf_rerank", 3, 0.051, 0.180),
    ]
    sums: dict[str, float] = {}
    for phase, ms in owned(rows).items():
        sums[account_of(phase)] = sums.get(account_of(phase), 0.0) + ms
    assert sums == {"own": 2.0, "search": 68.0, "rerank": 130.0}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", 0, 0.0, 0.1), ("b", 1, 0.01, 0.03)], {"a": 80.0, "b": 20.0}),
        ([("a", 0, 0.0, 0.1), ("b", 0, 0.05, 0.15)], {"a": 50.0, "b": 100.0}),
        ([("p", 0, 0.0, 0.2), ("a", 1, 0.0, 0.1), ("b", 1, 0.05, 0.15)], {"p": 50.0, "a": 50.0, "b": 100.0}),
        ([("p", 0, 0.0, 0.2), ("a", 1, 0.01, 0.05), ("b", 1, 0.02, 0.08), ("c", 1, 0.06, 0.09)],
         {"p": 120.0, "a": 10.0, "b": 40.0, "c": 30.0}),
        ([("a", 0, 0.0, 0.1), ("a", 0, 0.1, 0.2)], {"a": 200.0}),
        ([], {}),
    ],
    ids=["inside", "overlapping", "side by side", "three", "one after the other", "none"],
)  # fmt: skip
def test_time_is_owned_once(rows: Rows, expected: dict[str, float]) -> None:
    assert owned(rows) == expected


def test_every_phase_has_an_account_and_every_account_a_place() -> None:
    accounts = {account_of(phase) for phase in (*PHASES, *AGENT_PHASES)}
    assert accounts <= {*CAUSES, "own", "ahead"}
    assert account_of("made_by_an_author") == "own"
    assert (account_of("spool_ack"), account_of("db_ack")) == ("disk", "stored")
    assert set(HOPS) <= {*CAUSES, "ahead", "stored"}
