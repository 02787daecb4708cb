"""Maps our ids to those of LangGraph's Agent Server API, and back.

An assistant is an agent, a thread a session, a run an exchange. If the client did not choose an id, it is derived from
ours, so that every instance gives the same one.
"""

from functools import lru_cache
from typing import Final
from uuid import UUID, uuid5

from agentic_backend.agent import Catalog
from agentic_backend.errors import AgentNotFound
from agentic_backend.session.models import Session
from agentic_backend.session.store import SessionStore
from agentic_backend.surfaces.langgraph.errors import Faulty, NoThread
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity

_ASSISTANTS: Final = UUID("d3b0a3f4-0c58-5f0e-9a6b-2f6f6f0c1e27")
_CHECKPOINTS: Final = UUID("7a7f1c52-5d0a-5a4c-8e0b-1f0d9b7c4a63")


@lru_cache(maxsize=1024)
def assistant_id_of(agent_id: str) -> str:
    """The assistant id of an agent: the agent's own id if that is a UUID, which a client has chosen for the
    assistant."""
    return agent_id.lower() if is_uuid(agent_id) else str(uuid5(_ASSISTANTS, agent_id))


def graph_id_of(services: DoorServices, agent_id: str) -> str:
    """The graph of an agent: its own, or for one that a client created, that of the agent it was created from."""
    return agent_id if services.made is None else services.made.made_of(agent_id)


def names_of_agent(services: DoorServices, agent_id: str) -> dict[str, str]:
    """What metadata says of an agent: its graph and its assistant."""
    return {"graph_id": graph_id_of(services, agent_id), "assistant_id": assistant_id_of(agent_id)}


@lru_cache(maxsize=8192)
def checkpoint_id_of(session_id: str, rank: int) -> str:
    """The checkpoint after the message with this rank."""
    return str(uuid5(uuid5(_CHECKPOINTS, session_id), str(rank)))


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID in its usual form."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def agent_of(catalog: Catalog, identity: Identity, name: str) -> str:
    """The id of the agent that a request names, by its own id or by its assistant's.

    Raises `AgentNotFound` if the caller may ask none of that name.
    """
    wanted = name.lower() if is_uuid(name) else name
    for agent_id in catalog.ids():
        if wanted in (agent_id, assistant_id_of(agent_id)):
            if identity.may_ask(agent_id):
                return agent_id
            break
    raise AgentNotFound(field="assistant_id")


async def session_of_thread(store: SessionStore, user_id: str, thread_id: str) -> Session:
    """The session of a thread. Raises `Faulty` for a malformed id, `NoThread` if the user has no such thread."""
    session = await store.get(thread_id, user_id)
    if session is not None:
        return session
    if not is_uuid(thread_id):
        raise Faulty("Invalid thread ID: must be a UUID", "thread_id")
    raise NoThread(f"Thread with ID {thread_id} not found", "thread_id")
