"""What 1 to 1,000 workers need of everything around them, from what one of each part costs. Pure functions.

Everything that `computed` returns is computed: nobody has run 1,000 workers. What is measured is `Parts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agentic_backend.fleet.membership import FleetRules
from agentic_backend.verdict.judge import SATURATED
from backend_kit.auth.keys import KeyWaits

STEPS: Final = (1, 4, 16, 64, 1000)
IN_USE: Final = 0.7
"""How far a worker is in use: its `app_turns_capacity_ratio`, at which an autoscaler holds it."""
SEARCHES_A_TURN: Final = 0.5
MESSAGES_A_TURN: Final = 0.02
"""Messages to all instances: titles, deleted and changed sessions. A stop goes to one."""
OPEN_TURNS: Final = 200
"""Turns that run at each worker at a time, which a look for the dead reads: those of a model that takes some 3 s."""
FEW: Final = 1
MANY: Final = 64
INSTANCES: Final = 1000
"""How many hear a message, or stand in the table of instances, where its cost is measured."""
BOUND: Final = 0.10
"""By how much two runs may differ in a figure."""

_RULES: Final = FleetRules()


@dataclass(frozen=True, slots=True)
class Parts:
    """What was measured, CPU each time: of a turn at the worker and its loop, at Postgres; of what the fleet does for
    itself; of messages by how many hear them; of a question's vector. And how many of what, which hardly varies."""

    turn_ms: float
    turn_loop_ms: float
    turn_postgres_ms: float
    turn_commits: float
    idle_commits_per_s: float
    connections: float
    connections_few: float
    beat_us: float
    count_few_us: float
    count_many_us: float
    look_few_us: float
    look_many_us: float
    notify_few_us: float
    notify_many_us: float
    redis_few_us: float
    redis_many_us: float
    jwks_ms: float
    question_ms: float
    passage_ms: float

    def notify_us(self, hearers: float) -> float:
        """A message by Postgres."""
        return _line(FEW, self.notify_few_us, MANY, self.notify_many_us, hearers)

    def redis_us(self, hearers: float) -> float:
        """The same by Redis."""
        return _line(FEW, self.redis_few_us, MANY, self.redis_many_us, hearers)

    def look_us(self, workers: float) -> float:
        """A look for turns of the dead, with all that run then."""
        return _line(FEW, self.look_few_us, MANY, self.look_many_us, workers)

    def count_us(self, workers: float) -> float:
        """A count of the instances."""
        return _line(FEW, self.count_few_us, INSTANCES, self.count_many_us, workers)


def _line(few: float, at_few: float, many: float, at_many: float, at: float) -> float:
    """The straight line through two points."""
    return at_few + (at_many - at_few) * (at - few) / (many - few)


def turns_per_s(parts: Parts, workers: float) -> float:
    """Turns a second of workers that are in use as far as they are to be."""
    return workers * IN_USE * SATURATED * 1e3 / parts.turn_loop_ms


def looks_per_s(workers: float) -> float:
    """Looks for turns of the dead, of all together."""
    return min(workers, _RULES.looks_each_time) / _RULES.look_s


def upkeep_cores(parts: Parts, workers: float) -> float:
    """Of Postgres, for what the fleet does also where nobody asks anything: heartbeats, counts, looks, the rest."""
    beats = workers / _RULES.beat_s
    rest = workers * max(0.0, parts.idle_commits_per_s - looks_per_s(1) - 2 / _RULES.beat_s)
    looks = looks_per_s(workers) * parts.look_us(workers)
    return (beats * parts.count_us(workers) + (beats + rest) * parts.beat_us + looks) / 1e6


def commits_per_s(parts: Parts, workers: float) -> float:
    """Transactions of Postgres, those that only read among them."""
    idle = workers * (parts.idle_commits_per_s - looks_per_s(1)) + looks_per_s(workers)
    return turns_per_s(parts, workers) * parts.turn_commits + idle


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a fleet needs. `limit` is how much of it one has at first, an assumption, None where nothing
    bounds it; `verdict` is what says that it is the bound, `buy` what comes next then."""

    name: str
    unit: str
    demand: Callable[[Parts, float], float]
    limit: float | None = None
    verdict: str = ""
    buy: str = ""


def _of_messages(cost_us: Callable[[Parts, float], float]) -> Callable[[Parts, float], float]:
    return lambda parts, n: turns_per_s(parts, n) * MESSAGES_A_TURN * cost_us(parts, n) / 1e6


WORKERS: Final = Part(
    "each worker",
    "in use",
    lambda _parts, _workers: IN_USE,
    1.0,
    "`loop_cpu`, `admission`, `starved`, with `app_turns_capacity_ratio` near 1: `ScaleUp`",
    "a core for a worker more: `app.workers: auto`, then another host",
)
TABLE: Final[tuple[Part, ...]] = (
    Part("turns", "turns/s", turns_per_s),
    Part("cores of the workers", "cores", lambda parts, n: turns_per_s(parts, n) * parts.turn_ms / 1e3),
    WORKERS,
    Part(
        "connections, pools as delivered",
        "connections",
        lambda parts, n: n * parts.connections,
        500,
        "`turnwise doctor`: `connections`; then `history_unavailable`",
        "nothing: `storage.postgres.pool_size: 4`, `max_overflow: 2`, `ai.graph_connections: 2`",
    ),
    Part(
        "connections, small pools",
        "connections",
        lambda parts, n: n * parts.connections_few,
        500,
        "`pool_wait` where pools were made smaller still; `turnwise doctor`: `connections`",
        "`max_connections` of 1,000 to 2,000; then as for the cores of Postgres",
    ),
    Part(
        "Postgres: turns",
        "cores",
        lambda parts, n: turns_per_s(parts, n) * parts.turn_postgres_ms / 1e3,
        16,
        "`sql`",
        "a larger primary, knowledge flow's index on another one; then for each part of the users a fleet with its own",
    ),
    Part(
        "Postgres: commits",
        "commits/s",
        commits_per_s,
        20_000,
        '`sql`, with `op="commit"` in `app_db_statement_seconds`',
        "a disk that flushes faster; then as for the cores",
    ),
    Part(
        "Postgres: upkeep of the fleet",
        "cores",
        upkeep_cores,
        4,
        "`sql`, with few turns",
        "as for the cores",
    ),
    Part(
        "bus by Postgres",
        "cores",
        _of_messages(Parts.notify_us),
        1,
        "the log (`set fleet.bus`), `sql`",
        "a Redis: `fleet.bus: redis`",
    ),
    Part(
        "bus by Redis",
        "cores",
        _of_messages(Parts.redis_us),
        1,
        "`app_fleet_bus_seconds`, `BusAway`",
        "a fleet of its own for each part of the users: a Redis takes no second core for it",
    ),
    Part(
        "vectors of questions",
        "cores",
        lambda parts, n: turns_per_s(parts, n) * SEARCHES_A_TURN * parts.question_ms / 1e3,
        8,
        "`embedding`",
        "workers and hosts of knowledge flow, or an endpoint with a GPU",
    ),
    Part(
        "keys of the issuer",
        "fetches/s",
        lambda _parts, n: n / KeyWaits().refresh_s,
        50,
        "none: `dependencies.identity_provider` in `/ready` is `down`, and known keys stay valid",
        "a cache before it: `security.user.jwks_url`",
    ),
)
"""In the order of the page. What bounds has a limit."""
BOUNDING: Final = tuple(part for part in TABLE if part.limit is not None)


def use(part: Part, parts: Parts, workers: float) -> float:
    """How much of its limit a part has to give: above 1 it does not suffice."""
    assert part.limit is not None
    return part.demand(parts, workers) / part.limit


def full_at(part: Part, parts: Parts) -> int | None:
    """From how many workers on a part is too little; None: not below 100,000."""
    least, most = 1, 100_000
    if use(part, parts, most) <= 1:
        return None
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if use(part, parts, middle) > 1 else (middle + 1, most)
    return least


def too_little(parts: Parts, workers: int) -> list[Part]:
    """What has to be bought, or set, before so many workers: what is too little first stands first."""
    found = [part for part in BOUNDING if use(part, parts, workers) > 1]
    return sorted(found, key=lambda part: full_at(part, parts) or 0)


def bounds_next(parts: Parts, workers: int) -> Part:
    """Of the rest, what is nearest to its limit."""
    rest = [part for part in BOUNDING if use(part, parts, workers) <= 1]
    return max(rest, key=lambda part: use(part, parts, workers))


def figures(parts: Parts) -> dict[str, float]:
    """Everything that two runs have in common, measured and computed."""
    found = {name: float(getattr(parts, name)) for name in Parts.__slots__}
    for part in TABLE:
        found |= {f"{part.name}, {workers} workers": part.demand(parts, workers) for workers in STEPS}
    return found


def apart(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """By how much two runs differ in each figure, as a share of the smaller one."""
    return {name: _apart(one[name], other[name]) for name in one}


def _apart(one: float, other: float) -> float:
    less, more = sorted((one, other))
    return 0.0 if more == less else more / less - 1.0 if less > 0 else float("inf")


HEAD: Final = ("what", "unit", *(f"{workers:,}" for workers in STEPS), "one has at first", "too little from")


def table(parts: Parts) -> str:
    """The computed needs in Markdown, as docs/scale.md has them."""
    rows = [
        (part.name, part.unit, *(shown(part.demand(parts, n)) for n in STEPS), *_limit(part, parts)) for part in TABLE
    ]
    before = [("before it", "", *(_names(too_little(parts, n)) for n in STEPS), "", "")]
    bound = [("bounds next", "", *(bounds_next(parts, n).name for n in STEPS), "", "")]
    return markdown(HEAD, [*rows, *before, *bound])


def remedies() -> str:
    """What says that something is the bound, and what to buy then, in Markdown."""
    return markdown(("bound", "what says so", "next"), [(part.name, part.verdict, part.buy) for part in BOUNDING])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    cells = [[f" {cell} " if cell else " " for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"|{'|'.join(row)}|" for row in cells)


def shown(figure: float) -> str:
    """Three digits of it."""
    if figure >= 100:
        digits = len(str(int(figure))) - 3
        return f"{round(figure, -digits):,.0f}"
    return f"{figure:.3g}" if figure >= 0.001 else "0"


def _limit(part: Part, parts: Parts) -> tuple[str, str]:
    if part.limit is None:
        return "", ""
    full = full_at(part, parts)
    return f"{part.limit:,.0f}", "" if full is None else shown(full)


def _names(parts: Sequence[Part]) -> str:
    return "; ".join(part.name for part in parts) or "nothing"
