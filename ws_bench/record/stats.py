"""Statistics of measured times: bootstrap errors, Student's t, slopes. Pure functions, standard library only."""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev

RESAMPLES = 1000
_MANY = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its standard error on the log scale; `degrees` of freedom say how well the error is known."""

    value: float
    log_error: float
    degrees: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """New over old, with an interval of the chosen confidence."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether 1 lies outside the interval."""
        return not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through points: its slope, and the probability of a rise this steep by chance."""

    slope: float
    p_rise: float


def student_quantile(share: float, degrees: int) -> float:
    """The value below which Student's t lies with probability `share`, by bisection of its distribution."""
    low, high = -1e3, 1e3
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, degrees) < share else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, degrees: int) -> float:
    """P(T <= t) for whole degrees of freedom: the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(degrees))
    cos2 = math.cos(theta) ** 2
    total, term = 0.0, math.cos(theta) if degrees % 2 else 1.0
    first = 2 if degrees % 2 else 1
    count = (degrees - 1) // 2 if degrees % 2 else degrees // 2
    for step in range(count):
        total += term
        number = first + 2 * step
        term *= cos2 * number / (number + 1)
    within = 2 / math.pi * (theta + math.sin(theta) * total) if degrees % 2 else math.sin(theta) * total
    return 0.5 + within / 2


def bootstrap_percentiles(
    blocks: Sequence[Sequence[float]], shares: Sequence[float], random: Random, resamples: int = RESAMPLES
) -> list[Estimate]:
    """Percentiles (nearest rank) of all values, their errors by drawing whole blocks with replacement.

    A block is a stretch of time: values close together are correlated, so drawing them one by one would understate the
    error.
    """
    ordered = sorted((value, number) for number, block in enumerate(blocks) for value in block)
    values, owners = [value for value, _ in ordered], [number for _, number in ordered]
    drawn: list[list[float]] = [[] for _ in shares]
    numbers = range(len(blocks))
    for _ in range(resamples):
        weights = [0] * len(blocks)
        for number in random.choices(numbers, k=len(blocks)):
            weights[number] += 1
        upto = list(itertools.accumulate(map(weights.__getitem__, owners)))
        if upto[-1] == 0:
            continue
        for column, share in zip(drawn, shares, strict=True):
            rank = max(math.ceil(share * upto[-1]), 1)
            column.append(_log(values[bisect.bisect_left(upto, rank)]))
    return [
        Estimate(_at(values, share), _error(column, len(blocks)), len(blocks) - 1)
        for column, share in zip(drawn, shares, strict=True)
    ]


def bootstrap_rate(counts: Sequence[int], seconds: float, random: Random, resamples: int = RESAMPLES) -> Estimate:
    """Events a second of blocks that lasted `seconds` each, its error by drawing blocks with replacement."""
    drawn = [_log(fmean(random.choices(counts, k=len(counts)))) for _ in range(resamples)]
    return Estimate(fmean(counts) / seconds, _error(drawn, len(counts)), len(counts) - 1)


def bootstrap_mean(values: Sequence[float], random: Random, resamples: int = RESAMPLES) -> Estimate:
    """The geometric mean of one figure of several runs, its error by drawing runs with replacement."""
    logs = [_log(value) for value in values]
    drawn = [fmean(random.choices(logs, k=len(logs))) for _ in range(resamples)]
    return Estimate(math.exp(fmean(logs)), _error(drawn, len(logs)), len(logs) - 1)


def ratio_of(old: Estimate, new: Estimate, confidence: float) -> Ratio:
    """New over old. The interval is Student's on the log scale, with the degrees of freedom of Welch."""
    error = math.hypot(old.log_error, new.log_error)
    centre = log_ratio(new.value, old.value)
    if not math.isfinite(error):
        return Ratio(math.exp(centre), 0.0, math.inf)
    parts = sum(one.log_error**4 / max(one.degrees, 1) for one in (old, new))
    degrees = min(max(math.floor(error**4 / parts), 1), _MANY) if parts else _MANY
    reach = student_quantile(0.5 + confidence / 2, degrees) * error
    return Ratio(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def prediction_band(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Where one more run of the same kind is expected, from the figures of at least two, on the log scale."""
    logs = [_log(value) for value in values]
    reach = student_quantile(0.5 + confidence / 2, len(logs) - 1) * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return math.exp(fmean(logs) - reach), math.exp(fmean(logs) + reach)


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """Least squares through at least three points, and a one-sided t test of its rise."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    mean_x, mean_y = fmean(xs), fmean(ys)
    spread_x = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread_x
    rest = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    degrees = len(points) - 2
    error = math.sqrt(rest / degrees / spread_x)
    if error == 0:
        return Slope(slope, 0.0 if slope > 0 else 1.0)
    return Slope(slope, 1 - student_cdf(slope / error, degrees))


def _error(drawn: Sequence[float], count: int) -> float:
    """The standard error of values drawn from `count` units; infinite if there are none.

    With few units a bootstrap's error is too small by the factor under the root.
    """
    return stdev(drawn) * math.sqrt(count / (count - 1)) if len(drawn) > 1 and count > 1 else math.inf


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def log_ratio(new: float, old: float) -> float:
    """The logarithm of new over old."""
    return _log(new) - _log(old)


def _log(value: float) -> float:
    return math.log(max(value, 1e-9))
