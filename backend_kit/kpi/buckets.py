"""Histogram buckets in seconds, one tuple a purpose."""

TURN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Whole turns, model calls and phases: from a cached read to a turn's deadline."""

SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Waits that ought to be near nothing: loop lag, pools, locks, sends."""

COUNT = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
"""Tokens, records, batch sizes."""
