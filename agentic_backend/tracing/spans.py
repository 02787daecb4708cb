"""Encodes the ledger of an ended turn as OTLP: one span for the turn, one for each row, no clock read in between.

Starts and lengths are those of the rows, in whole microseconds; the turn's arrival is put on the wall clock once.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Literal

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from agentic_backend.tracing import names
from agentic_backend.tracing.names import Operation
from agentic_backend.tracing.traceparent import TraceParent
from agentic_backend.tracing.turn import TracedTurn
from backend_kit.kpi import Ended, Ledger, Spent
from backend_kit.wire import dumps

UserIds = Literal["hashed", "plain", "none"]
_CONTENT_CHARS: Final = 32_768
_TEMPLATES: Final = 512
_LARGEST: Final = (1 << 63) - 1
"""What an attribute holds at most; what a model says of its tokens may be more."""
_TIMES: Final = Struct("<cQcQ")
_PLACE_BYTES: Final = 56
"""What a span's ids and times take: each has a fixed length, and the byte or two before it that say so."""
_SLACK_MS: Final = 0.002
"""By which rows may stick out of the phase around them: each of their times is rounded to a microsecond."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a turn is in its trace and in time: its span, that of who asked, its arrival in Unix time, its length."""

    span: TraceParent
    parent: TraceParent | None
    began_ns: int
    total_ms: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """A turn that has ended, with what its ledger said then: all that its spans are made of."""

    turn: TracedTurn
    when: Moment
    rows: Sequence[Ended]
    spent: Sequence[Spent]
    started: float
    unattributed_ms: float
    dropped_rows: int

    @classmethod
    def of(cls, turn: TracedTurn, when: Moment, ledger: Ledger) -> "Recorded":
        """What is known now; what a ledger gets later is of no turn's trace."""
        left_ms = ledger.unattributed_ms(when.total_ms)
        return cls(turn, when, ledger.ended(), tuple(ledger.spent), ledger.started, left_ms, ledger.dropped_rows)

    @property
    def spans(self) -> int:
        """How many spans it has."""
        return len(self.rows) + 1


class SpanEncoder:
    """Encodes turns. `content`: whether questions and answers are sent; `user_ids` is how users are named."""

    def __init__(self, resource: Mapping[str, str], *, content: bool = False, user_ids: UserIds = "hashed") -> None:
        head = ResourceSpans(schema_url=names.SCHEMA_URL)
        _fill(head.resource.attributes, resource)
        scope = ScopeSpans(schema_url=names.SCHEMA_URL)
        scope.scope.name = names.SCOPE
        self._resource = head.SerializeToString()
        self._scope = scope.SerializeToString()
        self._content = content
        self._user_ids = user_ids

    def encode(self, recorded: Recorded) -> bytes:
        """An export request with the spans of one turn. Requests one after the other are one request, as all messages
        of protobuf."""
        turn, when, rows = recorded.turn, recorded.when, recorded.rows
        trace_id = bytes.fromhex(when.span.trace_id)
        root_id = bytes.fromhex(when.span.span_id)
        random = secrets.token_bytes(8 * len(rows))
        ids = [random[at : at + 8] for at in range(0, len(random), 8)]
        began_us = when.began_ns // 1000
        uses, rest = uses_of(rows, recorded.spent, recorded.started)
        # A message of protobuf is its fields one after the other, in any order. So rows become no objects, which take
        # longer: what the rows of one phase have in common, and behind it ids (1, 2, 4) and times (7, 8).
        of_trace = b"\x0a\x10" + trace_id + b"\x12\x08"
        root = self._root(recorded, rest) + of_trace + root_id
        if when.parent is not None:
            root += b"\x22\x08" + bytes.fromhex(when.parent.span_id)
        parts = [self._scope, _field(2, root + _times(began_us, 0.0, when.total_ms))]
        for place, (ended, parent) in enumerate(zip(rows, parents_of(rows), strict=True)):
            row, status, about = ended
            use = uses.get(place)
            if about or status != "ok":
                said = _headed(_row_span(ended, use, turn.model).SerializeToString())
            elif use is None:
                said = _template(row["phase"], turn.model)
            else:
                said = _with_use(row["phase"], use)
            above = root_id if parent is None else ids[parent]
            parts += (said, of_trace, ids[place], b"\x22\x08", above, _times(began_us, row["start_ms"], row["ms"]))
        return _field(1, self._resource + _field(2, b"".join(parts)))

    def _root(self, recorded: Recorded, rest: Sequence[Spent]) -> bytes:
        turn = recorded.turn
        about: dict[str, Any] = {
            names.CONVERSATION: turn.session_id,
            names.SESSION: turn.session_id,
            names.EXCHANGE: turn.exchange_id,
            names.REQUEST: turn.request_id,
            names.UNATTRIBUTED_MS: round(recorded.unattributed_ms, 3),
            **_used(rest),
        }
        if (user := user_name(turn.user_id, self._user_ids)) is not None:
            about[names.USER] = user
        if turn.first_token_ms is not None:
            about[names.TTFT_MS] = round(turn.first_token_ms, 3)
        if recorded.dropped_rows:
            about[names.DROPPED_ROWS] = recorded.dropped_rows
        if self._content:
            about[names.INPUT] = _message("user", turn.question)
            about[names.OUTPUT] = _message("assistant", turn.answer)
        more = Span()
        _fill(more.attributes, about)
        error = (turn.error or turn.status) if turn.failed else ""
        encoded: bytes = _known_turn(turn.agent_id, turn.status, turn.durable, error) + more.SerializeToString()
        return encoded


def user_name(user_id: str, how: UserIds) -> str | None:
    """What stands for a user: a name of 32 hex digits that is the same in each trace, their id, or nothing."""
    if how == "none":
        return None
    return user_id if how == "plain" else hashlib.sha256(b"turnwise user " + user_id.encode()).hexdigest()[:32]


def parents_of(rows: Sequence[Ended]) -> list[int | None]:
    """For each row, by start, the place of the row around it; None for the turn.

    A ledger knows how many phases were open when one began, not which of them it belongs to: that is the innermost that
    was open for all of its time. Calls that ran side by side hold nothing of one another.
    """
    parents: list[int | None] = []
    running: list[tuple[float, int, Operation | None, int]] = []
    for place, (row, _, _) in enumerate(rows):
        start_ms, depth = row["start_ms"], row["depth"]
        end_ms = start_ms + row["ms"]
        operation = names.OPERATIONS.get(row["phase"])
        while running and running[-1][0] + _SLACK_MS < start_ms:
            running.pop()
        parent = None
        for outer_end_ms, outer_depth, outer_operation, outer in reversed(running):
            beside = operation is not None and operation.alone and outer_operation is operation
            if outer_depth < depth and outer_end_ms + _SLACK_MS >= end_ms and not beside:
                parent = outer
                break
        parents.append(parent)
        running.append((end_ms, depth, operation, place))
    return parents


def uses_of(rows: Sequence[Ended], spent: Sequence[Spent], started: float) -> tuple[dict[int, Spent], list[Spent]]:
    """What each model call took, by the place of its row, and what belongs to no row.

    A call tells its tokens just before its phase ends: they are those of the first call to end after that.
    """
    calls = [
        (row["start_ms"] + row["ms"], row["start_ms"], place)
        for place, (row, _, _) in enumerate(rows)
        if names.OPERATIONS.get(row["phase"]) is names.CHAT
    ]
    calls.sort()
    found: dict[int, Spent] = {}
    rest: list[Spent] = []
    for one in spent:
        at_ms = (one.at - started) * 1e3
        fitting = (
            place
            for end_ms, start_ms, place in calls
            if place not in found and start_ms - _SLACK_MS <= at_ms <= end_ms + _SLACK_MS
        )
        place = next(fitting, None)
        if place is None:
            rest.append(one)
        else:
            found[place] = one
    return found, rest


@lru_cache(_TEMPLATES)
def _known_turn(agent_id: str, status: str, durable: str, error: str) -> bytes:
    """What the turns of an agent have in common; `error` is empty where it did not fail."""
    about = {
        names.OPERATION: names.INVOKE_AGENT.name,
        names.AGENT_ID: agent_id,
        names.AGENT_NAME: agent_id,
        names.STATUS: status,
        names.DURABLE: durable,
    }
    if error:
        about[names.ERROR] = error
    span = _span(f"{names.INVOKE_AGENT.name} {agent_id}", about, remote=False, failed=bool(error))
    encoded: bytes = span.SerializeToString()
    return encoded


@lru_cache(_TEMPLATES)
def _template(phase: str, model: str) -> bytes:
    """A span of a phase of which nothing is known but its name, as `_headed` says."""
    return _headed(_known(phase, model))


def _with_use(phase: str, use: Spent) -> bytes:
    """The same of a model call that told its tokens."""
    used = Span()
    _fill(used.attributes, _used([use]))
    return _headed(_known(phase, use.model) + used.SerializeToString())


@lru_cache(_TEMPLATES)
def _known(phase: str, model: str) -> bytes:
    span = _row_span(Ended({"phase": phase, "depth": 0, "start_ms": 0.0, "ms": 0.0}), None, model)
    encoded: bytes = span.SerializeToString()
    return encoded


def _headed(span: bytes) -> bytes:
    """A span as a field of its scope (2), up to its ids and times, which follow."""
    return _head(2, len(span) + _PLACE_BYTES) + span


def _row_span(ended: Ended, use: Spent | None, model: str) -> Span:
    row, status, given = ended
    phase = row["phase"]
    operation = names.OPERATIONS.get(phase)
    about: dict[str, Any] = {names.LEDGER_PHASE: phase}
    if operation is not None:
        about[names.OPERATION] = operation.name
    if operation is names.CHAT and (called := use.model if use is not None else model):
        about[names.MODEL] = called
    if use is not None:
        about |= _used([use])
    about |= given
    failed = status in ("error", "timeout")
    if failed:
        about[names.ERROR] = status
    subject = "" if operation is None else about.get(operation.subject, "")
    name = phase if operation is None else f"{operation.name} {subject}".rstrip()
    remote = phase in names.REMOTE or (operation is not None and operation.remote)
    return _span(name, about, remote=remote, failed=failed)


def _span(name: str, about: Mapping[str, Any], *, remote: bool, failed: bool) -> Span:
    span = Span(name=_text(name), kind=Span.SPAN_KIND_CLIENT if remote else Span.SPAN_KIND_INTERNAL)
    _fill(span.attributes, about)
    if failed:
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = _text(str(about.get(names.ERROR, "")))
    return span


def _times(began_us: int, start_ms: float, ms: float) -> bytes:
    """Start and end in Unix time, encoded."""
    start_us = began_us + int(start_ms * 1e3 + 0.5)
    end_us = start_us + int(ms * 1e3 + 0.5)
    return _TIMES.pack(b"\x39", start_us * 1000, b"\x41", end_us * 1000)


def _field(number: int, message: bytes) -> bytes:
    return _head(number, len(message)) + message


def _head(number: int, length: int) -> bytes:
    """What stands before a message that is a field of another: its number, below 16, and its length in groups of seven
    bits."""
    head = [number << 3 | 2]
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)


def _used(spent: Sequence[Spent]) -> dict[str, Any]:
    """What model calls took; empty where none told it."""
    if not spent:
        return {}
    used: dict[str, Any] = {
        names.INPUT_TOKENS: sum(one.input_tokens for one in spent),
        names.OUTPUT_TOKENS: sum(one.output_tokens for one in spent),
    }
    more = {
        names.CACHED_TOKENS: sum(one.cached_tokens for one in spent),
        names.REASONING_TOKENS: sum(one.reasoning_tokens for one in spent),
        names.COST: float(sum(one.cost for one in spent)),
    }
    return used | {name: amount for name, amount in more.items() if amount}


def _message(role: str, text: str) -> str:
    shown = text if len(text) <= _CONTENT_CHARS else text[:_CONTENT_CHARS] + "…"
    return dumps([{"role": role, "parts": [{"type": "text", "content": shown}]}]).decode()


def _fill(attributes: Any, about: Mapping[str, Any]) -> None:
    """Add attributes to a repeated field of them."""
    for key, given in about.items():
        one = attributes.add()
        one.key = key
        if isinstance(given, str):
            one.value.string_value = _text(given)
        elif isinstance(given, float):
            one.value.double_value = given
        else:
            one.value.int_value = min(max(given, -_LARGEST), _LARGEST)


def _text(given: str) -> str:
    """What protobuf takes: it refuses half of a pair, as JSON can have it, and a turn must not fail for that."""
    return given if given.isascii() else given.encode("utf-8", "replace").decode()
