"""Failures in the shape that OpenAI's clients read: `{"error": {"message", "type", "param", "code"}}`.

Their SDKs choose the exception by the HTTP status, and retry automatically on 408, 409, 429 and 5xx unless
`x-should-retry` says otherwise.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from agentic_backend.errors import BadRequest, Conflict, ExchangeNotFound, SessionLimitReached
from backend_kit.auth import AuthError
from backend_kit.http import DirectRoute, NotThere, retry_after
from backend_kit.wire import CODES, Code, ServiceError, dumps, message_for

_UNREADABLE: Final = 400
"""What OpenAI answers where a request cannot be read; elsewhere it is 422."""
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_THEIR_CODES: Final = {Code.AGENT_NOT_FOUND: "model_not_found", Code.UNAUTHENTICATED: "invalid_api_key"}
"""Codes that their clients know. All others are those of docs/protocol.md#error-codes."""
CANCELLED: Final = "cancelled"
"""The code of a turn that was stopped by somebody other than its reader."""


class Refused(BadRequest):
    """A faulty request: `sentence` tells its author what is wrong, without quoting a value, and `field` where.
    `their_code` is its code in OpenAI's shape."""

    def __init__(self, sentence: str, field: str | None = None, their_code: str = Code.BAD_REQUEST.value) -> None:
        super().__init__(sentence, field=field)
        self.sentence = sentence
        self.their_code = their_code


class NoResponse(ExchangeNotFound):
    """A response that does not exist or is another user's. `field` is where it was named, `their_code` is OpenAI's."""

    sentence: Final = "There is no such response."

    def __init__(self, field: str, their_code: str = "response_not_found") -> None:
        super().__init__(field=field)
        self.their_code = their_code


class CannotNow(Conflict):
    """A request that a response does not allow in its current state; `sentence` and `field` as in `Refused`."""

    def __init__(self, sentence: str, field: str, their_code: str = Code.CONFLICT.value) -> None:
        super().__init__(sentence, field=field)
        self.sentence = sentence
        self.their_code = their_code


def status_of(code: Code) -> int:
    """The HTTP status of a failure."""
    status = CODES[code].status
    return _UNREADABLE if status == 422 else status


def refusals() -> dict[int | str, dict[str, Any]]:
    """`responses=` of this door: the statuses that any of its routes may answer with."""
    text = {"type": "string"}
    fields = {"message": text, "type": text, "param": {"type": ["string", "null"]}, "code": text}
    error = {"type": "object", "properties": fields, "required": [*fields]}
    schema = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    told = {"description": "`error.code` says why", "content": {"application/json": {"schema": schema}}}
    return {status_of(code): told for code in CODES}


def error_json(status: int, message: str, code: str, param: str | None = None) -> bytes:
    """The body of a failure."""
    kind = _TYPES.get(status, "server_error")
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def their_code(code: Code) -> str:
    """The code in OpenAI's shape for a failure of the closed list."""
    return _THEIR_CODES.get(code, code.value)


def error_response(
    status: int,
    body: bytes,
    *,
    retryable: bool,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response to a request that failed before anything of its answer was sent."""
    should_retry = {"x-should-retry": "true" if retryable else "false"}
    given = {**(headers or {}), **should_retry, **retry_after(retry_after_s)}
    return Response(body, status, given, "application/json")


def response_of(error: ServiceError, language: str | None = None) -> Response:
    """The response to a request that ended with a `ServiceError`."""
    status = status_of(error.code)
    message, code, headers = message_for(error.code, language), their_code(error.code), None
    if isinstance(error, Refused | NoResponse | CannotNow):
        message, code = error.sentence, error.their_code
    elif isinstance(error, AuthError):
        message, headers = error.detail, {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, SessionLimitReached):
        message = f"Session limit reached ({error.most} sessions per user)."
    body = error_json(status, message, code, error.field)
    return error_response(status, body, retryable=error.retryable, retry_after_s=error.retry_after_s, headers=headers)


class OpenAiRoute(DirectRoute):
    """A route whose failures have OpenAI's shape, wherever they are raised: in itself, the check of the caller, or the
    limit of a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, which answers where another raises."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except ServiceError as error:
                return response_of(error, request.headers.get("accept-language"))
            except HTTPException as error:
                detail: Any = error.detail
                said = detail if isinstance(detail, dict) else {"message": str(detail)}
                body = error_json(error.status_code, said["message"], said.get("code", "invalid_request"))
                return error_response(error.status_code, body, retryable=False)

        return answer


class Unrouted(NotThere):
    """Answers requests that match none of the door's routes: an unknown path, or a method that it does not have.

    A known path with a trailing slash redirects to it, as everywhere in the service. It matches any path, also one with
    a line break, which no path of Starlette's routes matches.
    """

    methods = None

    def __init__(self, prefix: str, routes: Sequence[BaseRoute]) -> None:
        self.path = f"{prefix}/{{path:path}}"
        self._prefix = prefix
        self._routes = routes
        self.app = self._respond

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request's path belongs to the door."""
        path = scope["path"]
        below = path == self._prefix or path.startswith(f"{self._prefix}/")
        if scope["type"] != "http" or not below:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self, "route": self}

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        near = self._matching(scope)
        if near:
            allowed = sorted({method for route in near for method in getattr(route, "methods", None) or ()})
            return _not_there(405, "method_not_allowed", {"Allow": ", ".join(allowed)})
        without_slash = {**scope, "path": scope["path"].rstrip("/")}
        if without_slash["path"] != scope["path"] and self._matching(without_slash):
            return RedirectResponse(str(Request(without_slash).url))
        return _not_there(404, "unknown_url", {})

    def _matching(self, scope: Scope) -> list[BaseRoute]:
        return [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]


def _not_there(status: int, code: str, headers: Mapping[str, str]) -> Response:
    body = error_json(status, "There is nothing at this address with this method.", code)
    return error_response(status, body, retryable=False, headers=headers)
