"""What ran between two readings of the services' own counts of their statements."""

import json

import pytest

from backend_kit.kpi import StatementCounts
from ws_bench.record.counted import Counted, StatementsRead, grown, read_statements


def read(counts: StatementCounts, started: float = 1.0) -> StatementsRead:
    return read_statements(json.dumps({"unit": "ms", "started": started, "statements": counts.seen()}).encode())


def test_what_ran_between_two_readings_is_added_up_over_processes() -> None:
    one, two = StatementCounts(), StatementCounts()
    one.add("SELECT 1", 1.0, rows=1)
    one.add("SELECT old", 1.0, rows=1)
    before = [read(one), read(two)]
    one.add("SELECT 1", 0.5, rows=2, waited_s=0.25)
    two.add("SELECT 1", 0.25, rows=1)
    assert grown(before, [read(one), read(two)]) == {"SELECT $1": Counted(2, 3, 750.0, 250.0)}


def test_a_process_that_restarted_counts_from_its_start() -> None:
    counts, anew = StatementCounts(), StatementCounts()
    for _ in range(9):
        counts.add("COMMIT", 1.0, rows=0)
    anew.add("COMMIT", 0.5, rows=0)
    assert grown([read(counts)], [read(anew, started=2.0)]) == {"COMMIT": Counted(1, 0, 500.0, 0.0)}


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b"{}", b'{"started": 1, "statements": [1]}'])
def test_what_is_no_reading_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no statements"):
        read_statements(text)
