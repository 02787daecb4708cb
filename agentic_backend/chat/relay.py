"""Renders events as frames of either protocol. Pure functions; encoded message bytes are reused."""

from typing import Any

from agentic_backend.events import ChatMessage
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    Accepted,
    Awaiting,
    Cancelled,
    Cited,
    Failed,
    Final,
    Payload,
    SessionChanged,
    TextDelta,
    Turn,
    TurnEvent,
    Whole,
)
from backend_kit.wire import CODES, Code, dumps, message_for

_NATIVE_TYPES = {
    Accepted: "accepted",
    TextDelta: "delta",
    Whole: "message",
    Cited: "sources",
    SessionChanged: "session",
    Final: "final",
    Awaiting: "awaiting_human",
    Cancelled: "cancelled",
    Failed: "error",
}


def native(turn: Turn, event: TurnEvent) -> str:
    """The frame of an event in turnwise.v1."""
    payload = event.payload
    if isinstance(payload, TextDelta):
        return native_delta(turn, event.seq, payload.rank, payload.channel, payload.text)
    number = f',"seq":{event.seq}' if event.seq else ""
    return f'{{"type":"{native_type(payload)}",{turn.head}{number}{_native_fields(turn, payload)}}}'


def native_type(payload: Payload) -> str:
    """The `type` of an event in turnwise.v1."""
    return _NATIVE_TYPES[type(payload)]


def native_delta(turn: Turn, seq: int, rank: int, channel: str, text: str) -> str:
    """A delta frame; `seq` is that of the last fragment in `text`."""
    return (
        f'{{"type":"delta",{turn.head},"seq":{seq},"rank":{rank},"channel":"{channel}","text":{dumps(text).decode()}}}'
    )


def native_error(
    code: Code, *, request_id: str, exchange_id: str | None = None, retry_after_ms: int | None = None
) -> str:
    """An error that belongs to no turn; `exchange_id` is the one that the refused frame named."""
    fields = _error_fields(code, None, request_id, retry_after_ms)
    if exchange_id is not None:
        fields["exchange_id"] = exchange_id
    return dumps(fields).decode()


def native_renamed(session: Session) -> str:
    """The frame for a title that changed outside a turn: it has no exchange and no number."""
    return f'{{"type":"session","session":{_session(session)}}}'


def compatible(turn: Turn, event: TurnEvent) -> list[str]:
    """The frames of an event in the compatible protocol, which has none for some events.

    There the answer is a `stream` frame like any other message, and a new title follows it: both are sent at the end.
    """
    payload = event.payload
    if isinstance(payload, Whole):
        return [_stream(payload.message)]
    if isinstance(payload, Final):
        answer = _stream(payload.messages[-1])
        return [answer, *_titled(turn), _compatible_final(payload.messages, payload.session)]
    if isinstance(payload, Awaiting):
        return [*_titled(turn), f'{{"type":"awaiting_human",{turn.head},"payload":{dumps(payload.payload).decode()}}}']
    if isinstance(payload, Cancelled):
        return [_compatible_final(payload.messages, payload.session)]
    if isinstance(payload, Failed):
        if payload.session is None or not payload.messages:
            return [compatible_error(payload.code, turn.ask.session_id, payload.language)]
        return [_compatible_final(payload.messages, payload.session)]
    return []


def _titled(turn: Turn) -> list[str]:
    """The frame of a title that the session got in this turn."""
    changes = [event.payload for event in turn.own_events if isinstance(event.payload, SessionChanged)]
    return [f'{{"type":"session","session":{_session(change.session)}}}' for change in changes]


def _stream(message: ChatMessage) -> str:
    return f'{{"type":"stream","message":{message.json.decode()}}}'


def compatible_error(code: Code, session_id: str, language: str | None = None) -> str:
    """An error frame of the compatible protocol; the socket closes with 1011 after it."""
    body = {"type": "error", "content": message_for(code, language), "session_id": session_id, "code": code.value}
    return dumps(body).decode()


def _native_fields(turn: Turn, payload: Any) -> str:
    """The fields specific to the event type, as JSON text with a leading comma, or ""."""
    if isinstance(payload, Accepted):
        position = payload.queue_position
        return "" if position is None else f',"queue_position":{position}'
    if isinstance(payload, Whole):
        return f',"message":{payload.message.json.decode()}'
    if isinstance(payload, Cited):
        return f',"sources":{dumps(payload.hits).decode()}'
    if isinstance(payload, SessionChanged):
        return f',"session":{_session(payload.session)}'
    if isinstance(payload, Final):
        return _final_fields(payload)
    if isinstance(payload, Awaiting):
        return f',"payload":{dumps(payload.payload).decode()}'
    if isinstance(payload, Cancelled):
        return f',"messages":{_messages(payload.messages)},"session":{_session(payload.session)}'
    return _failed_fields(turn, payload)


def _final_fields(final: Final) -> str:
    rest = {
        "ledger": final.ledger,
        "unattributed_ms": final.unattributed_ms,
        "durable": final.durable,
        "warnings": final.warnings,
    }
    return f',"messages":{_messages(final.messages)},"session":{_session(final.session)},{dumps(rest).decode()[1:-1]}'


def _failed_fields(turn: Turn, failed: Failed) -> str:
    fields = _error_fields(failed.code, failed.language, turn.ask.request_id, failed.retry_after_ms)
    del fields["type"]
    fields["partial"] = failed.partial
    return "," + dumps(fields).decode()[1:-1]


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


def _compatible_final(messages: tuple[ChatMessage, ...], session: Session) -> str:
    return f'{{"type":"final","messages":{_messages(messages)},"session":{_session(session)}}}'


def _messages(messages: tuple[ChatMessage, ...]) -> str:
    return "[" + ",".join(message.json.decode() for message in messages) + "]"


def _session(session: Session) -> str:
    return dumps(session.wire()).decode()
