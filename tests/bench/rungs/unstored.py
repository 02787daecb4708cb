"""The agentic service with everything but the storing of turns: `CONFIG_FILE=… python -m tests.bench.rungs.unstored`.

Sessions are still made in Postgres, and an agent is reminded of earlier turns from memory; a turn's record is dropped.
"""

import sys
from functools import partial
from typing import Any

from agentic_backend import app
from agentic_backend.__main__ import main
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import AskRecord, Durability, TurnRecord
from agentic_backend.spool.cache import HistoryCache


class Dropped:
    """Implements `TurnLog` by remembering for the agent, and nothing else."""

    def __init__(self, cache: HistoryCache) -> None:
        self._cache = cache

    def has_room(self) -> bool:
        """Always."""
        return True

    def begin(self, record: AskRecord) -> None:
        """Nothing."""

    async def append(self, record: TurnRecord) -> Durability:
        """Let the cache remember the turn."""
        self._cache.append((record.session.id, record.session.user_id), record)
        return "none"


class Forgetful(Persistence):
    """Reads as ever; finished turns go nowhere."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log = Dropped(self.cache)  # type: ignore[assignment]  # the same port, TurnLog


if __name__ == "__main__":
    # The service builds its parts itself and has no switch for this: nobody but a bench wants it.
    vars(app)["Parts"] = partial(app.Parts, persistence=Forgetful)
    sys.exit(main())
