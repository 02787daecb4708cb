"""Sessions by ids that clients choose: the first request that names one creates it, any later one finds it, until it is
deleted."""

from collections.abc import Awaitable, Callable
from typing import Final, Literal
from uuid import UUID

from agentic_backend.errors import Conflict, SessionLimitReached
from agentic_backend.session.models import Session
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.store import SessionStore
from backend_kit.auth import AuditAction, AuditEvent, Identity
from backend_kit.kpi import Kpi

_VERSION_OF_DOORS: Final = 5
_Made = Literal["made", "there"]


class Sessions:
    """Creates sessions, opens those whose id a client has chosen, and deletes them. A user has at most `most` (0: no
    limit). `kpi` measures the deletion."""

    def __init__(
        self, store: SessionStore, registry: TurnRegistry, kpi: Kpi, *, most: int, limit_hit: Callable[[str], None]
    ) -> None:
        self._store = store
        self._registry = registry
        self._kpi = kpi
        self._most = most
        self._limit_hit = limit_hit

    async def make(self, session: Session) -> Session:
        """Store a new session with an id of ours. Raises `SessionLimitReached` or `HistoryUnavailable`."""
        await self._create(session)
        self._registry.update(session)
        return session

    async def open(
        self, session_id: str, user_id: str, agent_id: str, title: str = "", *, likely_new: bool = False
    ) -> Session:
        """The user's session with this id, created with this agent and title if there is none yet.

        Any number of requests may open it at once. One that is `likely_new` is created without looking for it first.
        The caller must check whether the session found has this agent: an ask names its own. Raises `Conflict` if the
        id is another user's, and as `make`.
        """
        known = self._registry.session_of(session_id, user_id)
        if known is None and not likely_new:
            known = await self._store.get(session_id, user_id)
        if known is not None:
            return known
        new = Session.with_id(session_id, user_id, agent_id, title)
        # If it exists, another request may have created it meanwhile, or it is another user's.
        stored = new if await self._create(new) == "made" else await self._store.get(session_id, user_id)
        if stored is None:
            raise Conflict(field="session_id")
        if stored.next_rank == 0 and self._registry.session_of(session_id, user_id) is None:
            self._registry.update(stored)
        return stored

    async def delete(self, session_id: str, identity: Identity) -> bool:
        """Stop the turns of a user's session and delete it with everything that belongs to it; False if it is unknown.

        Raises `HistoryUnavailable`.
        """
        # Nothing may be awaited between the two, so that after the delete no ask finds the session.
        await self._registry.forget(session_id, identity.uid)
        with self._kpi.phase("session_write"):
            event = AuditEvent.by(identity, AuditAction.SESSION_DELETED, "session", session_id)
            return await self._store.delete(session_id, identity.uid, event)

    async def within_limit(self, create: Callable[[int], Awaitable[_Made | None]]) -> _Made:
        """Return the session that `create` stores: it gets the limit (0: none), and returns None if the user has
        reached it. Raises `SessionLimitReached`."""
        made = await create(self._most)
        if made is None:
            self._limit_hit("max_concurrent_sessions_per_user")
            raise SessionLimitReached(self._most)
        return made

    async def _create(self, session: Session) -> _Made:
        return await self.within_limit(lambda most: self._store.create(session, most))


def is_of_doors(chosen: UUID) -> bool:
    """Whether no client may create a session with this id, of version 5: doors derive those from their user and a name,
    and a client that knows both could take over another user's conversation before it begins."""
    return chosen.version == _VERSION_OF_DOORS
