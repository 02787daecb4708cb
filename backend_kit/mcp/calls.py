"""What handlers of an MCP server share: whose call it is, its arguments, and how it fails."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar, cast

from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    TextContent,
)
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from backend_kit.auth import Identity, KeyScope, ScopeMissing
from backend_kit.http import request_id
from backend_kit.wire import CODES, Code, ServiceError, message_for

logger = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Request]
Answer = CallToolResult | InputRequiredResult
CallTool = Callable[[Context, CallToolRequestParams], Awaitable[Answer]]

CALLER = "mcp_caller"
"""Where the state of a request holds the `Identity` of its caller."""

Arguments = TypeVar("Arguments", bound=BaseModel)


class BadArguments(ServiceError):
    """Arguments of a tool that do not fit its schema. `field` is the first that does not."""

    code: ClassVar[Code] = Code.BAD_REQUEST


def caller_of(ctx: Context) -> Identity:
    """The sender of this message, as verified by the door; not the user who opened the session."""
    return cast("Identity", getattr(_request(ctx).state, CALLER))


def language_of(ctx: Context) -> str | None:
    """The languages that the caller wants (Accept-Language)."""
    return cast("str | None", _request(ctx).headers.get("accept-language"))


def expect_scope(ctx: Context, scope: KeyScope) -> None:
    """Raise `ScopeMissing` for a caller whose API key does not have a scope; without a key every caller may."""
    grant = caller_of(ctx).grant
    if grant is not None and not grant.may(scope):
        raise ScopeMissing("the key lacks a scope", field=f"scope:{scope}")


def arguments_of(shape: type[Arguments], given: Mapping[str, Any] | None) -> Arguments:
    """The arguments of a call. Raises `BadArguments`, which names the first argument that is missing or wrong."""
    try:
        return shape.model_validate(given or {})
    except ValidationError as failure:
        place = failure.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
        # Names of our own alone: what else was sent is the caller's.
        known = bool(place) and place[0] in shape.model_fields
        raise BadArguments("a call's arguments", field=str(place[0]) if known else None) from None


def answering(call: CallTool) -> CallTool:
    """The tools of a server, whose failures are results that a model can read (`failed`)."""

    async def answered(ctx: Context, params: CallToolRequestParams) -> Answer:
        try:
            return await call(ctx, params)
        except ServiceError as failure:
            return failed(failure, language_of(ctx))

    return answered


def failed(failure: ServiceError, language: str | None) -> CallToolResult:
    """A failure as the result of a tool: `{code, message, retryable}` and where known `field`, `retry_after_s`."""
    return refused(detail_of(failure, language))


def refused(detail: dict[str, Any]) -> CallToolResult:
    """A failure with these details as the result of a tool, which a model reads: its code, its place, its text."""
    place = f" ({detail['field']})" if detail.get("field") else ""
    text = f"{detail['code']}{place}: {detail['message']}"
    return CallToolResult(content=[TextContent(text=text)], structured_content=detail, is_error=True)


def detail_of(failure: ServiceError, language: str | None) -> dict[str, Any]:
    """A failure as clients read it, without anything of our own inside."""
    return detail(failure.code, language, field=failure.field, retry_after_s=failure.retry_after_s)


def detail(
    code: Code, language: str | None, *, field: str | None = None, retry_after_s: float | None = None
) -> dict[str, Any]:
    """A code as clients read it. `field` is where in the arguments the fault is, None if that is not known."""
    found: dict[str, Any] = {
        "code": code.value,
        "message": message_for(code, language),
        "retryable": CODES[code].retryable,
    }
    if field is not None:
        found["field"] = field
    if retry_after_s is not None:
        found["retry_after_s"] = retry_after_s
    return found


async def guarded(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """A middleware of a server: a failure leaves it as an `MCPError` with one of our codes, never with its own text.

    Without it the SDK answers a client of the older protocol with the text of any exception.
    """
    try:
        return await call_next(ctx)
    except ServiceError as failure:
        told = detail_of(failure, language_of(ctx))
        code = INVALID_PARAMS if failure.status < 500 else INTERNAL_ERROR
        raise MCPError(code, told["message"], told) from None
    except BaseException as failure:
        if isinstance(failure, Exception) and not isinstance(failure, MCPError | ValidationError):
            known = request_id(_request(ctx).scope)
            logger.exception("request %s failed: %s", known, type(failure).__name__)
            told = {"code": Code.INTERNAL.value, "request_id": known}
            raise MCPError(INTERNAL_ERROR, message_for(Code.INTERNAL, language_of(ctx)), told) from None
        raise


def _request(ctx: ServerRequestContext[Any, Any]) -> Any:
    assert ctx.request is not None  # every message comes over HTTP
    return ctx.request
