"""What a turn leaves when it has ended: one line without a word of anybody, its metrics, its cause, what it used."""

import logging
import re
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.agent import AGENT_PHASES
from agentic_backend.errors import HistoryUnavailable, Overloaded, RateLimited, StorageFull
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.stream import Ask
from agentic_backend.session.turn_report import TURN_PHASES, TurnEnd, TurnReports, usage_of
from agentic_backend.verdict import Gauged, Windows
from backend_kit.kpi import Kpi, Ledger, Spent
from backend_kit.wire import Code, ServiceError

FIELD = r'([a-z_.0-9]+)=([^\s="]+|"[^"\\]*")'


class Desk:
    """Accounts over a registry of their own, and one ask with its ledger."""

    def __init__(self, **ask: Any) -> None:
        phases = (*AGENT_PHASES, *TURN_PHASES)
        self.kpi = Kpi(CollectorRegistry(), service="agentic", legacy_ms_names=True, phases=phases)
        self.windows = Windows()
        metrics = AgenticMetrics(self.kpi.registry, self.kpi)
        self.reports = TurnReports(self.kpi, metrics, self.windows)
        given = {"session_id": "s-1", "exchange_id": "e-1", "message": "canary question", "request_id": "r1"}
        self.ask = Ask(agent_id="Georges", user_id="ann", **(given | {"received_at": time.perf_counter()} | ask))
        self.ledger = Ledger(self.kpi, started=self.ask.received_at, owner="Georges")

    def end(self, **how: Any) -> None:
        given = {"status": "ok", "code": None, "durable": "spool", "model": "mock;ttft=1", "longest_gap_s": 0.02}
        given |= {"first_token_at": self.ask.received_at + 0.4, "deltas": 7}
        end = TurnEnd(**(given | how))
        self.reports.ended(self.ask, end, self.ledger)

    def value(self, name: str, **labels: str) -> float:
        return self.kpi.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "turnwise.turn")
    return caplog


def said(log: pytest.LogCaptureFixture) -> dict[str, str]:
    """The fields of the one line."""
    [line] = [record.getMessage() for record in log.records if record.name == "turnwise.turn"]
    assert re.fullmatch(rf"(?:{FIELD}(?: |$))+", line)
    assert "canary" not in line
    return dict(re.findall(FIELD, line))


def test_a_turn_leaves_one_line_with_every_phase(log: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    start = desk.ask.received_at
    desk.ledger.add("history_restore", start, start + 0.010, 0)
    desk.ledger.add("stream_agent_response", start + 0.010, start + 0.100, 0)
    desk.ledger.add("llm_invoke", start + 0.020, start + 0.030, 1)
    desk.ledger.add("llm_invoke", start + 0.040, start + 0.060, 1)
    desk.ledger.spent.append(Spent(start + 0.03, "mock;ttft=1", 100, 7, 0.00025))
    desk.ledger.spent.append(Spent(start + 0.06, "mock;ttft=1", 40, 3, 0.0001))
    desk.end()
    fields = said(log)
    assert list(fields)[:5] == ["exchange_id", "session_id", "request_id", "agent", "status"]
    assert (fields["exchange_id"], fields["session_id"], fields["request_id"]) == ("e-1", "s-1", "r1")
    assert (fields["agent"], fields["status"], fields["code"], fields["durable"]) == ("Georges", "ok", "none", "spool")
    assert (fields["model"], fields["ttft_ms"]) == ('"mock;ttft=1"', "400.000")
    assert (fields["gap_max_ms"], fields["deltas"]) == ("20.000", "7")
    assert (fields["input_tokens"], fields["output_tokens"], fields["cost"]) == ("140", "10", "0.00035")
    phases = {key.removeprefix("phase."): float(ms) for key, ms in fields.items() if key.startswith("phase.")}
    assert phases == {"history_restore": 10.0, "stream_agent_response": 90.0, "llm_invoke": 30.0}


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a b", '"a b"'), ("k=v", '"k=v"'), ('q"', None), ("line\nbreak", None), ("back\\slash", None), ("é", None)],
)
def test_an_id_that_could_break_the_line_is_not_said(
    log: pytest.LogCaptureFixture, given: str, shown: str | None
) -> None:
    Desk(exchange_id=given).end()
    assert said(log)["exchange_id"] == (shown or "unprintable")


@pytest.mark.parametrize(("cost", "shown"), [(0.0, "0.000"), (1e-5, "0.00001"), (2.0, "2.000"), (0.041, "0.041")])
def test_a_small_price_has_no_exponent(log: pytest.LogCaptureFixture, cost: float, shown: str) -> None:
    desk = Desk()
    desk.ledger.spent.append(Spent(desk.ask.received_at, "gpt", 1, 1, cost))
    desk.end()
    assert said(log)["cost"] == shown


def test_a_failed_turn_says_its_code(log: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.end(status="timeout", code=Code.LLM_TIMEOUT, model="", durable="none")
    fields = said(log)
    assert (fields["status"], fields["code"], fields["model"]) == ("timeout", "llm_timeout", "none")
    assert desk.value("app_turns_total", agent="Georges", status="timeout") == 1
    assert desk.value("chat_exchange_error_total") == 1


def test_a_rerank_within_its_search_is_not_taken_off_the_overhead_twice() -> None:
    desk = Desk(received_at=time.perf_counter() - 1.0)
    at = desk.ask.received_at
    for phase, start, end in (("kf_vector_search", 0.01, 0.06), ("kf_vector_rerank", 0.02, 0.05)):
        desk.ledger.add(phase, at + start, at + end, 1)
    desk.end()
    elsewhere_s = desk.value("app_turn_seconds_sum", agent="Georges", status="ok") - desk.value(
        "app_turn_overhead_seconds_sum"
    )
    assert elsewhere_s == pytest.approx(0.05, abs=1e-6)


def test_metrics_and_window_are_fed_once_a_turn() -> None:
    desk = Desk()
    desk.reports.begin(desk.ledger)
    assert desk.windows.running == 1
    desk.ledger.add("llm_invoke", desk.ask.received_at, desk.ask.received_at + 0.2)
    desk.end()
    desk.reports.leave(desk.ledger)
    assert desk.windows.running == 0
    assert {row["phase"] for row in desk.ledger.rows()} == {"llm_invoke", "session_wait"}
    assert desk.value("app_turn_seconds_count", agent="Georges", status="ok") == 1
    assert desk.value("app_turn_overhead_seconds_count") == 1
    assert desk.value("app_turn_unattributed_seconds_count") == 1
    assert desk.value("app_phase_latency_seconds_count", phase="session_wait", status="ok") == 1
    seen = desk.windows.close_slice(Gauged())
    assert seen.turns == 1
    assert round(seen.ms["llm_floor"]) == 200


def test_the_deltas_of_turns_that_had_any_are_observed() -> None:
    desk = Desk()
    desk.end(deltas=12)
    desk.end(deltas=0, first_token_at=None)
    assert (desk.value("app_turn_deltas_count"), desk.value("app_turn_deltas_sum")) == (1, 12)


@pytest.mark.parametrize(("ack", "account"), [("spool_ack", "disk"), ("db_ack", "stored")])
def test_the_acknowledgement_counts_for_what_it_waits_for(ack: str, account: str) -> None:
    """Also where Postgres was faster than a spool that hung: the wait was for the spool."""
    desk = Desk()
    desk.ledger.add(ack, desk.ask.received_at, desk.ask.received_at + 0.9)
    desk.end(durable="db")
    assert round(desk.windows.close_slice(Gauged()).ms[account]) == 900  # type: ignore[index]


@pytest.mark.parametrize(
    ("error", "account", "status"),
    [
        (Overloaded(retry_after_s=2.0), "admission", "rejected"),
        (StorageFull(retry_after_s=5.0), "stored", "rejected"),
        (RateLimited(retry_after_s=2.0), None, "rejected"),
        (HistoryUnavailable(), None, "error"),
    ],
)
def test_an_ask_that_the_service_has_no_room_for_costs_the_wait_it_is_told(
    log: pytest.LogCaptureFixture, error: ServiceError, account: str | None, status: str
) -> None:
    desk = Desk()
    desk.reports.refused(desk.ask, error, desk.ledger)
    fields = said(log)
    assert (fields["status"], fields["code"]) == (status, error.code.value)
    assert desk.value("app_turns_total", agent="Georges", status=status) == 1
    seen = desk.windows.close_slice(Gauged())
    assert {name: round(ms) for name, ms in seen.ms.items()} == (
        {account: round((error.retry_after_s or 0) * 1e3)} if account else {}
    )


def test_what_each_step_used_stands_with_its_step() -> None:
    desk = Desk()
    ledger, start = desk.ledger, desk.ask.received_at
    assert usage_of(ledger) is None
    ledger.add("stream_agent_response", start, start + 1.0, 0)
    ledger.add("keyword_expansion", start + 0.1, start + 0.2, 1)
    ledger.add("llm_invoke", start + 0.1, start + 0.2, 2)
    ledger.add("llm_invoke", start + 0.3, start + 0.9, 1)
    ledger.spent.append(Spent(start + 0.19, "m", 10, 2, 0.001))
    ledger.spent.append(Spent(start + 0.89, "m", 90, 8, 0.002))
    assert usage_of(ledger) == {
        "input_tokens": 100,
        "output_tokens": 10,
        "cost": 0.003,
        "steps": [
            {"step": "keyword_expansion", "model": "m", "input_tokens": 10, "output_tokens": 2, "cost": 0.001},
            {"step": "answer", "model": "m", "input_tokens": 90, "output_tokens": 8, "cost": 0.002},
        ],
    }


def test_cached_and_reasoning_tokens_stand_where_there_were_any() -> None:
    desk = Desk()
    at = desk.ask.received_at
    desk.ledger.spent.append(Spent(at, "m", 10, 2, 0.0))
    desk.ledger.spent.append(Spent(at, "m", 90, 8, 0.0, cached_tokens=64, reasoning_tokens=5))
    usage = usage_of(desk.ledger)
    assert usage is not None
    assert (usage["cached_tokens"], usage["reasoning_tokens"]) == (64, 5)
    first, second = usage["steps"]
    assert "cached_tokens" not in first
    assert (second["cached_tokens"], second["reasoning_tokens"]) == (64, 5)
