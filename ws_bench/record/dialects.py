"""The two protocols of the chat socket as state over events, without a socket or a clock of their own."""

import itertools
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from backend_kit.wire import InvalidJson, dumps, loads
from ws_bench.errors import TurnBroken

Event = Mapping[str, Any]
DONE: Event = {"object": "done"}
"""The end of a stream in OpenAI's shape, which is no JSON."""
_NATIVE_PASSING = frozenset({"accepted", "custom", "message", "restarted", "sources", "thought"})
_NATIVE_BESIDE = frozenset({"session", "heartbeat", "pong"})


@dataclass(frozen=True, slots=True)
class TurnLedger:
    """The server's ledger of a turn: milliseconds by phase, the phases of depth 0, and the total.

    `own` is the time of a phase without the phases inside it, so that these add up. `total_ms` is from the arrival of
    the ask to the creation of the final, None if the service sent none.
    """

    phases: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    top: tuple[str, ...] = ()
    total_ms: float | None = None


class TurnReader(Protocol):
    """Follows one turn from its ask to its end."""

    first_event_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    gaps_ms: "array[float]"
    last_seq: int
    answer: str
    ledger: "TurnLedger"

    def feed(self, event: Event, now: float) -> bool:
        """Take the next event, read at `now` (seconds). True when the turn ended well; raises `TurnBroken`."""


def ask_frame(
    session_id: str, exchange_id: str, message: str, agent: str, runtime_context: Mapping[str, object]
) -> str:
    """The ask of either protocol as a text frame, without the keys that have no value."""
    frame: dict[str, object] = {"type": "ask", "message": message, "agent_id": agent, "client_exchange_id": exchange_id}
    if session_id:
        frame["session_id"] = session_id
    if runtime_context:
        frame["runtime_context"] = dict(runtime_context)
    return dumps(frame).decode()


def completion_frame(session_name: str, agent: str, messages: Sequence[Mapping[str, str]]) -> str:
    """The body of a streamed chat completion, in a session of that name; with none, nothing is kept of it."""
    body: dict[str, object] = {"model": agent, "messages": list(messages), "stream": True}
    if session_name:
        body["metadata"] = {"session_id": session_name}
    return dumps(body).decode()


def run_frame(thread_id: str, agent: str, message: str, stream_mode: Sequence[str]) -> str:
    """A streamed run of LangGraph's API: the path of the request, and in the next line its body.

    Without a thread nothing is kept of it. A thread that is busy refuses: a client asks one thing after the other.
    """
    place = f"/threads/{quote(thread_id, safe='')}" if thread_id else ""
    body = {
        "assistant_id": agent,
        "input": {"messages": [{"role": "user", "content": message}]},
        "stream_mode": list(stream_mode),
        "on_disconnect": "continue",
    }
    if thread_id:
        body["multitask_strategy"] = "reject"
    return f"{place}/runs/stream\n{dumps(body).decode()}"


def resume_frame(session_id: str, exchange_id: str, after_seq: int) -> str:
    """The native frame that asks for the events of a running or just finished turn after one that was read."""
    frame = {"type": "resume", "session_id": session_id, "exchange_id": exchange_id, "after_seq": max(after_seq, 0)}
    return dumps(frame).decode()


def parse_event(frame: bytes) -> Event:
    """The event in a frame. Raises `TurnBroken` if it is not a JSON object."""
    if frame == b"[DONE]":
        return DONE
    try:
        event = loads(frame)
    except InvalidJson as failure:
        raise TurnBroken("protocol_bad_json", str(failure)) from failure
    if not isinstance(event, dict):
        raise TurnBroken("protocol_bad_json", "not an object")
    return event


class Timeline:
    """Times of events and tokens, and the content of the final."""

    def __init__(self) -> None:
        self.first_event_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.gaps_ms: array[float] = array("d")
        self.last_seq = -1
        self.answer = ""
        self.ledger = TurnLedger()

    def note_event(self, now: float) -> None:
        if self.first_event_at is None:
            self.first_event_at = now

    def note_token(self, now: float) -> None:
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            self.gaps_ms.append((now - self.last_token_at) * 1000)
        self.last_token_at = now

    def note_restart(self) -> None:
        """What was read of the turn is replaced by what follows, so its tokens are timed again."""
        self.first_token_at = self.last_token_at = None
        self.gaps_ms = array("d")

    def note_final(self, event: Event) -> None:
        """Store the final. Raises `TurnBroken` if it is not a success."""
        messages = _check_final(event)
        self.answer = answer_of(messages)
        self.ledger = _ledger_of(event, messages)


class CompatibleTurn(Timeline):
    """session?, stream…, final. A token is a whole assistant message with text; the echo of the user's is not one.

    Messages that name another session or exchange are cross-talk. The question once more is a turn that runs again.
    """

    def __init__(self, session_id: str = "", exchange_id: str = "") -> None:
        super().__init__()
        self._session_id = session_id
        self._exchange_id = exchange_id
        self._first_rank: int | None = None
        self._last_rank = -1

    def feed(self, event: Event, now: float) -> bool:
        """See `TurnReader.feed`. Raises `TurnBroken`."""
        self.note_event(now)
        kind = event.get("type")
        if kind == "stream":
            message = event.get("message")
            self._check_owner(message)
            self._check_rank(message)
            if _says_something(message):
                self.note_token(now)
            return False
        if kind == "session":
            return False
        if kind == "final":
            self._check_all(event)
            self.note_final(event)
            return True
        if kind == "error":
            # The service closes the socket after this frame (1011): nothing more can be asked on it.
            raise TurnBroken(f"server_error_event({event.get('code') or 'unknown'})", str(event.get("content", "")))
        if kind == "awaiting_human":
            raise TurnBroken("awaiting_human", "the agent asks for a human answer")
        raise TurnBroken("protocol_unknown_event", str(kind))

    def _check_all(self, event: Event) -> None:
        messages = event.get("messages")
        ranks = []
        for message in messages if isinstance(messages, list) else []:
            self._check_owner(message)
            if isinstance(message, dict) and isinstance(message.get("rank"), int):
                ranks.append(message["rank"])
        if any(second <= first for first, second in itertools.pairwise(ranks)):
            raise TurnBroken("protocol_order", f"ranks of the final: {ranks[:10]}")

    def _check_owner(self, message: object) -> None:
        if not isinstance(message, dict):
            return
        for key, mine in (("exchange_id", self._exchange_id), ("session_id", self._session_id)):
            if mine and message.get(key) not in (None, mine):
                raise TurnBroken("protocol_cross_talk", f"a message of another {key.removesuffix('_id')}")

    def _check_rank(self, message: object) -> None:
        rank = message.get("rank") if isinstance(message, dict) else None
        if isinstance(message, dict) and isinstance(rank, int):
            if rank == self._first_rank and message.get("role") == "user":
                self.note_restart()
            elif rank <= self._last_rank:
                raise TurnBroken("protocol_order", f"rank {rank} after {self._last_rank}")
            self._first_rank = rank if self._first_rank is None else self._first_rank
            self._last_rank = rank


class NativeTurn(Timeline):
    """accepted, thought…, delta…, message…, custom…, sources?, final. A token is a delta; without deltas, an assistant
    message. Reasoning does not count. After `restarted`, at any point, all of that comes again."""

    def __init__(self, exchange_id: str) -> None:
        super().__init__()
        self._exchange_id = exchange_id

    def feed(self, event: Event, now: float) -> bool:
        """See `TurnReader.feed`. Raises `TurnBroken`."""
        kind = event.get("type")
        if kind in _NATIVE_BESIDE:
            return False
        self.note_event(now)
        if kind == "error":
            code = event.get("code") or "unknown"
            raise TurnBroken(f"server_error_event({code})", str(event.get("message", "")), usable=True)
        self._take_place(event)
        if kind == "delta":
            if event.get("text"):
                self.note_token(now)
            return False
        if kind == "message" and self.first_token_at is None and _says_something(event.get("message")):
            self.note_token(now)
        if kind in _NATIVE_PASSING:
            return False
        if kind == "final":
            self.note_final(event)
            return True
        if kind == "cancelled":
            raise TurnBroken("server_cancelled", usable=True)
        if kind == "awaiting_human":
            raise TurnBroken("awaiting_human", "the agent asks for a human answer")
        raise TurnBroken("protocol_unknown_event", str(kind))

    def _take_place(self, event: Event) -> None:
        """Check where in the turn an event is, and whether it starts the turn over."""
        exchange_id, seq = event.get("exchange_id"), event.get("seq")
        if exchange_id != self._exchange_id:
            raise TurnBroken("protocol_cross_talk", "an event of another exchange")
        if not isinstance(seq, int) or seq <= self.last_seq:
            raise TurnBroken("protocol_order", f"seq {seq!r} after {self.last_seq}")
        self.last_seq = seq
        if event.get("type") == "restarted":
            self.note_restart()


def clock() -> float:
    """Seconds on the monotonic clock that every figure of a run uses."""
    return time.perf_counter()


def _says_something(message: object) -> bool:
    if not isinstance(message, dict) or message.get("role") != "assistant" or _is_reasoning(message):
        return False
    parts = message.get("parts")
    return isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") == "text" and part.get("text") for part in parts
    )


def _is_reasoning(message: Mapping[str, Any]) -> bool:
    metadata = message.get("metadata")
    extras = metadata.get("extras") if isinstance(metadata, dict) else None
    return isinstance(extras, dict) and extras.get("reasoning") is True


def _check_final(event: Event) -> list[dict[str, Any]]:
    """The messages of a final. Raises `TurnBroken` if the answer carries an error code or there is no answer."""
    messages = event.get("messages")
    answers = [item for item in messages if isinstance(item, dict)] if isinstance(messages, list) else []
    for message in answers:
        code = _failure_code(message)
        if code:
            raise TurnBroken(f"server_error_event({code})", answer_of([message]), usable=True)
    if not any(message.get("role") == "assistant" for message in answers):
        raise TurnBroken("protocol_empty_final", "final without an assistant message", usable=True)
    return answers


def answer_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the assistant's final message among some messages, empty if there is none."""
    for message in reversed(messages):
        if message.get("role") == "assistant" and message.get("channel", "final") == "final":
            parts = message.get("parts")
            return "".join(
                str(part.get("text", ""))
                for part in (parts if isinstance(parts, list) else [])
                if isinstance(part, dict) and part.get("type") == "text"
            )
    return ""


def after_the_end(frame: bytes, exchange_id: str) -> str:
    """The error class of a frame that came after a turn's terminal event; empty if it may come then (title, pong)."""
    try:
        event = parse_event(frame)
    except TurnBroken as broken:
        return broken.kind
    if event.get("type") in _NATIVE_BESIDE:
        return ""
    return "protocol_after_final" if event.get("exchange_id", exchange_id) == exchange_id else "protocol_cross_talk"


def _ledger_of(event: Event, messages: Sequence[Mapping[str, Any]]) -> TurnLedger:
    """The ledger beside the messages (native), or in the answer's metadata (both protocols)."""
    extras = _extras(messages[-1]) if messages else {}
    rows = _rows(event.get("ledger") or extras.get("ledger"))
    phases: dict[str, float] = {}
    own: dict[str, float] = {}
    inside: dict[int, str] = {}
    for name, depth, _, ms in rows:
        phases[name] = phases.get(name, 0.0) + ms
        own[name] = own.get(name, 0.0) + ms
        # Rows are ordered by start, an outer phase before those inside it, so this is the enclosing phase.
        if depth - 1 in inside:
            outer = inside[depth - 1]
            own[outer] = max(own[outer] - ms, 0.0)
        inside[depth] = name
    top = {name: None for name, depth, _, _ in rows if depth == 0}
    last = max((start + ms for _, depth, start, ms in rows if depth == 0), default=0.0)
    total = extras.get("total_ms")
    if not isinstance(total, int | float):
        total = last if phases else None
    # The answer's own total is taken before it is stored; a phase that ended later still ended before the final.
    return TurnLedger(phases, own, tuple(top), None if total is None else max(float(total), last))


def _rows(given: object) -> list[tuple[str, int, float, float]]:
    """Phase, depth, start and duration of each well-formed row."""
    rows = []
    for row in given if isinstance(given, list) else []:
        if isinstance(row, dict) and isinstance(row.get("phase"), str):
            depth, start, ms = row.get("depth"), row.get("start_ms"), row.get("ms")
            if isinstance(depth, int) and isinstance(start, int | float) and isinstance(ms, int | float):
                rows.append((row["phase"], depth, float(start), float(ms)))
    return rows


def _extras(message: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = message.get("metadata")
    extras = metadata.get("extras") if isinstance(metadata, dict) else None
    return extras if isinstance(extras, dict) else {}


def _failure_code(message: dict[str, Any]) -> str:
    error = _extras(message).get("error")
    if isinstance(error, dict):
        return str(error.get("code") or "unknown")
    return str(error) if error else ""
