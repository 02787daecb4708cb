"""Timers, rollups, the summary log, the loop-lag sampler and the Prometheus endpoint."""
