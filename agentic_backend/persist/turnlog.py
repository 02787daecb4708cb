"""The turn log without a spool: a finished turn is in memory when `final` is sent, and in Postgres soon after."""

from agentic_backend.persist.batcher import Batcher
from agentic_backend.persist.cache import HistoryCache
from agentic_backend.session.models import AskRecord, Durability, TurnRecord


class QueueTurnLog:
    """Implements `TurnLog` with nothing behind it but the batcher's queue: `final.durable` is `none`.

    The queue outlives any outage of Postgres, not the end of this process. A spool takes this class's place: it
    answers from its own disk and feeds the same batcher.
    """

    def __init__(self, batcher: Batcher, cache: HistoryCache) -> None:
        self._batcher = batcher
        self._cache = cache

    def has_room(self) -> bool:
        """Whether the queue has room beyond what is reserved for turns that run already."""
        return self._batcher.has_room()

    def begin(self, record: AskRecord) -> None:
        """Nothing: an ask is not sent to Postgres while its turn runs, and there is no spool yet to note it in."""

    async def append(self, record: TurnRecord) -> Durability:
        """Queue a finished turn. Readers see it from now on; never waits."""
        self._batcher.push(record)
        self._cache.append((record.session.id, record.session.user_id), record)
        return "none"
