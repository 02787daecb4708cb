"""Percentiles of what a service observed between two readings of its `/distributions`.

Buckets of a histogram do not yield percentiles: between 2.5 and 5 s any value is as likely as another. Turnwise's
services therefore also count every observation to within 0.4 %.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from backend_kit.wire import InvalidJson, loads
from ws_bench.record.exposition import Figures


@dataclass(frozen=True, slots=True)
class ObservedValues:
    """One reading: sums (milliseconds) and counts of values by key, since `started` (Unix time of the process)."""

    started: float
    sums: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Mapping[float, int]] = field(default_factory=dict)


def read_observed(text: str) -> ObservedValues:
    """Parse an answer of `/distributions`. Raises ValueError if it is none."""
    try:
        given = loads(text.encode())
        entries = given["distributions"]
        return ObservedValues(
            started=float(given["started"]),
            sums={key: float(one["sum"]) for key, one in entries.items()},
            values={key: {float(value): int(count) for value, count in one["values"]} for key, one in entries.items()},
        )
    except (InvalidJson, KeyError, TypeError, AttributeError) as failure:
        raise ValueError(f"no distributions: {failure}") from failure


def observed_figures(
    reads: Iterable[tuple[ObservedValues, ObservedValues]], names: Sequence[str], **labels: str
) -> Figures | None:
    """Figures of the keys with these names and labels between two readings, pooled over processes.

    Percentiles are by nearest rank. None if nothing was observed.
    """
    counts: Counter[float] = Counter()
    total = 0.0
    for before, after in reads:
        # A restarted process counts from zero.
        base = before if before.started == after.started else ObservedValues(after.started)
        for key, values in after.values.items():
            if _is(key, names, labels):
                earlier = base.values.get(key, {})
                counts.update({value: count - earlier.get(value, 0) for value, count in values.items()})
                total += after.sums[key] - base.sums.get(key, 0.0)
    count = counts.total()
    if count <= 0:
        return None
    ordered = sorted(counts)
    upto = list(itertools.accumulate(counts[value] for value in ordered))
    p50, p95, p99 = (
        ordered[bisect.bisect_left(upto, max(math.ceil(share * count), 1))] for share in (0.50, 0.95, 0.99)
    )
    return Figures(count, total / count, p50, p95, p99)


def observed_labels(observed: Sequence[ObservedValues], name: str, label: str) -> set[str]:
    """The values that a label has among the keys of that name."""
    keys = [key for one in observed for key in one.values if key.partition("|")[0] == name]
    return {value for key in keys if (value := _labels(key).get(label)) is not None}


def _is(key: str, names: Sequence[str], wanted: Mapping[str, str]) -> bool:
    return key.partition("|")[0] in names and wanted.items() <= _labels(key).items()


def _labels(key: str) -> dict[str, str]:
    return {label: value for label, _, value in (pair.partition("=") for pair in key.split("|")[1:])}
