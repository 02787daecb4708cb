"""What every door is built from."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_backend.agent import Catalog, TaskAnswer
from agentic_backend.chat.hub import SocketHub
from agentic_backend.session.opening import Sessions
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.store import SessionStore
from backend_kit.kpi import Kpi

AnswerTask = Callable[[Sequence[dict[str, Any]]], Awaitable[TaskAnswer]]
"""Asks the language model for a small task of a front end: a title, tags. The messages are those of a chat completions
request, with text alone. Raises `TurnFailed`."""


@dataclass(frozen=True, slots=True)
class DoorServices:
    """The parts of the service that doors use, built in its lifespan.

    `registry` runs turns that are kept, `unkept` those of which nothing is stored: both with the same agents, limits
    and measurements. `sessions` opens a session by an id of the client's. `base_url` is the path of the service's own
    interface, `public_url` where people open the page (None: nobody said), `max_message_chars` bounds a question,
    `background_s` a turn in the background, in seconds.
    """

    registry: TurnRegistry
    unkept: TurnRegistry
    store: SessionStore
    sessions: Sessions
    catalog: Catalog
    hub: SocketHub
    kpi: Kpi
    answer_task: AnswerTask
    limit_hit: Callable[[str], None]
    base_url: str
    public_url: str | None
    max_message_chars: int
    background_s: float
