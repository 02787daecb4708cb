"""The line of the start: how long, CPU, by stage."""

import time
from itertools import count

import psutil
import pytest

from backend_kit.kpi import StartTimes
from backend_kit.kpi.runtime import process_age_s


def test_the_line_has_the_whole_start_and_its_stages() -> None:
    seconds, cpu = count(100.0, 2.0), count(3.0, 0.5)
    times = StartTimes(4.0, clock=lambda: next(seconds), cpu=lambda: next(cpu))
    times.mark("build")
    times.mark("connect")
    assert times.line("ready") == (
        "[KPI][START] status=ready total_ms=8000.00 cpu_ms=4000.00 load_ms=4000.00 load_cpu_ms=3000.00 "
        "build_ms=2000.00 build_cpu_ms=500.00 connect_ms=2000.00 connect_cpu_ms=500.00"
    )


def test_the_age_of_the_process_is_that_of_the_system() -> None:
    assert process_age_s() == pytest.approx(time.time() - psutil.Process().create_time(), abs=5.0)
