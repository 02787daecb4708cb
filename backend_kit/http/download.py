"""Answers in pieces whose source may fail in the middle, and the export of the audit log, which is one."""

import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime
from starlette.types import Send

from backend_kit.auth import AuditAction, AuditEvent, Identity
from backend_kit.http.errors import refusals
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

_LINES: Final = "application/x-ndjson"


class Download(StreamingResponse):
    """A file in pieces. Where one cannot be read the connection ends before the end that was announced."""

    async def stream_response(self, send: Send) -> None:
        """Send what there is. The server closes what is left open here."""
        try:
            await super().stream_response(send)
        except ServiceError as failure:
            logger.warning("a download was cut off: %s", failure)


class Audited(Protocol):
    """The audit log, as far as its route needs it."""

    def export(self, since: datetime | None, until: datetime | None) -> AsyncIterator[bytes]:
        """The events between two times, in pieces. Raises a `ServiceError` where they cannot be read."""

    def note(self, event: AuditEvent) -> None:
        """Write an event soon."""


def audit_router(
    log: Callable[[], Audited],
    identify: Callable[..., Any],
    expect_operator: Callable[[Identity], None],
    base: str,
) -> APIRouter:
    """The route of the audit log. `log()` is called at each request; `expect_operator` raises for others."""
    router = APIRouter(prefix=base, tags=["audit"], responses=refusals())

    def operator(identity: Annotated[Identity, Depends(identify)]) -> Identity:
        expect_operator(identity)
        return identity

    content: dict[str, Any] = {_LINES: {}}
    lines: dict[int | str, dict[str, Any]] = {200: {"description": "JSON lines", "content": content}}

    @router.get("/audit/events", response_class=Download, responses=lines)
    async def export_audit_events(
        identity: Annotated[Identity, Depends(operator)],
        since: Annotated[AwareDatetime | None, Query()] = None,
        until: Annotated[AwareDatetime | None, Query()] = None,
    ) -> Download:
        """The audit events that were written from `since` on and before `until`, one JSON object a line: for
        operators. An export that goes on begins at the `until` of the one before."""
        audit = log()
        pieces = audit.export(since, until)
        first = await anext(pieces, b"")  # before the answer begins: a database that is away is 503
        audit.note(AuditEvent.by(identity, AuditAction.AUDIT_EXPORTED, "audit", ""))
        headers = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
        return Download(_all(first, pieces), media_type=_LINES, headers=headers)

    return router


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
