"""Which turns become traces, by the head's decision and by how they went."""

import random

import pytest

from agentic_backend.settings import Sampler
from agentic_backend.tracing.traceparent import TraceParent
from agentic_backend.tracing.tracer import Sampling

SAMPLED, UNSAMPLED = (TraceParent("1" * 32, "2" * 16, flags) for flags in (1, 0))
LOW, HIGH = "f" * 16 + "0" * 15 + "1", "0" * 16 + "f" * 16
"""Ids whose right half is little and large."""


@pytest.mark.parametrize(
    ("sampler", "alone", "sampled", "unsampled"),
    [
        ("always_on", (True, True), True, True),
        ("always_off", (False, False), False, False),
        ("traceidratio", (True, False), False, False),
        ("parentbased_always_on", (True, True), True, False),
        ("parentbased_always_off", (False, False), True, False),
        ("parentbased_traceidratio", (True, False), True, False),
    ],
)
def test_the_head_decides_as_the_sampler_says(
    sampler: Sampler, alone: tuple[bool, bool], sampled: bool, unsampled: bool
) -> None:
    sampling = Sampling(sampler, ratio=0.5)
    assert tuple(sampling.head(trace_id, None) for trace_id in (LOW, HIGH)) == alone
    assert (sampling.head(HIGH, SAMPLED), sampling.head(HIGH, UNSAMPLED)) == (sampled, unsampled)


@pytest.mark.parametrize(("ratio", "of_a_thousand"), [(0.0, (0, 0)), (0.1, (60, 140)), (1.0, (1000, 1000))])
def test_a_ratio_is_a_share_of_ids(ratio: float, of_a_thousand: tuple[int, int]) -> None:
    ids = random.Random(7)  # noqa: S311 - the same ones each time
    sampling = Sampling("traceidratio", ratio)
    taken = sum(sampling.head(f"{ids.getrandbits(128):032x}", None) for _ in range(1000))
    assert of_a_thousand[0] <= taken <= of_a_thousand[1]


@pytest.mark.parametrize(
    ("sampled", "failed", "total_ms", "kept"),
    [
        (True, False, 1.0, True),
        (False, False, 1.0, False),
        (False, True, 1.0, True),
        (False, False, 499.9, False),
        (False, False, 500.0, True),
    ],
)
def test_the_end_keeps_what_failed_or_was_slow(sampled: bool, failed: bool, total_ms: float, kept: bool) -> None:
    assert Sampling(slow_ms=500.0).keep(sampled, failed=failed, total_ms=total_ms) is kept


def test_neither_is_kept_where_that_is_switched_off() -> None:
    sampling = Sampling(errors=False, slow_ms=0.0)
    assert not sampling.keep(False, failed=True, total_ms=1e9)
