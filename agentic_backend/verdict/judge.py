"""What limits the service in a window: a pure function over its sums (docs/decisions/0021-verdict.md)."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from agentic_backend.verdict.causes import CAUSES, HOPS, NOBODY, THREAD_HOPS, Account, Cause
from agentic_backend.verdict.slices import Slice

NOTICEABLE_MS: Final = 50.0
"""What a turn may spend on any cause before it counts as limited by it."""
SATURATED: Final = 0.85
"""The loop is full if it has something to do for at least this share of the time: more load only waits longer."""
MATERIAL: Final = 0.1
"""A full loop limits the service once it is this share of a turn, even if another cause is larger."""
_OWN_HOPS: Final = 12
"""Steps of one turn on the loop: arrival, session, the graph's nodes and their joins, closing, sending."""
_QUEUE_IN_A_FULL_LOOP: Final = frozenset(HOPS) - {"slow_clients"}
"""With a full loop, all time above the least of these waits is queueing for the loop: a turn that waits there also
occupies a connection, a slot or a place in the spool."""
_GROWN_RECORDS: Final = 10
_GROWN_SHARE: Final = 0.2
_BACKLOG_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits the service: `nobody`, or the cause of most of a turn's time.

    `share` of that time and `ms_per_turn` are those of `bound_by` (0 for nobody); `next` is the largest other cause.
    `turn_ms` is all that a turn of the window spends, its delivery included; `occupied` the loop's share, 0 to 1.
    """

    bound_by: Cause | str
    share: float
    ms_per_turn: float
    next: Cause | str
    next_share: float
    turns: int
    refused: int
    window_s: float
    turn_ms: float
    occupied: float
    causes_ms: dict[Cause, float]

    def line(self) -> str:
        """The verdict as the last line of a summary."""
        return (
            f"[KPI][VERDICT] bound_by={self.bound_by} share={self.share:.2f} ms_per_turn={self.ms_per_turn:.2f} "
            f"next={self.next} next_share={self.next_share:.2f} turns={self.turns} refused={self.refused} "
            f"turn_ms={self.turn_ms:.2f} loop={self.occupied:.2f} window_s={self.window_s:.1f}"
        )

    def json(self) -> dict[str, Any]:
        """The verdict as JSON-ready dict: the line's fields, and every cause's milliseconds a turn."""
        return {
            "bound_by": self.bound_by,
            "share": round(self.share, 4),
            "ms_per_turn": round(self.ms_per_turn, 3),
            "next": self.next,
            "next_share": round(self.next_share, 4),
            "turns": self.turns,
            "refused": self.refused,
            "window_s": round(self.window_s, 3),
            "turn_ms": round(self.turn_ms, 3),
            "loop": round(self.occupied, 4),
            "causes": {cause: round(ms, 3) for cause, ms in self.causes_ms.items()},
        }


def judge(seen: Slice) -> Verdict:
    """The verdict over a window; `nobody` without turns."""
    turns = max(seen.turns, 1)
    spent = attributed(seen)
    causes = {cause: spent[cause] / turns for cause in CAUSES}
    total = sum(causes.values())
    ranked = sorted(CAUSES, key=lambda cause: -causes[cause])
    full = seen.wanted >= SATURATED and causes["loop_cpu"] + causes["starved"] >= MATERIAL * total
    of_loop: Cause = "starved" if causes["starved"] > causes["loop_cpu"] else "loop_cpu"
    first = of_loop if full else ranked[0]
    bound = seen.turns > 0 and (causes[first] >= NOTICEABLE_MS or full)
    others = [cause for cause in ranked if not bound or cause != first]
    share = {cause: causes[cause] / total if total else 0.0 for cause in CAUSES}
    return Verdict(
        bound_by=first if bound else NOBODY,
        share=share[first] if bound else 0.0,
        ms_per_turn=causes[first] if bound else 0.0,
        next=others[0] if causes[others[0]] > 0 else "none",
        next_share=share[others[0]],
        turns=seen.turns,
        refused=seen.refused,
        window_s=seen.seconds,
        turn_ms=total,
        occupied=seen.occupied,
        causes_ms=causes,
    )


def capacity_ratio(seen: Slice, slots: float) -> float:
    """How much of what this process can do is in use: the larger of its loop's share of a full one (`SATURATED`, so up
    to 1.18; where others have its cores, it is full sooner) and of its slots (`slots`: turns that run by
    `limits.max_turns`, 0 to 1). At 1 more load only waits."""
    return max(seen.wanted / SATURATED, slots)


def attributed(seen: Slice) -> dict[Cause, float]:
    """Milliseconds by cause of all turns of the window together.

    The time that a late loop adds to each wait is moved from the wait to the loop, or to `starved` as far as it was
    late for want of a core. Then the undecided accounts are divided: own time between loop, `starved` and agent,
    stored time between the database's pool and its statements.
    """
    full = seen.wanted >= SATURATED
    hungry_queue = seen.starved / (seen.starved + seen.occupied) if seen.starved > 0 else 0.0
    spent: dict[Account, float] = dict(seen.ms)
    loop = starved = 0.0
    for account, ms in seen.ms.items():
        rows = seen.rows[account]
        late, hungry = _lateness(seen, rows * HOPS.get(account, 0), rows * THREAD_HOPS.get(account, 0), ms)
        queued = 0.0
        if full and account in _QUEUE_IN_A_FULL_LOOP:
            queued = max(ms - rows * seen.least_ms[account] - late, 0.0)
        spent[account] = ms - late - queued
        hungry += queued * hungry_queue
        starved += hungry
        loop += late + queued - hungry
    own = spent.pop("own", 0.0)
    steps = seen.occupied * seen.seconds * 1e3 + seen.turns * _OWN_HOPS * seen.own_lag_ms
    waits = seen.starved * seen.seconds * 1e3 + seen.turns * _OWN_HOPS * seen.core_wait_ms
    of_both = own if full else min(own, steps + waits)
    of_starved = of_both * waits / (steps + waits) if waits > 0 else 0.0
    stored = spent.pop("stored", 0.0)
    causes: dict[Cause, float] = {cause: spent.get(cause, 0.0) for cause in CAUSES}
    causes["loop_cpu"] += loop + of_both - of_starved
    causes["starved"] += starved + of_starved
    causes["agent"] += own - of_both
    waiting = _waiting_share(seen)
    causes["pool_wait"] += stored * waiting
    causes["sql"] += stored * (1 - waiting)
    beside = _database_beside(seen, waiting, full=full)
    causes["pool_wait"] += beside.waited
    causes["sql"] += beside.took
    causes["starved"] += beside.starved + beside.late * hungry_queue
    causes["loop_cpu"] += beside.late * (1 - hungry_queue)
    return causes


def _lateness(seen: Slice, hops: int, thread_hops: int, most_ms: float) -> tuple[float, float]:
    """(what this many passes of the loop, and of other threads, add to a wait, at most all of it; the part of that for
    lack of a core). Other threads have no lateness of their own."""
    hungry = (hops + thread_hops) * seen.core_wait_ms
    late = hops * seen.own_lag_ms + hungry
    scale = min(1.0, most_ms / late) if late > 0 else 0.0
    return late * scale, hungry * scale


class _Beside(NamedTuple):
    """Milliseconds of all turns together that the database costs beside their own rows: its connections, its
    statements; and what is none of its own: waits for a core, and a full loop that comes late."""

    waited: float
    took: float
    starved: float
    late: float


def _waiting_share(seen: Slice) -> float:
    """The share of a batch's time that it waited for a connection, 0 to 1."""
    waited_s = seen.ended.batch_wait_s - seen.begun.batch_wait_s
    took_s = seen.ended.batch_sql_s - seen.begun.batch_sql_s
    return waited_s / (waited_s + took_s) if waited_s + took_s > 0 else 0.0


def _database_beside(seen: Slice, waiting: float, *, full: bool) -> _Beside:
    """A growing backlog, of whose time `waiting` is the share before a connection, and one read over REST per turn."""
    begun, ended = seen.begun, seen.ended
    backlog = backlog_ms(seen) * max(seen.turns, 1)
    late = backlog * (1 - _busy_share(seen)) if full else 0.0
    waited, took, starved = (backlog - late) * waiting, (backlog - late) * (1 - waiting), 0.0
    reads = ended.reads - begun.reads
    if reads > 0:
        # The average read rather than all of them: a page that lists sessions must not look like slow turns.
        read_waited = max((ended.read_wait_s - begun.read_wait_s) * 1e3 - seen.ms.get("pool_wait", 0.0), 0.0)
        read_took = max((ended.read_sql_s - begun.read_sql_s) * 1e3 - seen.ms.get("sql", 0.0), 0.0)
        hungry = min(read_took, reads * HOPS["sql"] * seen.core_wait_ms)
        behind = min(read_took - hungry, reads * HOPS["sql"] * seen.own_lag_ms) if full else 0.0
        # Others wait for a connection as long as those before them are late with theirs.
        held_up = read_waited * behind / read_took if read_took > 0 else 0.0
        waited += (read_waited - held_up) / reads * seen.turns
        took += (read_took - hungry - behind) / reads * seen.turns
        starved += hungry / reads * seen.turns
        late += (behind + held_up) / reads * seen.turns
    return _Beside(waited, took, starved, late)


def _busy_share(seen: Slice) -> float:
    """The share of the time in which the database was busy with batches, 0 to 1, less what a late loop adds to each
    statement. The rest is a loop that comes late to the next one. 1 where no statement has ended at all."""
    begun, ended = seen.begun, seen.ended
    statements = ended.batch_statements - begun.batch_statements
    if statements == 0 or seen.seconds <= 0:
        return 1.0
    busy_s = ended.batch_wait_s - begun.batch_wait_s + ended.batch_sql_s - begun.batch_sql_s
    late_s = statements * HOPS["sql"] * seen.lag_ms / 1e3
    return min(max((busy_s - late_s) / seen.seconds, 0.0), 1.0)


def backlog_ms(seen: Slice) -> float:
    """The age of the oldest record that waits for Postgres if the queue grows faster than it is written, else 0.

    A queue that does not grow slows no turn: its purpose is that turns need not wait.
    """
    grown = seen.ended.pending - seen.begun.pending
    if grown < max(_GROWN_RECORDS, _GROWN_SHARE * seen.turns) or seen.ended.oldest_s < _BACKLOG_S:
        return 0.0
    return seen.ended.oldest_s * 1e3
