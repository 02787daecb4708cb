"""Recordings made up from known distributions, for tests of what is computed from them."""

from collections.abc import Callable
from typing import Any

from tests.ws_bench.dice import dice
from ws_bench.config.flags import config_as_json, parse_run_flags
from ws_bench.record.recording import Recording
from ws_bench.record.results import TurnResult, gaps


def closed_run(
    seed: int,
    *,
    factor: float = 1.0,
    clients: int = 20,
    turns: int = 20,
    drift: float = 0.01,
    argv: tuple[str, ...] = (),
    latency: Callable[[Any], float] | None = None,
) -> Recording:
    """A closed loop whose latencies (seconds) are drawn; each run is slower or faster by `drift`, as real ones are."""
    random = dice(seed)
    pace = factor * random.lognormvariate(0, drift)
    draw = latency or (lambda r: r.lognormvariate(-2.3, 0.3))
    results = []
    for client in range(clients):
        now = client * 0.001
        for _ in range(turns):
            took = draw(random) * pace
            results.append(
                TurnResult(
                    client=client,
                    asked=now,
                    ended=now + took,
                    first_token_ms=took * 400,
                    phases={"llm_invoke": took},
                    frames=10 + client,
                )
            )
            now += took
    config = parse_run_flags(["-clients", str(clients), "-requests-per-client", str(turns), *argv], {})
    return Recording(
        config=config_as_json(config),
        started_unix=1_700_000_000.0 + seed,
        total=clients * turns,
        elapsed_s=max(result.ended for result in results),
        turns=sorted(results, key=lambda result: result.ended),
        gaps=gaps(results),
        environment={"argv": list(argv)},
    )
