"""One run as Server-Sent Events: what is sent for each event of its turn, and from which position."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.sse import HEARTBEAT
from agentic_backend.session.stream import Failed, Turn, TurnEvent, Whole
from agentic_backend.surfaces.agui.places import Position, Start, expect_turn, is_decision, name_of
from agentic_backend.surfaces.agui.writing import RunNames, RunWriter
from agentic_backend.surfaces.follow import EVERYTHING
from backend_kit.http import error_response
from backend_kit.wire import Code


class RunStream:
    """Writes what happens in one run, from a client's position on. Implements `StreamWriter`."""

    headers: Sequence[tuple[bytes, bytes]] = ()
    heartbeat = HEARTBEAT
    over = False
    owed = None

    def __init__(self, names: RunNames, position: Position | None) -> None:
        self._names = names
        self._position = position
        self._writer = RunWriter(names)
        self._behind: dict[str, object] | None = None
        self._turn = ""
        self._name = b""
        self._seq = 0
        self._skipped = 0

    def begin(self, start: Start) -> int:
        """Take what the client has, and return the index of the first event for `write`.

        Raises Conflict for a position in another turn.
        """
        position, turn = self._position, start.turn
        if position is not None:
            expect_turn(position, turn)
        self._turn = name_of(turn)
        self._name = self._turn.encode()
        self._writer = RunWriter(self._names, turn.ask.request_id)
        self._behind = start.behind
        self._seq = turn.events[start.place - 1].seq if start.place else 0
        if position is None:
            return start.place
        place, end = start.place, turn.events.after(position.seq)
        while place < end and not self._writer.ended:
            event, count = turn.events.joined(place, EVERYTHING)
            # What is open then is all that counts, and does not depend on where a text is cut.
            self._encode_event(event)
            place = min(place + count, end)
        self._seq, self._skipped = position.seq, position.more
        return place

    def write(self, turn: Turn, event: TurnEvent) -> bytes:  # noqa: ARG002 - of the port
        """See `StreamWriter`. Each event has the position behind it as its id."""
        encoded = self._encode_event(event)
        before, self._seq = self._seq, event.seq
        if not encoded:
            return b""
        if len(encoded) == 1 and not self._skipped:
            return b"id: %b-%d\ndata: %b\n\n" % (self._name, event.seq, encoded[0])  # mostly: a token
        skipped, self._skipped = self._skipped, 0
        last = len(encoded) - 1
        places = [Position(self._turn, before, at + 1) for at in range(last)] + [Position(self._turn, event.seq)]
        sent = zip(places[skipped:], encoded[skipped:], strict=True)
        return b"".join(b"id: %b\ndata: %b\n\n" % (str(place).encode(), one) for place, one in sent)

    def refuse(self, request: Request, failure: Failed) -> Response:
        """See `StreamWriter`."""
        retry_after_s = None if failure.retry_after_ms is None else failure.retry_after_ms / 1000
        # The user has a different run with that id: in another thread, or for another question.
        field = "runId" if failure.code is Code.CONFLICT and failure.field is None else failure.field
        return error_response(request, failure.code, retry_after_s=retry_after_s, field=field)

    def _encode_event(self, event: TurnEvent) -> list[bytes]:
        if self._writer.ended:
            return []
        if self._behind is not None and not event.terminal:
            whole = event.payload
            if isinstance(whole, Whole) and is_decision(whole, self._behind):
                self._behind = None
            return []
        return self._writer.take(event.payload)
