"""The events of a turn as lines of JSON, from one instance to another, which renders the same frames from them.

A line is a list of events, each `[seq, kind, field…]`. Whatever is JSON already (a message, a ledger) is sent as text:
its bytes are preserved, and its nesting does not count here. What was asked is sent first, since clients see some of
it.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from agentic_backend.events import Channel, ChatMessage
from agentic_backend.session import stream
from agentic_backend.session.models import Durability, Session
from agentic_backend.session.stream import Ask, HumanAnswer, OnDisconnect, Payload, TextDelta, TurnEvent
from backend_kit.wire import Code, dumps, loads

MAX_LINE_BYTES: Final = 64 << 20
"""A longer line is malformed: one event is at most as long as all of its turn's messages, plus JSON's quoting."""
_CHANNELS: Final = frozenset(get_args(Channel))
_DURABILITIES: Final = frozenset(get_args(Durability))
_DISCONNECTS: Final = frozenset(get_args(OnDisconnect))
_ASKED: Final = ("agent_id", "message", "request_id", "language", "model", "on_disconnect", "note")
_SESSION_FIELDS: Final = tuple(one.name for one in fields(Session))


def encode_ask(ask: Ask) -> bytes:
    """What was asked, as a line without its end: never with credentials, nor a conversation that came with it."""
    human = None if ask.human is None else {"payload": ask.human.payload}
    return dumps({**{name: getattr(ask, name) for name in _ASKED}, "human": human})


def decode_ask(line: bytes, *, user_id: str, session_id: str, exchange_id: str) -> Ask:
    """The ask of a line by `encode_ask`, received now. Raises ValueError as `decode_events` does."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("an ask is too long")
    asked = _dict(loads(line))
    if asked.keys() != {*_ASKED, "human"} or _text(asked["on_disconnect"]) not in _DISCONNECTS:
        raise ValueError("not an ask")
    for name in ("agent_id", "message", "request_id"):
        _text(asked[name])
    for name, read in (("language", _text), ("model", _text), ("note", _dict), ("human", _dict)):
        if asked[name] is not None:
            read(asked[name])
    human = asked.pop("human")
    return Ask(
        session_id=session_id,
        exchange_id=exchange_id,
        user_id=user_id,
        received_at=time.perf_counter(),
        human=None if human is None else HumanAnswer(human.get("payload")),
        **asked,
    )


def encode_event(event: TurnEvent) -> bytes:
    """One event of a line. It has no line break."""
    payload = event.payload
    if type(payload) is TextDelta:  # nearly all are
        return dumps((event.seq, "delta", payload.rank, payload.channel, payload.text))
    kind = _OF_TYPE[type(payload)]
    written = [form.write(getattr(payload, name)) for name, form in zip(kind.names, kind.forms, strict=True)]
    return dumps((event.seq, kind.name, *written))


def join_events(encoded: Iterable[bytes]) -> bytes:
    """The line of such events."""
    return b"[%b]" % b",".join(encoded)


def encode_events(events: Iterable[TurnEvent]) -> bytes:
    """The events as a line, without its end."""
    return join_events(map(encode_event, events))


def decode_events(line: bytes) -> list[TurnEvent]:
    """The events of a line. Raises ValueError, and nothing else, for anything that `encode_events` does not write."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("a line of events is too long")
    return [_decoded(row) for row in _list(loads(line))]


def _decoded(row: Any) -> TurnEvent:
    seq, name, *values = _list(row, least=2)
    kind = _OF_NAME.get(name) if isinstance(name, str) else None
    if kind is None or len(values) != len(kind.forms):
        raise ValueError("an event of no known kind")
    read = [form.read(value) for value, form in zip(values, kind.forms, strict=True)]
    return TurnEvent(_count(seq), kind.payload(*read))


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Form:
    """How a field is read (raising ValueError for any other value) and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = _as_it_is


def _list(value: Any, least: int = 0) -> list[Any]:
    if type(value) is not list or len(value) < least:
        raise ValueError("not a list")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not a number of something")
    return value


def _whole(value: Any) -> int:
    """LangGraph counts steps from -1."""
    if type(value) is not int:
        raise ValueError("not a whole number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def _number(value: Any) -> float:
    if value is None:  # what is not a number is written like this
        return float("nan")
    if type(value) not in (int, float):
        raise ValueError("not a number")
    return value  # type: ignore[no-any-return]  # an int is written as one again


def _dict(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("not an object")
    return value


def _channel(value: Any) -> str:
    """It becomes part of a frame as it is."""
    if _text(value) not in _CHANNELS:
        raise ValueError("not a channel")
    return value  # type: ignore[no-any-return]


def _durability(value: Any) -> str:
    if _text(value) not in _DURABILITIES:
        raise ValueError("no such durability")
    return value  # type: ignore[no-any-return]


def _json_bytes(value: Any) -> bytes:
    encoded = _text(value).encode()
    loads(encoded)  # it becomes part of a frame as it is
    return encoded


def _message(value: Any) -> ChatMessage:
    try:
        message = ChatMessage.decode(_text(value).encode())
    except (TypeError, KeyError):
        raise ValueError("not a message") from None
    _count(message.rank)
    for text in (message.session_id, message.exchange_id, message.timestamp, message.role, message.channel):
        _text(text)
    return message


def _session(value: Any) -> Session:
    found = _dict(loads(_text(value)))
    if found.keys() != set(_SESSION_FIELDS):
        raise ValueError("not a session")
    for name in ("id", "user_id", "agent_id", "title", "updated_at"):
        _text(found[name])
    _count(found["next_rank"])
    _count(found["version"])
    _dict(found["preferences"])
    _truth(found["rested"])
    found["attachments"] = tuple(_attachment(one) for one in _list(found["attachments"]))
    return Session(**found)


def _attachment(value: Any) -> tuple[str, str]:
    if len(_list(value)) != 2:
        raise ValueError("not an attachment")
    return _text(value[0]), _text(value[1])


def _session_text(session: Session) -> str:
    # Not the dataclass itself: of a dict, what JSON cannot hold is replaced, as in frames.
    return _json_text({name: getattr(session, name) for name in _SESSION_FIELDS})


def _json_text(value: Any) -> str:
    return dumps(value).decode()


def _optional(form: _Form) -> _Form:
    return _Form(
        lambda value: None if value is None else form.read(value),
        lambda value: None if value is None else form.write(value),
    )


def _tuple_of(form: _Form) -> _Form:
    return _Form(
        lambda value: tuple(map(form.read, _list(value))),
        lambda values: tuple(map(form.write, values)),
    )


class _Kind:
    """One kind of event: its name in a line, its payload, and the form of each of its fields, in their order."""

    def __init__(self, name: str, payload: type[Payload], *forms: _Form) -> None:
        self.name = name
        self.payload = payload
        self.names = tuple(one.name for one in fields(payload))
        self.forms = forms


_COUNT: Final = _Form(_count)
_TEXT: Final = _Form(_text)
_TRUTH: Final = _Form(_truth)
_JSON: Final = _Form(_json_bytes, bytes.decode)
_OBJECT: Final = _Form(lambda value: _dict(loads(_text(value))), _json_text)
_HITS: Final = _Form(lambda value: [_dict(hit) for hit in _list(loads(_text(value)))], _json_text)
_MESSAGE: Final = _Form(_message, lambda message: message.json.decode())
_MESSAGES: Final = _tuple_of(_MESSAGE)
_SESSION: Final = _Form(_session, _session_text)

KINDS: Final = (
    _Kind("accepted", stream.Accepted, _optional(_COUNT)),
    _Kind("restarted", stream.Restarted, _COUNT),
    _Kind("delta", TextDelta, _COUNT, _Form(_channel), _TEXT),
    _Kind("thought", stream.ThoughtDelta, _TEXT),
    _Kind("custom", stream.CustomPart, _JSON),
    _Kind("graph", stream.GraphPart, _TEXT, _tuple_of(_TEXT), _JSON),
    _Kind("spoken_by", stream.SpokenBy, _COUNT, _TEXT, _TEXT, _Form(_whole), _tuple_of(_TEXT)),
    _Kind("message", stream.Whole, _MESSAGE),
    _Kind("sources", stream.Cited, _HITS),
    _Kind("session", stream.SessionChanged, _SESSION),
    _Kind(
        "final",
        stream.Final,
        _MESSAGES,
        _SESSION,
        _JSON,
        _Form(_number),
        _Form(_durability),
        _tuple_of(_TEXT),
    ),
    _Kind("awaiting", stream.Awaiting, _OBJECT, _MESSAGES, _SESSION, _optional(_OBJECT)),
    _Kind("cancelled", stream.Cancelled, _MESSAGES, _SESSION),
    _Kind(
        "failed",
        stream.Failed,
        _Form(Code, lambda code: code.value),
        _TRUTH,
        _optional(_TEXT),
        _optional(_COUNT),
        _TRUTH,
        _MESSAGES,
        _optional(_SESSION),
        _optional(_TEXT),
    ),
)
"""Every kind of event; one more is a row here."""
_OF_TYPE: Final = {kind.payload: kind for kind in KINDS}
_OF_NAME: Final = {kind.name: kind for kind in KINDS}
