"""Failures in the shape that LangGraph's clients read: `{"detail": text}`, with our code and field beside it.

Their SDKs choose the exception by the HTTP status, and show `detail`.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError

from agentic_backend.errors import BadRequest, ExchangeNotFound, SessionLimitReached
from agentic_backend.session.stream import Failed
from backend_kit.auth import AuthError
from backend_kit.http import DirectRoute, request_id, retry_after
from backend_kit.wire import CODES, Code, ServiceError, dumps, field_of, message_for

_BUSY: Final = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."


class Faulty(BadRequest):
    """A faulty request: `sentence` tells its author what is wrong, without quoting a value, and `field` where."""

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence, field=field)
        self.sentence = sentence


class NoThread(ExchangeNotFound):
    """A thread, run or checkpoint that does not exist or is another user's; `sentence` and `field` as in `Faulty`."""

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(field=field)
        self.sentence = sentence


def refusals() -> dict[int | str, dict[str, Any]]:
    """`responses=` of this door: the statuses that any of its routes may answer with."""
    text = {"type": "string"}
    fields = {"detail": text, "code": text, "field": text, "request_id": text}
    schema = {"type": "object", "properties": fields, "required": ["detail", "code"]}
    told = {"description": "`detail` says why, `code` by a word", "content": {"application/json": {"schema": schema}}}
    return {definition.status: told for definition in CODES.values()}


def error_fields(code: Code, text: str, field: str | None, asked_by: str) -> dict[str, str]:
    """The body of a failure; of one in a stream, its data."""
    told = {"detail": text, "code": code.value, "request_id": asked_by}
    return told if field is None else {**told, "field": field}


def response_of(error: ServiceError, request: Request) -> Response:
    """The response to a request that ended with a `ServiceError`."""
    text, headers = message_for(error.code, request.headers.get("accept-language")), {}
    if isinstance(error, Faulty | NoThread):
        text = error.sentence
    elif isinstance(error, AuthError):
        text, headers = error.detail, {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, SessionLimitReached):
        text = f"Session limit reached ({error.most} sessions per user)."
    told = error_fields(error.code, text, error.field, request_id(request.scope))
    return _answer(status_of(error.code), told, {**headers, **retry_after(error.retry_after_s)})


def refusal_of(failed: Failed, request: Request) -> Response:
    """The response to a request whose turn was refused before it began."""
    busy = failed.code is Code.SESSION_BUSY
    text = _BUSY if busy else message_for(failed.code, request.headers.get("accept-language"))
    told = error_fields(failed.code, text, failed.field, request_id(request.scope))
    after_ms = failed.retry_after_ms
    return _answer(status_of(failed.code), told, retry_after(None if after_ms is None else after_ms / 1000))


def status_of(code: Code) -> int:
    """The HTTP status of a failure. A session that one may not read is answered like one that does not exist."""
    return 404 if code is Code.SESSION_NOT_FOUND else CODES[code].status


def _answer(status: int, body: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(body), status, dict(headers or {}), "application/json")


class LangGraphRoute(DirectRoute):
    """A route whose failures have the shape of this door, wherever they are raised."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, which answers where another raises."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except ServiceError as error:
                return response_of(error, request)
            except RequestValidationError as error:
                return response_of(BadRequest("not as described", field=field_of(error.errors())), request)
            except HTTPException as error:
                detail: Any = error.detail
                said = detail if isinstance(detail, dict) else {"message": str(detail)}
                code = said.get("code", Code.BAD_REQUEST.value)
                fields = {"detail": said["message"], "code": code, "request_id": request_id(request.scope)}
                return _answer(error.status_code, fields)

        return answer
