"""What a process counts of its statements: by normalized text, without values, in bounded memory."""

import pytest

from backend_kit.kpi.statements import MAX_STATEMENTS, OTHER_STATEMENTS, StatementCounts, normalized


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT 1", "SELECT $1"),
        ("\n  SELECT a,\n\t b -- why\n FROM t /* and\n how */;\n", "SELECT a, b FROM t"),
        ("SELECT :user, :id, :user, 'x', 2.5e-3", "SELECT $1, $2, $1, $3, $4"),
        ("SELECT %(user)s, %(id)s, %(user)s", "SELECT $1, $2, $1"),
        ("SELECT %s, %s", "SELECT $1, $2"),
        ("SELECT $2, $1", "SELECT $1, $2"),
        ("SELECT CAST(:doc AS jsonb), x::text, :n::int", "SELECT CAST($1 AS jsonb), x::text, $2::int"),
        ("SELECT 'it''s', E'a\\'b', $$ a 'b' $$, $t$ c $$ $t$", "SELECT $1, $2, $3, $4"),
        ("SELECT \"a 1 'x'\", t1, r0001, v.c2", "SELECT \"a 1 'x'\", t1, r0001, v.c2"),
        ("SELECT a[1], -2, 3.", "SELECT a[$1], -$2, $3"),
        ("SELECT ':no', '-- no', '/* no */'", "SELECT $1, $2, $3"),
        ("SET LOCAL lock_timeout = 5000", "SET LOCAL lock_timeout = $1"),
        ("COMMIT", "COMMIT"),
    ],
)
def test_a_text_says_what_a_statement_is_and_nothing_of_its_values(text: str, query: str) -> None:
    assert normalized(text) == query


def test_executions_are_added_up_by_normalized_text() -> None:
    counts = StatementCounts()
    counts.add("SELECT a FROM t WHERE b = 1", 0.25, rows=2, waited_s=0.125)
    counts.add("SELECT a FROM t WHERE b = 2", 0.5, rows=3)
    counts.add("COMMIT", 2.0, rows=0)
    assert counts.seen() == [
        {"query": "COMMIT", "calls": 1, "rows": 0, "total_ms": 2000.0, "wait_ms": 0.0},
        {"query": "SELECT a FROM t WHERE b = $1", "calls": 2, "rows": 5, "total_ms": 750.0, "wait_ms": 125.0},
    ]


def test_further_statements_are_counted_together() -> None:
    counts = StatementCounts()
    for number in range(MAX_STATEMENTS + 30):
        counts.add(f"LOCK TABLE t{number}", 0.001, rows=1)
    counts.add("LOCK TABLE t0", 1.0, rows=1)
    seen = {one["query"]: one["calls"] for one in counts.seen()}
    assert len(seen) == MAX_STATEMENTS + 1
    assert (seen["LOCK TABLE t0"], seen["LOCK TABLE t499"], seen[OTHER_STATEMENTS]) == (2, 1, 30)
