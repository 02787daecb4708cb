"""Benches: each states hypothesis, control and command, and its exit code says whether its bounds hold."""
