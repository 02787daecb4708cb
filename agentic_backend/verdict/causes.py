"""The cause to which each phase of a turn counts, and the own time of a phase. Pure functions over ledger rows."""

from collections.abc import Sequence
from typing import Final, Literal

from backend_kit.kpi import LedgerRow

Cause = Literal[
    "llm_floor", "loop_cpu", "pool_wait", "sql", "disk", "search", "embedding", "rerank", "admission", "slow_clients",
    "agent", "starved",
]  # fmt: skip
CAUSES: Final[tuple[Cause, ...]] = (
    "llm_floor", "loop_cpu", "pool_wait", "sql", "disk", "search", "embedding", "rerank", "admission", "slow_clients",
    "agent", "starved",
)  # fmt: skip
"""What can limit the service. `disk` is the wait of finished turns for a flush of the spool's disk. `agent` is time
that an agent's steps wait for tools, or for anything else that has no phase of its own. `starved` is time in which the
loop wanted a core that others had, or that a quota withheld."""
NOBODY: Final = "nobody"

Account = Literal["own", "ahead", "stored", Cause]
"""A cause, or time to be divided first: `own` (the service's steps: loop or agent), `stored` (an acknowledgement by
the database: its pool or its statements), `ahead` (another turn of the same session: no cause)."""

_OF_PHASE: Final[dict[str, Account]] = {
    "llm_invoke": "llm_floor",
    "llm_invoke_title": "llm_floor",
    "llm_pool_wait": "pool_wait",
    "kf_pool_wait": "pool_wait",
    "db_pool_wait": "pool_wait",
    "db_statement": "sql",
    "ask_commit": "sql",
    "spool_ack": "disk",
    "db_ack": "stored",
    "kf_vector_search": "search",
    "kf_search_turn": "search",
    "kf_lexical_query": "search",
    "kf_vector_query": "search",
    "kf_os_query": "search",
    "kf_db_pool_wait": "search",
    "kf_embed_query": "embedding",
    "kf_vector_rerank": "rerank",
    "kf_rerank": "rerank",
    "tool_call": "agent",
    "mcp_discover": "agent",
    "checkpoint_keep": "sql",
    "checkpoint_take": "sql",
    "admission_wait": "admission",
    "session_wait": "ahead",
}

HOPS: Final[dict[Account, int]] = {
    "llm_floor": 3,
    "search": 3,
    "pool_wait": 1,
    "sql": 2,
    "disk": 1,
    "stored": 1,
    "admission": 1,
    "ahead": 2,
    "slow_clients": 2,
    "agent": 2,
}
"""How often a phase waits for the event loop: a late loop prolongs it by this many times its lateness. A model call
is sent, begins and ends. Knowledge flow measures its own phases, which do not wait for this loop."""

THREAD_HOPS: Final[dict[Account, int]] = {"disk": 2}
"""How often it waits besides for another thread of this process, which gets no core sooner than the loop does: the
spool's begins a flush, and goes on after it."""


def account_of(phase: str) -> Account:
    """The account for the own time of a phase."""
    return _OF_PHASE.get(phase, "own")


def own_ms(rows: Sequence[LedgerRow]) -> list[tuple[str, float]]:
    """(phase, its milliseconds without those of phases inside it) for a ledger's rows, which are sorted by start.

    Concurrent time counts for the row that began last, so the sum is the time that any row covers.
    """
    own: list[float] = []
    around: list[tuple[float, int]] = []  # rows that may still run: (end, index), the one that began last at the end
    for index, row in enumerate(rows):
        start, ms = row["start_ms"], row["ms"]
        end = start + ms
        own.append(ms)
        while around and around[-1][0] <= start:
            around.pop()
        uncovered = start
        for until, outer in reversed(around):
            if until > uncovered:
                own[outer] -= min(until, end) - uncovered
                uncovered = until
                if uncovered >= end:
                    break
        around.append((end, index))
    return [(row["phase"], ms) for row, ms in zip(rows, own, strict=True)]
