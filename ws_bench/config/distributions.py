"""Random variables by name and parameters: clients' think times, and the fake model's delays and lengths."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from ws_bench.errors import UsageError

_P95 = NormalDist().inv_cdf(0.95)
FORMS = "VALUE, exp:MEAN, uniform:LOW..HIGH, normal:MEAN,SD, lognormal:MEDIAN,P95"


@dataclass(frozen=True, slots=True)
class RandomVariable:
    """A random variable that is never below 0, in the unit of its parameters.

    `kind` is constant (a), exp (mean a), uniform (a to b), normal (mean a, standard deviation b, cut off at 0) or
    lognormal (median a, 95th percentile b).
    """

    kind: str
    a: float
    b: float = 0.0

    def draw(self, random: Random) -> float:
        """The next value. A constant consumes no random number, so that it does not shift the sequence of others."""
        if self.kind == "constant":
            return self.a
        if self.kind == "exp":
            return random.expovariate(1 / self.a) if self.a > 0 else 0.0
        if self.kind == "uniform":
            return random.uniform(self.a, self.b)
        if self.kind == "normal":
            return max(random.gauss(self.a, self.b), 0.0)
        return random.lognormvariate(math.log(self.a), math.log(self.b / self.a) / _P95)


def constant(value: float) -> RandomVariable:
    """A variable that always has this value."""
    return RandomVariable("constant", value)


def parse_distribution(text: str, number: Callable[[str], float]) -> RandomVariable:
    """One of `FORMS`, its numbers read by `number`. Raises `UsageError`, and ValueError if `number` does."""
    kind, separator, rest = text.partition(":")
    if not separator:
        return constant(number(text))
    if kind == "exp":
        return RandomVariable("exp", number(rest))
    mark = ".." if kind == "uniform" else ","
    first, found, second = rest.partition(mark)
    if kind not in {"uniform", "normal", "lognormal"} or not found:
        raise UsageError(f"invalid distribution {text!r}: use {FORMS}")
    a, b = number(first), number(second)
    if (kind == "uniform" and b < a) or (kind == "lognormal" and not 0 < a <= b):
        raise UsageError(f"invalid distribution {text!r}: the second number is below the first")
    return RandomVariable(kind, a, b)
