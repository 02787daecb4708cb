"""REST of feedback: a user's ratings of answers, which that user can see and delete, and operators read."""

import secrets
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from agentic_backend.errors import MessageNotFound, SessionNotFound
from agentic_backend.events import utc_now
from agentic_backend.rest.kpi_routes import KpiViews, seen_by_operators
from agentic_backend.session.store import Feedback, FeedbackStore, FeedbackWanted
from backend_kit.wire import storable

_MAX_COMMENT_CHARS: Final = 4000
_MAX_LISTED: Final = 1000

Reason = Literal[
    "not_true", "not_complete", "wrong_sources", "too_long", "true", "complete", "good_sources", "clear", "other"
]
"""Why an answer was rated as it was."""

_Id = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(storable)]
_SessionId = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(storable)]


class GiveFeedback(BaseModel):
    """Body of `POST /chatbot/feedback`. `messageId` is the rank of a message, or the exchange whose
    answer it is."""

    model_config = ConfigDict(hide_input_in_errors=True)

    rating: Annotated[int, Field(ge=1, le=5, strict=True)]
    comment: Annotated[str, StringConstraints(max_length=_MAX_COMMENT_CHARS), AfterValidator(storable)] | None = None
    reason: Reason | None = None
    message_id: Annotated[_Id, Field(alias="messageId")]
    session_id: Annotated[_SessionId, Field(alias="sessionId")]
    agent_name: Annotated[_Id, Field(alias="agentName")]


def add_feedback(router: APIRouter, store: Callable[[], FeedbackStore], caller: Any) -> None:
    """Add the three routes. `store()` is called at each request: its result exists once the app runs."""

    @router.post("/chatbot/feedback", status_code=204)
    async def give_feedback(body: GiveFeedback, identity: caller) -> None:
        """Rate a message of one of the caller's conversations; a second rating replaces the first."""
        feedback = Feedback(
            id=secrets.token_urlsafe(8),
            session_id=body.session_id,
            user_id=identity.uid,
            message_id=body.message_id,
            agent_name=body.agent_name,
            rating=body.rating,
            reason=body.reason,
            comment=body.comment,
            created_at=utc_now(),
        )
        match await store().put(feedback):
            case "no_session":
                raise SessionNotFound
            case "no_message":
                raise MessageNotFound

    @router.get("/chatbot/feedback")
    async def list_feedback(
        identity: caller,
        session_id: Annotated[_SessionId | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = _MAX_LISTED,
        offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    ) -> list[dict[str, Any]]:
        """The feedback that the caller gave, newest first."""
        found = await store().of_user(identity.uid, session_id, limit, offset)
        return [feedback.wire() for feedback in found]

    @router.delete("/chatbot/feedback/{feedback_id}", status_code=204)
    async def delete_feedback(feedback_id: Annotated[_SessionId, PathParam()], identity: caller) -> None:
        """Delete a feedback that the caller gave."""
        if not await store().delete(feedback_id, identity.uid):
            raise HTTPException(404, "Feedback not found.")


def add_feedback_reading(
    router: APIRouter, store: Callable[[], FeedbackStore], views: Callable[[], KpiViews], caller: Any
) -> None:
    """Add the route of those who may see `views()`. It names no user."""

    @router.get("/kpi/feedback", dependencies=[Depends(seen_by_operators(views, caller))])
    async def read_feedback(
        agent: Annotated[_Id | None, Query()] = None,
        rating: Annotated[int | None, Query(ge=1, le=5)] = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = 100,
        offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    ) -> list[dict[str, Any]]:
        """What everybody said of answers, newest first: for operators."""
        found = await store().of_everybody(FeedbackWanted(agent, rating, limit, offset))
        return [one.wire() for one in found]
