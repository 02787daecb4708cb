"""The figures of a run that `compare` uses, each with its error, and their confidence intervals for a single run."""

import math
from dataclasses import dataclass
from random import Random

from ws_bench.errors import UsageError
from ws_bench.record.recording import Recording, window_of
from ws_bench.record.results import SteadyWindow, TurnResult, in_window, whole_window
from ws_bench.record.stats import RESAMPLES, Estimate, bootstrap_percentiles, bootstrap_rate, student_quantile

CONFIDENCE = 0.95
RATE = "steady turns/s"
_LATENCY = ("turn p50", "turn p95", "turn p99")
_FIRST_TOKEN = ("first token p50", "first token p95")
_BLOCKS = 20
_P99_COUNT = 300
_FEWEST = 6
_P95_FEWEST = 60
"""With fewer turns not even the smallest and largest value enclose the p50, or the p95, with 95 % confidence."""
_SHOWN_RESAMPLES = 200
_SHOWN_TURNS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % confidence interval; None if there are too few turns for one."""

    name: str
    value: float
    low: float | None
    high: float | None


def estimates_of(
    run: Recording,
    window: SteadyWindow,
    random: Random | None,
    *,
    resamples: int = RESAMPLES,
    most: int | None = None,
) -> dict[str, Estimate]:
    """Figures of the window, with errors from a bootstrap over blocks of time if `random` is given.

    `most` bounds the turns used, which are then chosen evenly: the errors come out too large rather than too small.
    """
    turns = [turn for turn in in_window(run.turns, window, by_begin=run.open_loop) if turn.ok]
    if most is not None and len(turns) > most:
        turns = turns[:: math.ceil(len(turns) / most)]
    length = window.seconds / _BLOCKS
    blocks: list[list[TurnResult]] = [[] for _ in range(_BLOCKS)]
    for turn in turns:
        at = turn.begin if run.open_loop else turn.ended
        blocks[min(int((at - window.begin) / length), _BLOCKS - 1)].append(turn)
    resamples = 0 if random is None else resamples
    draw = random or Random(0)  # noqa: S311 - nothing is drawn
    latencies = [[turn.latency_ms for turn in block] for block in blocks]
    first = [[turn.first_token_ms for turn in block if turn.first_token_ms is not None] for block in blocks]
    found: dict[str, Estimate] = {}
    if turns:
        shares = (0.50, 0.95, 0.99) if len(turns) >= _P99_COUNT else (0.50, 0.95)
        estimates = bootstrap_percentiles(latencies, shares, draw, resamples)
        found |= dict(zip(_LATENCY, estimates, strict=False))
    if any(first):
        found |= dict(zip(_FIRST_TOKEN, bootstrap_percentiles(first, (0.50, 0.95), draw, resamples), strict=True))
    ends = [0] * _BLOCKS
    for turn in run.turns:
        if turn.ok and window.begin < turn.ended <= window.end:
            ends[min(int((turn.ended - window.begin) / length), _BLOCKS - 1)] += 1
    found[RATE] = bootstrap_rate(ends, length, draw, resamples)
    return found


def window_for(run: Recording, *, steady: bool) -> SteadyWindow:
    """The steady window of a run, or the whole run. Raises `UsageError` if there is nothing to compare."""
    window = window_of(run) if steady else whole_window(run.turns)
    if window is None:
        raise UsageError(f"a run without {'a steady window' if steady else 'a turn'} cannot be compared")
    return window


def intervals_of(run: Recording, window: SteadyWindow) -> list[Interval]:
    """The figures of a single run, each with its own 95 % interval."""
    random = Random(0)  # noqa: S311 - a repeatable bootstrap
    estimates = estimates_of(run, window, random, resamples=_SHOWN_RESAMPLES, most=_SHOWN_TURNS)
    exact = estimates_of(run, window, None)
    turns = sum(turn.ok for turn in in_window(run.turns, window, by_begin=run.open_loop))
    shown = []
    for name, estimate in estimates.items():
        few = turns < (_P95_FEWEST if name.endswith("p95") else _FEWEST)
        reach = student_quantile(0.5 + CONFIDENCE / 2, max(estimate.degrees, 1)) * estimate.log_error
        known = not few and math.isfinite(reach)
        value = exact[name].value if name in exact else estimate.value
        ends = (value * math.exp(-reach), value * math.exp(reach)) if known else (None, None)
        shown.append(Interval(name.removeprefix("steady "), value, *ends))
    return shown
