"""The has_status_line line, from what the service says of itself."""

from pathlib import Path

from turnwise.status import describe, status_line


def step(turns: int, p95: float | None, bound_by: str) -> dict[str, object]:
    latency = None if p95 is None else {"p50": 1.0, "p95": p95, "max": p95}
    return {"turns": turns, "window_s": 10.0, "turn_latency_ms": latency, "bound_by": bound_by}


def test_it_tells_the_rate_of_the_window_and_the_newest_p95_and_verdict() -> None:
    live = {"steps": [step(30, 900.0, "model"), step(10, 3085.4, "pool"), step(0, None, "nobody")]}
    assert describe(live) == "1.33 turns/s  p95 3.09 s  bound by pool"
    assert describe({"steps": [step(1, 15.4, "nobody")]}) == "0.10 turns/s  p95 15 ms  bound by nobody"


def test_without_turns_and_without_an_answer_it_says_so() -> None:
    assert describe({"steps": []}) == ""
    assert describe({"steps": [step(0, None, "nobody")]}) == ""
    assert "no turns" in status_line("", "http://h", Path("/l"))
    assert status_line(None, "http://h", Path("/l")) == " http://h  not answering  log /l"
