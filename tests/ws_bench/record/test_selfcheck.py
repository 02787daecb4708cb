"""The generator judges itself."""

import asyncio
import gc
import time

import pytest

from ws_bench.record.dialects import clock
from ws_bench.record.results import SteadyWindow
from ws_bench.record.selfcheck import GeneratorMonitor, GeneratorSeries, check_generator, floats, littles_law

WINDOW = SteadyWindow(0.0, 16.0, 0)


def series(*, lag_ms: float = 0.1, cpu: float = 0.1, in_flight: float = 4.0) -> GeneratorSeries:
    at = [n * 0.05 for n in range(321)]
    return GeneratorSeries(
        at=floats(at),
        lag_ms=floats([lag_ms] * len(at)),
        in_flight=floats([in_flight] * len(at)),
        cpu_at=floats([1.0, 2.0]),
        cpu=floats([cpu, cpu]),
        gc_at=floats([1.0, 99.0]),
        gc_ms=floats([3.0, 500.0]),
    )


@pytest.mark.blocks_loop("the watch must see a loop that is held")
async def test_a_loop_that_is_held_is_seen_for_as_long_as_it_is_held() -> None:
    with GeneratorMonitor(clock(), lambda: 7) as watch:
        await asyncio.sleep(0.2)
        time.sleep(2.0)  # noqa: ASYNC251 - what is to be seen
        await asyncio.sleep(0.1)
        gc.collect()
    held = [lag for lag in watch.series.lag_ms if lag > 50]
    # A sample each 50 ms of it, not one in all: as many clients would have been late.
    assert len(held) >= 8
    assert set(watch.series.in_flight) == {7.0}
    assert len(watch.series.gc_ms) >= 1
    assert len(watch.series.cpu) >= 1


def test_an_idle_generator_is_not_the_limit() -> None:
    check = check_generator([series()], WINDOW, 100.0)
    assert check is not None
    assert (check.limited, check.lag_p99_ms, check.cpu, check.mean_in_flight) == (False, 0.1, 0.1, 4.0)
    # What happened outside of the window is not its business.
    assert (check.gc_pauses, check.gc_max_ms) == (1, 3.0)


def test_lag_is_judged_by_the_latency_that_it_blurs() -> None:
    check = check_generator([series(lag_ms=6.0)], WINDOW, 100.0)
    assert check is not None
    assert "own loop lag p99 6.0 ms" in check.limits[0]
    patient = check_generator([series(lag_ms=6.0)], WINDOW, 3000.0)
    assert patient is not None
    assert not patient.limited


def test_the_busiest_of_several_processes_is_the_limit() -> None:
    check = check_generator([series(cpu=0.2), series(cpu=0.9)], WINDOW, 100.0)
    assert check is not None
    assert (check.cpu, check.mean_in_flight, check.limited) == (0.9, 8.0, True)


def test_without_samples_there_is_no_verdict() -> None:
    assert check_generator([GeneratorSeries()], WINDOW, 100.0) is None
    assert littles_law([], WINDOW, [(0, 1)]) is None


def test_littles_law_holds_where_what_was_seen_is_what_was_recorded() -> None:
    spans = [(float(n), float(n + 4)) for n in range(-4, 20)]
    law = littles_law([series(in_flight=4.0)], WINDOW, spans)
    assert law is not None
    assert (law.sampled, law.computed, law.broken) == (pytest.approx(4), pytest.approx(4), False)


def test_turns_that_were_in_flight_but_not_recorded_break_it() -> None:
    spans = [(float(n), float(n + 3)) for n in range(-4, 20)]
    law = littles_law([series(in_flight=4.0)], WINDOW, spans)
    assert law is not None
    assert (law.broken, law.difference) == (True, pytest.approx(1 / 3))


def test_a_series_can_be_stored_and_moved_to_another_clock() -> None:
    one = GeneratorSeries.from_json(series().as_json()).shifted(2.0)
    assert (one.at[0], one.cpu_at[0], one.gc_at[0], one.lag_ms[0]) == (2.0, 3.0, 3.0, 0.1)
