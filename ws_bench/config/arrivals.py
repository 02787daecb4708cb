"""Open loop: arrival times of turns, fixed before the run and independent of the service."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from ws_bench.config.golang import parse_duration
from ws_bench.errors import UsageError

_MAX_ARRIVALS = 5_000_000
_PER_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """The rate changes linearly from the previous stage's to `rate` (turns per second) within `seconds`."""

    rate: float
    seconds: float


def parse_rate(text: str) -> float:
    """Turns per second of `20/s`, `300/m` or `20`; 0 for an empty text. Raises `UsageError`."""
    if not text.strip():
        return 0.0
    number, slash, unit = text.strip().partition("/")
    try:
        rate = float(number) / _PER_S[unit if slash else "s"]
    except (ValueError, KeyError):
        raise UsageError(f"invalid rate {text!r} (such as 20/s)") from None
    if not 0 < rate < math.inf:
        raise UsageError(f"invalid rate {text!r}: it must be above 0")
    return rate


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages of `0:10s,50:30s,100:60s`: target rate and the time to get there, from 0. Raises `UsageError`."""
    stages = []
    for item in text.split(","):
        rate, colon, seconds = item.strip().partition(":")
        try:
            value = float(rate.removesuffix("/s"))
        except ValueError:
            raise UsageError(f"invalid stage {item!r} (such as 50:30s)") from None
        if not colon or not 0 <= value < math.inf:
            raise UsageError(f"invalid stage {item!r} (such as 50:30s)")
        stages.append(Stage(value, parse_duration(seconds)))
    if not any(stage.seconds > 0 and stage.rate > 0 for stage in stages):
        raise UsageError("stages in which nothing arrives")
    return tuple(stages)


def steady_stages(rate: float, seconds: float) -> tuple[Stage, ...]:
    """Stages with a constant rate from the start."""
    return (Stage(rate, 0.0), Stage(rate, seconds))


def duration_of(stages: Sequence[Stage]) -> float:
    """Their total length in seconds."""
    return math.fsum(stage.seconds for stage in stages)


def schedule(stages: Sequence[Stage], kind: str, random: Random) -> "array[float]":
    """Seconds from the start of each arrival, ascending. `kind` is `constant` (evenly spaced) or `poisson`.

    Both invert the expected number of arrivals, so that each stage gets the share that its rates ask for. Raises
    `UsageError` if more than five million are expected.
    """
    times: array[float] = array("d")
    passed_s, passed, rate = 0.0, 0.0, 0.0
    if sum(_expected(begin.rate, end) for begin, end in pairwise((Stage(0.0, 0.0), *stages))) > _MAX_ARRIVALS:
        raise UsageError(f"more than {_MAX_ARRIVALS} turns would arrive")
    mark = random.expovariate(1.0) if kind == "poisson" else 0.0
    for stage in stages:
        expected = _expected(rate, stage)
        while mark < passed + expected:
            times.append(passed_s + _time_of(mark - passed, rate, stage))
            mark += random.expovariate(1.0) if kind == "poisson" else 1.0
        passed_s, passed, rate = passed_s + stage.seconds, passed + expected, stage.rate
    return times


def _expected(rate: float, stage: Stage) -> float:
    """The expected number of arrivals in a stage that begins at this rate."""
    return (rate + stage.rate) / 2 * stage.seconds


def _time_of(arrivals: float, rate: float, stage: Stage) -> float:
    """Seconds into a stage at which this number has arrived: rate*t + slope*t²/2 = arrivals, solved for t."""
    slope = (stage.rate - rate) / stage.seconds
    root = math.sqrt(max(rate * rate + 2 * slope * arrivals, 0.0))
    # The usual root divides by the slope, which may be 0; this form divides by a rate, which is above 0 if any
    # turn arrives.
    return 2 * arrivals / (rate + root) if rate + root > 0 else 0.0
