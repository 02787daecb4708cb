"""Renders events as frames of either protocol, in JSON as bytes. Pure functions; encoded messages are reused."""

from typing import Any

from agentic_backend.events import Channel, ChatMessage
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    SILENT,
    Accepted,
    Awaiting,
    Cancelled,
    Cited,
    CustomPart,
    Failed,
    Final,
    Payload,
    Restarted,
    SessionChanged,
    TextDelta,
    ThoughtDelta,
    Turn,
    TurnEvent,
    Whole,
)
from backend_kit.wire import CODES, Code, dumps, message_for

_NATIVE_TYPES: dict[type[Payload], bytes] = {
    Accepted: b"accepted",
    Restarted: b"restarted",
    TextDelta: b"delta",
    ThoughtDelta: b"thought",
    CustomPart: b"custom",
    Whole: b"message",
    Cited: b"sources",
    SessionChanged: b"session",
    Final: b"final",
    Awaiting: b"awaiting_human",
    Cancelled: b"cancelled",
    Failed: b"error",
}


def native(turn: Turn, event: TurnEvent) -> bytes:
    """The frame of an event in turnwise.v1; empty for an event that only another door shows."""
    payload = event.payload
    if isinstance(payload, TextDelta):
        return native_delta(turn, event.seq, payload.rank, payload.channel, payload.text)
    if isinstance(payload, SILENT):
        return b""
    number = b',"seq":%d' % event.seq if event.seq else b""
    return b'{"type":"%b",%b%b%b}' % (native_type(payload), turn.head, number, _native_fields(turn, payload))


def native_type(payload: Payload) -> bytes:
    """The `type` of an event in turnwise.v1; not for events without a frame."""
    return _NATIVE_TYPES[type(payload)]


def native_delta(turn: Turn, seq: int, rank: int, channel: Channel, text: str) -> bytes:
    """A delta frame; `seq` is that of the last fragment in `text`."""
    return b'{"type":"delta",%b,"seq":%d,"rank":%d,"channel":"%b","text":%b}' % (
        turn.head,
        seq,
        rank,
        channel.encode(),
        dumps(text),
    )


def native_error(
    code: Code,
    *,
    request_id: str,
    exchange_id: str | None = None,
    retry_after_ms: int | None = None,
    field: str | None = None,
) -> bytes:
    """An error that belongs to no turn; `exchange_id` is the one that the refused frame named, `field` where in it the
    fault is."""
    fields = _error_fields(code, None, request_id, retry_after_ms)
    if field is not None:
        fields["field"] = field
    if exchange_id is not None:
        fields["exchange_id"] = exchange_id
    return dumps(fields)


def renamed(session: Session) -> bytes:
    """The frame for a changed title or pin, in both protocols. It has no exchange and no number."""
    return b'{"type":"session","session":%b}' % dumps(session.listed())


def compatible(turn: Turn, event: TurnEvent) -> list[bytes]:
    """The frames of an event in the compatible protocol, which has none for some events, such as reasoning.

    There the answer is a `stream` frame like any other message, and a new title follows it: both are sent at the end.
    A restart is not announced: the turn's messages are sent again, under the same ranks.
    """
    payload = event.payload
    if isinstance(payload, Whole):
        return [_stream(payload.message)]
    if isinstance(payload, Final):
        answer = _stream(payload.messages[-1])
        return [answer, *_titled(turn), _compatible_final(payload.messages, payload.session)]
    if isinstance(payload, Awaiting):
        asked = b'{"type":"awaiting_human",%b,"payload":%b}' % (turn.head, dumps(payload.payload))
        return [*_titled(turn), asked]
    if isinstance(payload, Cancelled):
        return [_compatible_final(payload.messages, payload.session)]
    if isinstance(payload, Failed):
        if payload.session is None or not payload.messages:
            return [compatible_error(payload.code, turn.ask.session_id, payload.language)]
        return [_compatible_final(payload.messages, payload.session)]
    return []


def _titled(turn: Turn) -> list[bytes]:
    """The frame of a title that the session got in this turn."""
    own = turn.events.without_text(turn.earlier)
    changed = (payload.session for payload in own if isinstance(payload, SessionChanged))
    return [b'{"type":"session","session":%b}' % _session(session) for session in changed]


def _stream(message: ChatMessage) -> bytes:
    return b'{"type":"stream","message":%b}' % message.json


def compatible_error(code: Code, session_id: str, language: str | None = None) -> bytes:
    """An error frame of the compatible protocol; the socket closes with 1011 after it."""
    return dumps(
        {"type": "error", "content": message_for(code, language), "session_id": session_id, "code": code.value}
    )


def _native_fields(turn: Turn, payload: Any) -> bytes:
    """The fields specific to the event type, as JSON with a leading comma, or none."""
    if isinstance(payload, Accepted):
        position = payload.queue_position
        return b"" if position is None else b',"queue_position":%d' % position
    if isinstance(payload, ThoughtDelta):
        return b',"text":%b' % dumps(payload.text)
    if isinstance(payload, CustomPart):
        return b',"data":%b' % payload.json
    if isinstance(payload, Whole):
        return b',"message":%b' % payload.message.json
    if isinstance(payload, Cited):
        return b',"sources":%b' % dumps(payload.hits)
    if isinstance(payload, SessionChanged):
        return b',"session":%b' % _session(payload.session)
    if isinstance(payload, Final):
        return _final_fields(payload)
    if isinstance(payload, Awaiting):
        return b',"payload":%b' % dumps(payload.payload)
    if isinstance(payload, Cancelled):
        return b',"messages":%b,"session":%b' % (_messages(payload.messages), _session(payload.session))
    return _failed_fields(turn, payload) if isinstance(payload, Failed) else b""


def _final_fields(final: Final) -> bytes:
    rest = {
        "unattributed_ms": final.unattributed_ms,
        "durable": final.durable,
        "warnings": final.warnings,
    }
    return b',"messages":%b,"session":%b,"ledger":%b,%b' % (
        _messages(final.messages),
        _session(final.session),
        final.ledger,
        dumps(rest)[1:-1],
    )


def _failed_fields(turn: Turn, failed: Failed) -> bytes:
    fields = _error_fields(failed.code, failed.language, turn.ask.request_id, failed.retry_after_ms)
    del fields["type"]
    fields["partial"] = failed.partial
    if failed.field is not None:
        fields["field"] = failed.field
    return b"," + dumps(fields)[1:-1]


def _error_fields(code: Code, language: str | None, request_id: str, retry_after_ms: int | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": "error",
        "code": code.value,
        "message": message_for(code, language),
        "retryable": CODES[code].retryable,
        "request_id": request_id,
    }
    if retry_after_ms is not None:
        fields["retry_after_ms"] = retry_after_ms
    return fields


def _compatible_final(messages: tuple[ChatMessage, ...], session: Session) -> bytes:
    return b'{"type":"final","messages":%b,"session":%b}' % (_messages(messages), _session(session))


def _messages(messages: tuple[ChatMessage, ...]) -> bytes:
    return b"[%b]" % b",".join(message.json for message in messages)


def _session(session: Session) -> bytes:
    return dumps(session.wire())
