"""Histogram buckets in seconds (METRICS.md), one tuple a purpose."""

TURN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Whole turns, model calls and phases: from a cached read to a turn's deadline."""

_STEPS = (
    1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.65, 1.8, 1.95, 2.1, 2.3, 2.5, 2.75, 3.0, 3.3, 3.6, 3.9, 4.25, 4.6, 5.0, 5.5, 6.0,
    6.6, 7.2, 7.8, 8.5, 9.2,
)  # fmt: skip

FINE = (
    0.005, 0.01, 0.025,
    *(bound for decade in (-2, -1, 0, 1) for step in _STEPS if 0.05 <= (bound := round(step * 10**decade, 4)) <= 60.0),
    120.0,
)  # fmt: skip
"""What users wait for: no step above a tenth from 50 ms to 60 s, every bound of TURN among them. 88 bounds cost a
scrape six times what those of TURN do, so only for families with few children (docs/operations.md)."""

SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Waits that ought to be near nothing: loop lag, pools, locks, sends."""

GAP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0)
"""Silence between two fragments of a streamed answer."""

COUNT = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
"""Tokens, records, batch sizes."""
