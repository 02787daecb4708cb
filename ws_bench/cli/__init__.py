"""The commands of `ws_bench` that start runs: one, a sweep, the search for the knee."""
