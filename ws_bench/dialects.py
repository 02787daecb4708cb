"""The two protocols of the chat socket as state over events: no socket, no clock of their own."""

import time
from array import array
from collections.abc import Mapping
from typing import Any, Protocol

from backend_kit.wire import InvalidJson, dumps, loads
from ws_bench.errors import TurnBroken

Event = Mapping[str, Any]
_NATIVE_PASSING = frozenset({"accepted", "message", "sources"})
_NATIVE_BESIDE = frozenset({"session", "heartbeat", "pong"})


class TurnReader(Protocol):
    """Follows one turn from its ask to its end."""

    first_token_at: float | None
    gaps_ms: "array[float]"

    def feed(self, event: Event, now: float) -> bool:
        """Take the next event, read at `now` (seconds). True when the turn ended well; raises `TurnBroken`."""


def ask_frame(
    session_id: str, exchange_id: str, message: str, agent: str, runtime_context: Mapping[str, object]
) -> str:
    """The ask of either protocol as a text frame. Keys without a value are left out."""
    frame: dict[str, object] = {"type": "ask", "message": message, "agent_id": agent, "client_exchange_id": exchange_id}
    if session_id:
        frame["session_id"] = session_id
    if runtime_context:
        frame["runtime_context"] = dict(runtime_context)
    return dumps(frame).decode()


def parse_event(frame: bytes) -> Event:
    """The event in a frame. Raises `TurnBroken` where it is not a JSON object."""
    try:
        event = loads(frame)
    except InvalidJson as failure:
        raise TurnBroken("protocol_bad_json", str(failure)) from failure
    if not isinstance(event, dict):
        raise TurnBroken("protocol_bad_json", "not an object")
    return event


class _Timeline:
    """When tokens came: the first one, and the time between one and the next."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None
        self.gaps_ms: array[float] = array("d")
        self._last: float | None = None

    def token(self, now: float) -> None:
        if self._last is None:
            self.first_token_at = now
        else:
            self.gaps_ms.append((now - self._last) * 1000)
        self._last = now


class CompatibleTurn(_Timeline):
    """session?, stream…, final. A token is a whole assistant message with text: the user's echo is none."""

    def feed(self, event: Event, now: float) -> bool:
        """See `TurnReader.feed`."""
        kind = event.get("type")
        if kind == "stream":
            if _says_something(event.get("message")):
                self.token(now)
            return False
        if kind == "session":
            return False
        if kind == "final":
            _check_final(event)
            return True
        if kind == "error":
            # The service closes the socket after this frame (1011): nothing more can be asked on it.
            raise TurnBroken(f"server_error_event({event.get('code') or 'unknown'})", str(event.get("content", "")))
        if kind == "awaiting_human":
            raise TurnBroken("awaiting_human", "the agent asks for a human answer")
        raise TurnBroken("protocol_unknown_event", str(kind))


class NativeTurn(_Timeline):
    """accepted, delta…, message…, sources?, final. A token is a delta; without deltas, an assistant message."""

    def __init__(self, exchange_id: str) -> None:
        super().__init__()
        self._exchange_id = exchange_id
        self._last_seq = -1

    def feed(self, event: Event, now: float) -> bool:
        """See `TurnReader.feed`."""
        kind = event.get("type")
        if kind in _NATIVE_BESIDE:
            return False
        if kind == "error":
            code = event.get("code") or "unknown"
            raise TurnBroken(f"server_error_event({code})", str(event.get("message", "")), usable=True)
        self._check_order(event)
        if kind == "delta":
            if event.get("text"):
                self.token(now)
            return False
        if kind == "message" and self.first_token_at is None and _says_something(event.get("message")):
            self.token(now)
        if kind in _NATIVE_PASSING:
            return False
        if kind == "final":
            _check_final(event)
            return True
        if kind == "cancelled":
            raise TurnBroken("server_cancelled", usable=True)
        if kind == "awaiting_human":
            raise TurnBroken("awaiting_human", "the agent asks for a human answer")
        raise TurnBroken("protocol_unknown_event", str(kind))

    def _check_order(self, event: Event) -> None:
        exchange_id, seq = event.get("exchange_id"), event.get("seq")
        if exchange_id != self._exchange_id:
            raise TurnBroken("protocol_cross_talk", "an event of another exchange")
        if not isinstance(seq, int) or seq <= self._last_seq:
            raise TurnBroken("protocol_order", f"seq {seq!r} after {self._last_seq}")
        self._last_seq = seq


def clock() -> float:
    """Seconds on the monotonic clock that every figure of a run uses."""
    return time.perf_counter()


def _says_something(message: object) -> bool:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    parts = message.get("parts")
    return isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") == "text" and part.get("text") for part in parts
    )


def _check_final(event: Event) -> None:
    """A final whose answer is an apology, or which holds no answer at all, is not a success."""
    messages = event.get("messages")
    answers = [item for item in messages if isinstance(item, dict)] if isinstance(messages, list) else []
    for message in answers:
        code = _failure_code(message)
        if code:
            raise TurnBroken(f"server_error_event({code})", "final with metadata.extras.error", usable=True)
    if not any(message.get("role") == "assistant" for message in answers):
        raise TurnBroken("protocol_empty_final", "final without an assistant message", usable=True)


def _failure_code(message: dict[str, Any]) -> str:
    metadata = message.get("metadata")
    extras = metadata.get("extras") if isinstance(metadata, dict) else None
    error = extras.get("error") if isinstance(extras, dict) else None
    if isinstance(error, dict):
        return str(error.get("code") or "unknown")
    return str(error) if error else ""
