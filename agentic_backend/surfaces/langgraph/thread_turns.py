"""Which runs a thread's stream sends: those that its client does not have, then each that begins."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from agentic_backend.errors import SessionNotFound
from agentic_backend.session.models import HistoryWindow, Session
from agentic_backend.session.store import newest_message
from agentic_backend.session.stream import Turn
from agentic_backend.session.watches import GONE
from agentic_backend.surfaces.langgraph.messages import Transcript
from agentic_backend.surfaces.langgraph.states import ROOT_RANK, messages_in
from agentic_backend.surfaces.langgraph.thread_events import Before, LoadBefore, ThreadWriter, has_end, rank_of
from agentic_backend.surfaces.services import DoorServices
from backend_kit.wire import loads

MOST_TOLD: Final = 100
"""Exchanges of history in one stream: each comes with the state before it, which is the whole thread until then. A
client that is further behind reads the thread's history."""


class ThreadTurns:
    """The turns of a thread, after what the writer has sent. Implements `Series`.

    `since` is the number that the client gave; None: it has nothing, and gets the run in progress or, if there is none
    and it `looks_back`, the newest exchange.
    """

    def __init__(
        self,
        services: DoorServices,
        session: Session,
        writer: ThreadWriter,
        since: int | None,
        *,
        looks_back: bool = True,
    ) -> None:
        self._services = services
        self._session = session
        self._writer = writer
        self._since = since
        self._looks_back = looks_back
        self._due: deque[str] = deque()
        self._looked = False
        self._run_up_to = 0
        self._gone = False
        self._notice: Callable[[], None] = lambda: None
        self._stop: Callable[[], None] = lambda: None

    def open(self, notice: Callable[[], None]) -> None:
        """See `Series`."""
        self._notice = notice
        self._stop = self._services.registry.watch(self._session.id, self._session.user_id, self._on_turn)

    def close(self) -> None:
        """See `Series`."""
        self._stop()

    async def next(self) -> Turn | None:
        """See `Series`."""
        if self._gone:
            raise SessionNotFound
        if not self._looked:
            self._looked = True
            self._add_first(await self._unsent_exchanges())
        if self._run_up_to > self._writer.next_rank:
            # Meanwhile another instance has run a turn that ended before anybody saw it, or before the current one.
            self._add_first(await self._behind(self._writer.next_rank))
            self._run_up_to = 0
        if not self._due:
            return None
        return self._services.registry.resume(self._session.id, self._due.popleft(), self._session.user_id)

    def _on_turn(self, exchange_id: str | None, next_rank: int) -> None:
        if exchange_id is not None and exchange_id not in self._due:
            self._due.append(exchange_id)
        self._run_up_to = max(self._run_up_to, next_rank)
        self._gone = self._gone or next_rank == GONE
        self._notice()

    def _add_first(self, exchange_ids: Iterable[str]) -> None:
        """Queue these before what has begun since."""
        first = list(dict.fromkeys(exchange_ids))
        self._due = deque([*first, *(one for one in self._due if one not in first)])

    async def _unsent_exchanges(self) -> list[str]:
        """The exchanges that the client does not have completely."""
        registry, session, since = self._services.registry, self._session, self._since
        self._writer.next_rank = session.next_rank  # what comes after that is announced by its instance
        elsewhere = await registry.newest_elsewhere(session.id, session.user_id)
        running = [] if elsewhere is None else [elsewhere]
        running += [turn.ask.exchange_id for turn in registry.turns_of(session.id, session.user_id) if not turn.ended]
        if since is not None:
            return [*await self._since_then(since), *running]
        if running or not self._looks_back:
            return running
        with self._services.kpi.phase("history_get"):
            newest = await newest_message(self._services.store, session.id, session.user_id)
        return [] if newest is None else [loads(newest)["exchange_id"]]

    async def _since_then(self, since: int) -> list[str]:
        """The exchanges of history with a run that the client does not have completely."""
        rank = rank_of(since)
        return [exchange_id for exchange_id, at in await self._runs_from(rank) if at > rank or not has_end(since)]

    async def _behind(self, rank: int) -> list[str]:
        return [exchange_id for exchange_id, _ in await self._runs_from(rank)]

    async def _runs_from(self, rank: int) -> list[tuple[str, int]]:
        """The exchanges with messages from this rank on, each with the rank at which its last run begins."""
        session = await self._services.store.get(self._session.id, self._session.user_id) or self._session
        count = max(1, session.next_rank - rank)
        while True:
            runs: dict[str, int] = {}
            read, first = 0, rank
            with self._services.kpi.phase("history_get"):
                async for message in messages_in(self._services, session.id, session.user_id, HistoryWindow(count)):
                    first, read = (message["rank"] if not read else first), read + 1
                    if message["rank"] >= rank:
                        begun = message["rank"] if message["role"] == "user" else 0
                        runs[message["exchange_id"]] = max(runs.get(message["exchange_id"], 0), begun)
            if read < count or first <= rank:
                return [*runs.items()][-MOST_TOLD:]
            count *= 2  # a turn has ended since the session was read


def before_in(services: DoorServices, session: Session) -> LoadBefore:
    """Reads what a thread had before an exchange."""

    async def load(below: int, behind: int | None) -> Before:
        transcript, questions, asked_at = Transcript(), 0, ROOT_RANK
        with services.kpi.phase("history_get"):
            async for message in messages_in(services, session.id, session.user_id):
                if message["rank"] >= below or (behind is not None and message["rank"] > behind):
                    break
                if _asks(message):
                    questions, asked_at = questions + 1, message["rank"]
                transcript.take(message)
        transcript.close()
        return Before(transcript.json, questions, asked_at)

    return load


def _asks(message: Mapping[str, Any]) -> bool:
    return (message["role"], message["channel"]) == ("user", "final")
