"""Phases: what each way out of a block is recorded as, and that all outputs agree."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.kpi import PHASES, Kpi
from backend_kit.kpi.core import MAX_EXTRA_PHASES

Value = Callable[..., float | None]


def rollup_count(kpi: Kpi, key: str) -> int:
    timer = kpi.timers.get(key)
    stats = timer.rollup.take() if timer is not None else None
    return stats.count if stats is not None else 0


class ModelTooSlow(Exception):
    pass


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (None, "ok"),
        (ValueError("no"), "error"),
        (TimeoutError(), "timeout"),
        (ModelTooSlow(), "timeout"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
    ],
)
def test_a_phase_is_recorded_by_how_it_ended(failure: BaseException | None, status: str) -> None:
    kpi = Kpi(CollectorRegistry(), service="agentic", timeouts=(ModelTooSlow,))

    def run() -> None:
        with kpi.phase("llm_invoke"):
            if failure is not None:
                raise failure

    if failure is None:
        run()
    else:
        with pytest.raises(type(failure)):
            run()
    labels = {"phase": "llm_invoke", "status": status}
    assert kpi.registry.get_sample_value("app_phase_latency_seconds_count", labels) == 1
    suffix = "" if status == "ok" else f"|status={status}"
    assert list(kpi.timers) == [f"app.phase_latency_ms|phase=llm_invoke{suffix}"]


async def test_a_cancelled_task_leaves_its_phase_as_cancelled(kpi: Kpi, value: Value) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        with kpi.phase("vector_search"):
            entered.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        await entered.wait()
        task.cancel()
    assert task.cancelled()
    assert value("app_phase_latency_seconds_count", phase="vector_search", status="cancelled") == 1
    assert rollup_count(kpi, "app.phase_latency_ms|phase=vector_search|status=cancelled") == 1
    assert rollup_count(kpi, "app.phase_latency_ms|phase=vector_search") == 0


async def test_a_deadline_inside_the_phase_is_a_timeout(kpi: Kpi, value: Value) -> None:
    async def search() -> None:
        with kpi.phase("vector_search"):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await search()
    assert value("app_phase_latency_seconds_count", phase="vector_search", status="timeout") == 1


def test_the_summary_and_prometheus_count_the_same(kpi: Kpi, value: Value) -> None:
    for number in range(100):
        for phase in ("agent_init", "persist_tx"):
            with contextlib.suppress(ZeroDivisionError), kpi.phase(phase):
                1 // (number % 7)
    kpi.record_phase("stream_total", 3.05)
    for phase, status, count in (
        ("agent_init", "ok", 85),
        ("agent_init", "error", 15),
        ("persist_tx", "ok", 85),
        ("persist_tx", "error", 15),
        ("stream_total", "ok", 1),
    ):
        key = f"app.phase_latency_ms|phase={phase}" + ("" if status == "ok" else f"|status={status}")
        assert rollup_count(kpi, key) == count
        assert value("app_phase_latency_seconds_count", phase=phase, status=status) == count


def test_one_observation_is_the_same_time_everywhere(kpi: Kpi, value: Value) -> None:
    kpi.record_phase("stream_total", 3.05)
    stats = kpi.timers["app.phase_latency_ms|phase=stream_total"].rollup.take()
    assert stats is not None
    assert stats.maximum == pytest.approx(3050.0)
    assert value("app_phase_latency_seconds_sum", phase="stream_total", status="ok") == pytest.approx(3.05)
    assert value("app_phase_latency_ms_sum", phase="stream_total", service="agentic") == pytest.approx(3050.0)


def test_unknown_names_count_as_other_and_registered_ones_as_themselves(value: Value, kpi: Kpi) -> None:
    kpi.register_phase("summarise")
    kpi.register_phase("summarise")
    for name in ("summarise", "whatever", "user-4711"):
        with kpi.phase(name):
            pass
    assert value("app_phase_latency_seconds_count", phase="summarise", status="ok") == 1
    assert value("app_phase_latency_seconds_count", phase="other", status="ok") == 2
    assert value("app_phase_latency_seconds_count", phase="whatever", status="ok") is None


def test_registered_names_are_checked_and_bounded(kpi: Kpi) -> None:
    for bad in ("", "Übung", "a b", "1st", "x" * 49):
        with pytest.raises(ValueError, match="phase name"):
            kpi.register_phase(bad)
    for number in range(MAX_EXTRA_PHASES):
        assert kpi.try_register_phase(f"step_{number}")
    with pytest.raises(ValueError, match="no room"):
        kpi.register_phase("one_more")
    assert not kpi.try_register_phase("one_more")
    assert kpi.try_register_phase("step_0")
    assert set(PHASES) <= {*kpi._series}


def test_two_kpis_in_one_process_do_not_disturb_each_other() -> None:
    one, two = (Kpi(CollectorRegistry(), service=name, legacy_ms_names=True) for name in ("agentic", "knowledge-flow"))
    with one.phase("session_read"):
        pass
    one.gauge("event_loop_lag_ms").set(7.0)
    assert rollup_count(one, "app.phase_latency_ms|phase=session_read") == 1
    assert two.timers == {}
    assert two.registry.get_sample_value("event_loop_lag_ms") == 0.0
    labels = {"phase": "session_read", "service": "knowledge-flow"}
    assert two.registry.get_sample_value("app_phase_latency_ms_count", labels) is None


def test_the_same_key_is_the_same_object(kpi: Kpi) -> None:
    assert kpi.timer("a") is kpi.timer("a")
    assert kpi.gauge("a") is kpi.gauge("a")
    assert kpi.counter("a") is kpi.counter("a")
