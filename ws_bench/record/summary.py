"""The report of a recording: every figure that is printed, written or charted, computed in one place."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ws_bench.config.flags import streams
from ws_bench.config.options import parse_gate
from ws_bench.record.gates import GateResult, Goodput, check_gates, goodput
from ws_bench.record.recording import Recording, window_of
from ws_bench.record.results import (
    Spread,
    SteadyWindow,
    Tally,
    TurnResult,
    back_filled,
    first_tokens,
    in_window,
    latencies,
    ramp_seconds,
    spread,
    tally,
    whole_window,
)
from ws_bench.record.selfcheck import LittlesLaw, SelfCheck, check_generator, littles_law

EXIT_OK, EXIT_GATE, EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
_TIMEOUTS = frozenset({"turn_timeout", "ask_timeout", "connect_timeout", "session_create_timeout"})
_TAIL_FACTOR = 10.0
_POOL_WAIT_MS = 100.0
_SAMPLES = 5
_SAMPLE_CHARS = 300


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One phase of the server's ledgers over the window's turns; `share` is relative to the client's whole latency.

    `top` phases do not overlap; the others lie inside one of them.
    """

    name: str
    top: bool
    figures: Spread
    share: float


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Figures of the turns inside a window: the steady one or, if there was none, the whole run."""

    window: SteadyWindow
    is_steady: bool
    latency: Spread | None
    response: Spread | None
    first_token: Spread | None
    phases: list[PhaseRow]
    server: Spread | None
    unexplained: Spread | None
    """Latency minus the server's own total, per turn: network, sockets and the queues of both loops."""
    matched: int
    """Turns whose final carried a ledger."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """Every figure of one run; times in milliseconds unless the name says seconds."""

    recording: Recording
    setup_s: float
    ramp_s: float
    tally: Tally
    latency: Spread | None
    response: Spread | None
    """Latency from the ask itself, in an open loop: what a tool that ignores waiting would print."""
    corrected: Spread | None
    """Latency including the asks that a closed loop omitted during stalls, if `-expected-interval` is set."""
    first_event: Spread | None
    first_token: Spread | None
    gap: Spread | None
    stall: Spread | None
    tail: Spread | None
    frames: Spread | None
    """Frames of a turn, only where the protocol streams: in the other one they do not depend on how texts come."""
    late_start: Spread | None
    connect: Spread | None
    session_create: Spread | None
    close: Spread | None
    measured: WindowFigures | None
    """None only if nothing was asked."""
    self_check: SelfCheck | None
    little: LittlesLaw | None
    gates: list[GateResult]
    goodput: Goodput | None
    samples: list[str]
    red_flags: list[str]

    @property
    def steady(self) -> WindowFigures | None:
        """The steady window; None for a run whose whole load was never on at once."""
        return self.measured if self.measured is not None and self.measured.is_steady else None

    @property
    def outcome(self) -> str:
        """OK, DEGRADED (some errors), FAILED (no success) or INTERRUPTED."""
        if self.recording.interrupted:
            return "INTERRUPTED"
        if self.tally.success == 0:
            return "FAILED"
        return "DEGRADED" if self.tally.errors else "OK"

    @property
    def gates_hold(self) -> bool:
        """Whether every gate held and, if history was verified, every acknowledged turn was found."""
        history = self.recording.history
        return all(gate.passed for gate in self.gates) and (history is None or history.good)

    @property
    def exit_code(self) -> int:
        """130 if interrupted, 3 if nothing succeeded, 1 if a gate failed, else 0."""
        if self.outcome == "INTERRUPTED":
            return EXIT_INTERRUPTED
        if self.outcome == "FAILED":
            return EXIT_FAILED
        return EXIT_OK if self.gates_hold else EXIT_GATE


def build_report(recording: Recording) -> RunReport:
    """Compute the report of a run."""
    turns = recording.turns
    good = [turn for turn in turns if turn.ok]
    setup_s, ramp_s = ramp_seconds(turns)
    latency = spread(latencies(good))
    measured = _window(recording, turns)
    window = measured.window if measured else None
    counts = tally(turns, recording.total)
    load = recording.config.get("load", {})
    interval = float(load.get("expected_interval_s", 0.0))
    figures = measured.latency if measured and measured.latency else latency
    check = check_generator(recording.series, window, figures.p50 if figures else None)
    little = (
        littles_law(recording.series, window, [(turn.asked, turn.ended) for turn in turns if turn.sent])
        if window
        else None
    )
    spreads = {
        "turn_latency": latency,
        "response": spread(turn.response_ms for turn in good),
        "ttft": spread(first_tokens(good)),
        "gap": recording.gaps.spread(),
        "connect": spread(recording.connect_ms),
        "session_create": spread(recording.session_ms),
    }
    limits = recording.config.get("goodput") or {}
    return RunReport(
        recording=recording,
        setup_s=setup_s,
        ramp_s=ramp_s,
        tally=counts,
        latency=latency,
        response=spreads["response"] if recording.open_loop else None,
        corrected=spread(back_filled((turn.latency_ms for turn in good), interval * 1000)) if interval else None,
        first_event=_present(turn.first_event_ms for turn in good),
        first_token=spreads["ttft"],
        gap=spreads["gap"],
        stall=_present(turn.stall_ms for turn in good),
        tail=_present(turn.tail_ms for turn in good),
        frames=_present(turn.frames for turn in good) if streams(recording.config) else None,
        late_start=_present(
            (turn.asked - turn.intended) * 1000 for turn in turns if turn.intended is not None and turn.sent
        ),
        connect=spreads["connect"],
        session_create=spreads["session_create"],
        close=spread(recording.close_ms),
        measured=measured,
        self_check=check,
        little=little,
        gates=_gates(recording, spreads, counts, window_of(recording)),
        goodput=_goodput(recording, limits, window_of(recording)) if limits else None,
        samples=list(dict.fromkeys(sample_of(turn) for turn in turns if not turn.ok))[:_SAMPLES],
        red_flags=_red_flags(recording, counts, latency, check, little),
    )


def sample_of(turn: TurnResult) -> str:
    """One line about a failed turn."""
    text = f"{turn.error}: {turn.detail}" if turn.detail else turn.error
    return " ".join(text.split())[:_SAMPLE_CHARS]


def _window(recording: Recording, turns: Sequence[TurnResult]) -> WindowFigures | None:
    steady = window_of(recording)
    window = steady or whole_window(turns)
    if window is None:
        return None
    inside = in_window(turns, window, by_begin=recording.open_loop) if steady else turns
    good = [turn for turn in inside if turn.ok]
    with_ledger = [turn for turn in good if turn.server_ms is not None]
    return WindowFigures(
        window=window,
        is_steady=steady is not None,
        latency=spread(turn.latency_ms for turn in good),
        response=spread(turn.response_ms for turn in good),
        first_token=spread(first_tokens(good)),
        phases=_phase_rows(with_ledger),
        server=_present(turn.server_ms for turn in with_ledger),
        unexplained=spread(turn.response_ms - (turn.server_ms or 0.0) for turn in with_ledger),
        matched=len(with_ledger),
    )


def _phase_rows(turns: Sequence[TurnResult]) -> list[PhaseRow]:
    """One row per phase, the largest first; a turn without a phase counts as 0 ms in it."""
    top: dict[str, bool] = {}
    for turn in turns:
        for name in turn.phases:
            top[name] = top.get(name, False) or name in turn.top_phases
    whole = math.fsum(turn.response_ms for turn in turns)
    rows = []
    for name, is_top in top.items():
        figures = spread(turn.phases.get(name, 0.0) for turn in turns)
        if figures is not None:
            rows.append(PhaseRow(name, is_top, figures, figures.avg * figures.count / whole if whole else 0.0))
    return sorted(rows, key=lambda row: (not row.top, -row.share, row.name))


def _gates(
    recording: Recording, spreads: Mapping[str, Spread | None], counts: Tally, window: SteadyWindow | None
) -> list[GateResult]:
    gates = [parse_gate(text) for text in recording.config.get("thresholds", [])]
    numbers: dict[str, float] = {"errors": counts.errors, "not_sent": counts.not_sent}
    if window is not None:
        numbers["turns"] = window.turns_per_s
    return check_gates(gates, spreads, numbers, recording.total)


def _goodput(recording: Recording, limits: Mapping[str, float], window: SteadyWindow | None) -> Goodput:
    whole = goodput(limits, recording.turns, recording.total, 0.0)
    if window is None:
        return whole
    inside = goodput(
        limits, in_window(recording.turns, window, by_begin=recording.open_loop), recording.total, window.seconds
    )
    return Goodput(whole.limits, whole.share, inside.turns_per_s)


def _red_flags(
    recording: Recording,
    counts: Tally,
    latency: Spread | None,
    check: SelfCheck | None,
    little: LittlesLaw | None,
) -> list[str]:
    """Warnings that a reader must not overlook, worst first."""
    flags = list(_loss_flags(recording, counts))
    flags += _tail_flags(latency)
    flags += _server_flags(recording)
    if recording.reconnects:
        flags.append(f"churn: {recording.reconnects} sockets had to be opened again")
    if check is not None and check.limited:
        flags.append(f"client-limited: {'; '.join(check.limits)}")
    if little is not None and little.broken:
        flags.append(
            f"Little's law broken: {little.sampled:.1f} turns in flight were seen, rate x latency says "
            f"{little.computed:.1f}"
        )
    return flags


def _loss_flags(recording: Recording, counts: Tally) -> Iterable[str]:
    history = recording.history
    if history is not None and not history.good:
        yield f"history: {history.missing} acknowledged turns missing, {history.altered} altered"
    for kind in ("protocol_cross_talk", "protocol_order", "protocol_after_final"):
        if counts.by_class.get(kind):
            yield f"{kind.removeprefix('protocol_')}: {counts.by_class[kind]} turns"
    late = sum(count for kind, count in counts.by_class.items() if kind in _TIMEOUTS)
    if late:
        yield f"timeouts: {late}"
    if recording.dropped:
        yield f"dropped: {recording.dropped} turns that no client was free for"


def _tail_flags(latency: Spread | None) -> Iterable[str]:
    if latency is None or latency.p50 <= 0:
        return
    if latency.p999 is not None and latency.p999 > _TAIL_FACTOR * latency.p50:
        yield f"p99.9: {latency.p999 / latency.p50:.0f} x p50"
    if latency.max > _TAIL_FACTOR * latency.p50:
        yield f"max: {latency.max / latency.p50:.0f} x p50"


def _server_flags(recording: Recording) -> Iterable[str]:
    server = recording.server
    if server is None:
        return
    wait = server.timers.get("pool wait")
    p99 = wait.p99 if wait is not None else None
    if server.pool_exhausted or (p99 is not None and p99 > _POOL_WAIT_MS):
        yield "pool exhaustion" if p99 is None else f"pool exhaustion: p99 of the wait {p99:.0f} ms"
    if server.lost:
        yield f"persistence: {server.lost} records lost"
    if server.stalls:
        yield f"server loop: {server.stalls} {'stall' if server.stalls == 1 else 'stalls'} above 100 ms"


def _present(values: Iterable[float | None]) -> Spread | None:
    return spread(value for value in values if value is not None)
