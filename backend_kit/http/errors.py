"""Renders failures on REST: one renderer for each kind, and none shows input or internals."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from backend_kit.auth import AuthError
from backend_kit.http.context import REQUEST_ID_HEADER, request_id
from backend_kit.wire import CODES, Code, ServiceError, dumps, field_of, message_for

CAUSE_HEADER = "X-Cause"
logger = logging.getLogger(__name__)

_REFUSED = {"application/json": {"schema": {"type": "object", "required": ["detail"]}}}


def refusals() -> dict[int | str, dict[str, Any]]:
    """`responses=` of an application: the statuses of the closed list, which any route may answer with."""
    return {info.status: {"description": "`detail.code` says why", "content": _REFUSED} for info in CODES.values()}


def install_error_handlers(app: FastAPI, cors_headers: Callable[[Request], Mapping[str, str]] = lambda _: {}) -> None:
    """Render `ServiceError`, `AuthError`, validation errors and uncaught exceptions. 404 and 405 stay FastAPI's.

    `cors_headers` are those of an answer to a request, for what is sent around the middleware that adds them.
    """

    async def unhandled(request: Request, error: Exception) -> Response:
        # Starlette raises the error again after this response, so uvicorn logs its traceback just after this line. It
        # sends it outside of all middleware.
        logger.error("request %s failed: %s", request_id(request.scope), type(error).__name__)
        response = error_response(request, Code.INTERNAL, with_request_id=True)
        response.headers.update(cors_headers(request))
        return response

    app.add_exception_handler(AuthError, _auth_error)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, unhandled)


def error_response(
    request: Request,
    code: Code,
    *,
    retry_after_s: float | None = None,
    cause: str = "",
    field: str | None = None,
    with_request_id: bool = False,
) -> Response:
    """`{"detail": {"code", "message"}}` with the code's status, in the language that the request asks for.

    `field` is where in the request the fault is, None if that is not known; the detail then has it.
    """
    detail = {"code": code.value, "message": message_for(code, request.headers.get("accept-language"))}
    if field is not None:
        detail["field"] = field
    headers = {CAUSE_HEADER: cause} if cause else {}
    if with_request_id:
        detail["request_id"] = headers[REQUEST_ID_HEADER] = request_id(request.scope)
    headers |= retry_after(retry_after_s)
    return Response(dumps({"detail": detail}), CODES[code].status, headers, "application/json")


def retry_after(seconds: float | None) -> dict[str, str]:
    """The header that says after how many seconds to try again, in whole ones and at least 1; none for None."""
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}


async def _auth_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, AuthError)
    return Response(dumps({"detail": error.detail}), error.status, {"WWW-Authenticate": "Bearer"}, "application/json")


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return error_response(request, error.code, retry_after_s=error.retry_after_s, cause=error.cause, field=error.field)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # FastAPI's own body quotes the input, tokens included (docs/libraries.md#U11).
    return error_response(request, Code.BAD_REQUEST, field=field_of(error.errors(), skip=1))
