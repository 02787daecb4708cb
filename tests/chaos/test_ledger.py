"""The comparison sees every way in which a store can differ from what clients were told."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.ledger import Ledger, Message, Report, compare

SESSION = "s"
Rows = dict[str, list[Message]]


def frame(exchange_id: str, first: int, answer: str = "Answer.") -> dict[str, Any]:
    def message(rank: int, role: str, text: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": text}]
        named = {"rank": rank, "exchange_id": exchange_id, "role": role, "channel": "final"}
        return {**named, "parts": parts, "metadata": {}}

    messages = [message(first, "user", "Question?"), message(first + 1, "assistant", answer)]
    return {"type": "final", "durable": "spool", "messages": messages}


@pytest.fixture
def ledger() -> Ledger:
    """Two answered questions and one that was not."""
    ledger = Ledger()
    for number in range(2):
        asked = ledger.ask(f"e{number}", SESSION, "Question?")
        ledger.told(asked, frame(f"e{number}", number * 2))
    ledger.ask("open", SESSION, "Question?")
    return ledger


@pytest.fixture
def rows(ledger: Ledger) -> Rows:
    """The store as it should be."""
    return {SESSION: [message for asked in ledger.answered for message in asked.answer]}


def judged(ledger: Ledger, rows: Rows, next_rank: int | None = 4, history: Rows | None = None) -> Report:
    sessions = {} if next_rank is None else {SESSION: next_rank}
    return compare(ledger, rows, sessions, rows if history is None else history)


def test_a_store_that_is_as_told_has_nothing_wrong(ledger: Ledger, rows: Rows) -> None:
    report = judged(ledger, rows)
    assert (report.acked, report.unanswered, report.lost, report.wrong) == (2, 1, 0, 0)
    assert report.words() == ""


@pytest.mark.parametrize(("status", "unheard"), [("", 1), ("interrupted", 0)])
def test_an_answer_that_nobody_waited_for_is_counted(ledger: Ledger, rows: Rows, status: str, unheard: int) -> None:
    question = Message(4, "open", "user", "final", "Question?")
    rows[SESSION] += [question, Message(5, "open", "assistant", "final", "Answer.", status)]
    report = judged(ledger, rows, next_rank=6)
    assert (report.unanswered, report.unheard, report.interrupted, report.wrong) == (1, unheard, 1 - unheard, 0)


def test_a_lost_turn_is_seen(ledger: Ledger, rows: Rows) -> None:
    rows[SESSION] = rows[SESSION][:2]
    report = judged(ledger, rows, next_rank=2)
    assert (report.lost, report.wrong) == (1, 0)
    assert "lost e1" in report.words()


def test_half_a_turn_is_lost_and_has_no_end(ledger: Ledger, rows: Rows) -> None:
    rows[SESSION] = rows[SESSION][:3]
    report = judged(ledger, rows, next_rank=3)
    assert (report.lost, report.unended) == (1, 1)


def test_another_text_is_seen(ledger: Ledger, rows: Rows) -> None:
    rows[SESSION][1] = replace(rows[SESSION][1], text="Other.")
    assert judged(ledger, rows).differ == 1


def test_a_turn_of_another_exchange_on_the_same_ranks_is_a_loss(ledger: Ledger, rows: Rows) -> None:
    rows[SESSION][2:] = [replace(message, exchange_id="intruder") for message in rows[SESSION][2:]]
    assert judged(ledger, rows).lost == 1


def test_a_turn_that_is_stored_twice_is_seen(ledger: Ledger, rows: Rows) -> None:
    rows[SESSION] += [replace(message, rank=message.rank + 2) for message in rows[SESSION][2:]]
    assert judged(ledger, rows, next_rank=6).duplicated == 2


@pytest.mark.parametrize("next_rank", [3, 5])
def test_a_session_that_disagrees_with_its_rows_has_a_gap(ledger: Ledger, rows: Rows, next_rank: int) -> None:
    assert judged(ledger, rows, next_rank=next_rank).gaps == 1


def test_a_missing_rank_is_a_gap(ledger: Ledger, rows: Rows) -> None:
    rows[SESSION][2:] = [replace(message, rank=message.rank + 1) for message in rows[SESSION][2:]]
    assert judged(ledger, rows, next_rank=5).gaps == 1


def test_a_session_that_is_gone_is_seen(ledger: Ledger, rows: Rows) -> None:
    assert judged(ledger, rows, next_rank=None).sessions_lost == 1


def test_a_history_that_is_not_the_rows_is_seen(ledger: Ledger, rows: Rows) -> None:
    assert judged(ledger, rows, history={SESSION: rows[SESSION][:-1]}).history_differs == 1


def test_two_answers_that_claim_a_rank_collide(ledger: Ledger, rows: Rows) -> None:
    ledger.told(ledger.asks["open"], frame("open", 2))
    assert judged(ledger, rows).collisions == 2


def test_another_answer_to_the_same_ask_is_seen_and_the_first_one_counts(ledger: Ledger, rows: Rows) -> None:
    ledger.told(ledger.asks["e1"], frame("e1", 2, answer="Changed my mind."))
    report = judged(ledger, rows)
    assert (report.changed, report.lost, report.differ) == (1, 0, 0)
