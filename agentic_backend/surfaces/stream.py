"""A turn as an event stream in a door's own protocol."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.hub import RETRY_S
from agentic_backend.chat.sse import StreamWriter
from agentic_backend.session.stream import Failed, Turn
from agentic_backend.surfaces.follow import follow_of
from agentic_backend.surfaces.services import DoorServices
from backend_kit.wire import CODES


async def turn_stream(
    services: DoorServices,
    request: Request,
    user_id: str,
    begin: Callable[[], Turn],
    writer: StreamWriter,
    *,
    after: int = 0,
) -> Response:
    """The answer to a request that asks, or comes back to, a turn: what `writer` says of its events to the last one.

    `begin` starts or finds the turn once the stream may be opened: streams of doors count as our own do, for
    `limits.max_sockets`, `per_user.sockets` and `per_address.sockets`, get heartbeats after `deadlines.heartbeat_s`,
    are cut where their client does not read for `deadlines.send_s`, and are waited for in a drain. A client that leaves
    cancels a turn whose ask says so. An ask that is refused becomes `writer.refuse`'s answer. With `after` the stream
    goes on behind the event of that number.
    """
    refusal = await refusal_of_stream(services, request, user_id)
    if refusal is not None:
        return writer.refuse(request, refusal)
    return services.hub.event_stream(request, user_id, lambda: follow_of(begin(), after), writer)


async def refusal_of_stream(services: DoorServices, request: Request, user_id: str) -> Failed | None:
    """Why no further stream is opened; None: it may be, and counts from now on."""
    code = await services.hub.refusal_of_stream(request, user_id)
    if code is None:
        return None
    return Failed(code, refused=True, retry_after_ms=RETRY_S * 1000 if CODES[code].retryable else None)
