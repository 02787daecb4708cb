"""Whose a session is: the one place where every route and every turn asks."""

from agentic_backend.errors import SessionNotFound
from agentic_backend.session.models import Session
from agentic_backend.session.store import SessionStore


async def load_owned(store: SessionStore, session_id: str, user_id: str) -> Session:
    """The session, where it is this user's. Raises `SessionNotFound`: another's is answered as one that is not there.

    May raise `HistoryUnavailable` too, for either. What hangs on a session (messages, exchanges, attachments, feedback)
    is looked up by user as well, whether this was asked before or not.
    """
    session = await store.get(session_id, user_id)
    if session is None:
        raise SessionNotFound
    return session
