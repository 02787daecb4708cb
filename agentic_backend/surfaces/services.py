"""What every door is built from."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentic_backend.agent import Catalog, TaskAnswer
from agentic_backend.agent.created import CreatedAgents
from agentic_backend.agent.hosted.memory import UserMemory
from agentic_backend.agent.policy import AgentPolicy
from agentic_backend.chat.hub import SocketHub
from agentic_backend.session.attachments import Leftovers
from agentic_backend.session.opening import Sessions
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.store import SessionStore
from agentic_backend.session.threads import ThreadStore
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi

AnswerTask = Callable[[Sequence[dict[str, Any]]], Awaitable[TaskAnswer]]
"""Asks the language model for a small task of a front end: a title, tags. The messages are those of a chat completions
request, with text alone. Raises `TurnFailed`."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """Who may use a door. `origins` are the pages that may call; `authenticated`: callers need a token; `issuer` is the
    address of the token's issuer, None if there is none."""

    origins: tuple[str, ...] = ()
    authenticated: bool = True
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class McpSessions:
    """Sessions of MCP clients. `per_user` 0: none. One that is not used for `idle_s` seconds ends."""

    per_user: int = 8
    idle_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class DoorServices:
    """The parts of the service that doors use, built in its lifespan.

    `registry` runs turns that are kept, `unkept` those of which nothing is stored: both with the same agents, limits
    and measurements. `threads` are the sessions with their metadata, `leftovers` deletes the documents of deleted
    attachments, `sessions` opens a session by an id of the client's. `base_url` is the path of the service's own
    interface, `max_message_chars` bounds a question, `background_s` a turn in the background, in seconds.
    `public_url` is where people open the chat page, None if that is not configured; `title` the name of the service.
    """

    registry: TurnRegistry
    unkept: TurnRegistry
    store: SessionStore
    threads: ThreadStore
    leftovers: Leftovers
    sessions: Sessions
    catalog: Catalog
    made: CreatedAgents | None
    """Agents that clients make; None where they come from the configuration alone."""
    policy: AgentPolicy
    memory: UserMemory
    hub: SocketHub
    kpi: Kpi
    answer_task: AnswerTask
    admit_task: Callable[[str], Awaitable[None]]
    """Counts a task of the user with this id. Raises `RateLimited` if the user exceeds their rate of asks."""
    limit_hit: Callable[[str], None]
    base_url: str
    max_message_chars: int
    background_s: float
    public_url: str | None
    title: str
    tasks: TaskRegistry
    entrance: Entrance
    mcp_sessions: McpSessions
    at_drain: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Called when the running turns have ended, before the server closes, so that a door can close what is still
    open."""
