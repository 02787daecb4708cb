"""REST of a session's preferences: a JSON object stored for the client, which turns carry but never change."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict

from agentic_backend.chat.frames import storable_json
from agentic_backend.errors import SessionNotFound, TooLarge
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.store import SessionStore, load_owned
from backend_kit.kpi import Kpi
from backend_kit.wire import dumps

MAX_BYTES: Final = 16 * 1024
"""Size limit of the preferences as compact JSON: every frame with a session repeats them."""

SessionId = Annotated[str, PathParam(min_length=1, max_length=64)]


class Preferences(BaseModel):
    """Body of `PUT /chatbot/session/{id}/preferences`, and of both answers."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    preferences: Annotated[dict[str, Any], AfterValidator(storable_json)]


class PreferenceServices(Protocol):
    """What the routes need."""

    @property
    def store(self) -> SessionStore:
        """Where preferences are kept."""

    @property
    def registry(self) -> TurnRegistry:
        """Its turns carry them."""

    @property
    def kpi(self) -> Kpi:
        """Times their phases."""


def add_preferences(router: APIRouter, services: Callable[[], PreferenceServices], caller: Any) -> None:
    """Add the two routes. `services()` is called at each request: its result exists once the app runs."""

    @router.get("/chatbot/session/{session_id}/preferences")
    async def preferences(session_id: SessionId, identity: caller) -> dict[str, Any]:
        """The session's preferences: a JSON object of the client's own."""
        session = await load_owned(services().store, session_id, identity.uid)
        return {"preferences": session.preferences}

    @router.put("/chatbot/session/{session_id}/preferences")
    async def set_preferences(session_id: SessionId, body: Preferences, identity: caller) -> dict[str, Any]:
        """Replace the session's preferences, by at most 16 KiB."""
        if len(dumps(body.preferences)) > MAX_BYTES:
            raise TooLarge(field="preferences")
        state = services()
        with state.kpi.phase("session_write"):
            session = await state.store.change(session_id, identity.uid, preferences=body.preferences)
        if session is None:
            raise SessionNotFound
        await state.registry.prefer(session_id, identity.uid, session.preferences)
        return {"preferences": session.preferences}
