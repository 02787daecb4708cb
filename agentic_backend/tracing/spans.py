"""Encodes the ledger of an ended turn as OTLP: one span for the turn, one for each row, no clock read in between.

Starts and lengths are those of the rows, in whole microseconds; the turn's arrival is put on the wall clock once.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from agentic_backend.tracing import names
from agentic_backend.tracing.names import Operation
from agentic_backend.tracing.traceparent import TraceParent
from agentic_backend.tracing.turn import TracedTurn
from backend_kit.kpi import Ledger, LedgerRow, RowMark, Spent
from backend_kit.wire import dumps

UserIds = Literal["hashed", "plain", "none"]
_CONTENT_CHARS: Final = 32_768
_TEMPLATES: Final = 512
_LARGEST: Final = (1 << 63) - 1
"""What an attribute holds at most; what a model says of its tokens may be more."""
_PLACE: Final = Struct("<2s16s2s8scQcQ2s8s")
"""A span's ids (1, 2), times (7, 8) and the span above it (4): each of a fixed length, behind what says so."""
_WITHOUT_ABOVE: Final = _PLACE.size - 10
_DOUBLE: Final = Struct("<d")
_SHORT: Final = 120
"""Below this many bytes of name and text all lengths of an attribute are one byte each."""
_LONGEST_NAME: Final = 64
"""Characters of an attribute's name, all of which are ours."""
_SLACK_MS: Final = 0.002
"""By which rows may stick out of the phase around them: each of their times is rounded to a microsecond."""


class Moment(NamedTuple):
    """Where a turn is in its trace and in time: its span, that of who asked, its arrival in Unix time, its length."""

    span: TraceParent
    parent: TraceParent | None
    began_ns: int
    total_ms: float


class Recorded(NamedTuple):
    """A turn that has ended, with what its ledger said then: all that its spans are made of."""

    turn: TracedTurn
    when: Moment
    rows: Sequence[LedgerRow]
    marks: Mapping[int, RowMark]
    spent: Sequence[Spent]
    started: float
    unattributed_ms: float
    dropped_rows: int

    @classmethod
    def of(cls, turn: TracedTurn, when: Moment, ledger: Ledger, rows: Sequence[LedgerRow]) -> "Recorded":
        """What is known now: `rows` of the ledger; what it gets later is of no turn's trace."""
        left_ms, spent = ledger.unattributed_ms(when.total_ms), tuple(ledger.spent)
        return cls(turn, when, rows, ledger.marks(), spent, ledger.started, left_ms, ledger.dropped_rows)

    @property
    def spans(self) -> int:
        """How many spans it has."""
        return len(self.rows) + 1


class SpanEncoder:
    """Encodes turns. `content`: whether questions and answers are sent; `user_ids` is how users are named."""

    def __init__(self, resource: Mapping[str, str], *, content: bool = False, user_ids: UserIds = "hashed") -> None:
        head = ResourceSpans(schema_url=names.SCHEMA_URL)
        for key, value in resource.items():
            one = head.resource.attributes.add(key=key)
            one.value.string_value = _text(value)
        scope = ScopeSpans(schema_url=names.SCHEMA_URL)
        scope.scope.name = names.SCOPE
        self._resource: bytes = head.SerializeToString()
        self._scope: bytes = scope.SerializeToString()
        self._content = content
        self._user_ids = user_ids

    def encode(self, recorded: Recorded) -> bytes:
        """The spans of one turn, for `request`."""
        turn, when, rows, marks = recorded.turn, recorded.when, recorded.rows, recorded.marks
        trace_id = bytes.fromhex(when.span.trace_id)
        root_id = bytes.fromhex(when.span.span_id)
        random = secrets.token_bytes(8 * len(rows))
        ids = [random[at : at + 8] for at in range(0, len(random), 8)]
        began_us = when.began_ns // 1000
        uses, rest = uses_of(rows, recorded.spent, recorded.started)
        root = self._root(recorded, rest)
        if when.parent is None:
            root += _place(trace_id, root_id, b"", began_us, 0.0, when.total_ms)[:_WITHOUT_ABOVE]
        else:
            root += _place(trace_id, root_id, bytes.fromhex(when.parent.span_id), began_us, 0.0, when.total_ms)
        # A message of protobuf is its fields one after the other, in any order. So rows become no objects, which take
        # longer: what the rows of one phase have in common, and behind it where each has its place.
        parts = [_field(2, root)]
        for place, (row, parent) in enumerate(zip(rows, parents_of(rows), strict=True)):
            if id(row) in marks:
                said = _headed(_row_span(row["phase"], marks[id(row)], uses.get(place), turn.model))
            elif place in uses:
                said = _with_use(row["phase"], uses[place])
            else:
                said = _template(row["phase"], turn.model)
            above = root_id if parent is None else ids[parent]
            parts += (said, _place(trace_id, ids[place], above, began_us, row["start_ms"], row["ms"]))
        return b"".join(parts)

    def request(self, spans: bytes) -> bytes:
        """The export request of any number of turns, whose spans stand one after the other."""
        return _field(1, self._resource + _field(2, self._scope + spans))

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
        error = (turn.error or turn.status) if turn.failed else ""
        return _known_turn(turn.agent_id, turn.status, turn.durable, error) + _attributes(about)


@lru_cache(_TEMPLATES)
def user_name(user_id: str, how: UserIds) -> str | None:
    """What stands for a user: a name of 32 hex digits that is the same in each trace, their id, or nothing."""
    if how == "none":
        return None
    return user_id if how == "plain" else hashlib.sha256(b"turnwise user " + user_id.encode()).hexdigest()[:32]


def parents_of(rows: Sequence[LedgerRow]) -> list[int | None]:
    """For each row, by start, the place of the row around it; None for the turn.

    A ledger knows how many phases were open when one began, not which of them it belongs to: that is the innermost that
    was open for all of its time. Calls that ran side by side hold nothing of one another.
    """
    parents: list[int | None] = []
    running: list[tuple[float, int, Operation | None, int]] = []
    for place, row in enumerate(rows):
        start_ms, depth = row["start_ms"], row["depth"]
        end_ms = start_ms + row["ms"]
        operation = names.OPERATIONS.get(row["phase"])
        while running and running[-1][0] + _SLACK_MS < start_ms:
            running.pop()
        parent = None
        for outer_end_ms, outer_depth, outer_operation, outer in reversed(running) if depth else ():
            beside = operation is not None and operation.alone and outer_operation is operation
            if outer_depth < depth and outer_end_ms + _SLACK_MS >= end_ms and not beside:
                parent = outer
                break
        parents.append(parent)
        running.append((end_ms, depth, operation, place))
    return parents


def uses_of(rows: Sequence[LedgerRow], spent: Sequence[Spent], started: float) -> tuple[dict[int, Spent], list[Spent]]:
    """What each model call took, by the place of its row, and what belongs to no row.

    A call tells its tokens just before its phase ends: they are those of the first call to end after that.
    """
    calls = [
        (row["start_ms"] + row["ms"], row["start_ms"], place)
        for place, row in enumerate(rows)
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
    return _span(f"{names.INVOKE_AGENT.name} {agent_id}", about, remote=False, failed=bool(error))


@lru_cache(_TEMPLATES)
def _template(phase: str, model: str) -> bytes:
    """A span of a phase of which nothing is known but its name, as `_headed` says."""
    return _headed(_known(phase, model))


def _with_use(phase: str, use: Spent) -> bytes:
    """The same for a model call that reported its tokens."""
    return _headed(_known(phase, use.model) + _attributes(_used([use])))


@lru_cache(_TEMPLATES)
def _known(phase: str, model: str) -> bytes:
    return _row_span(phase, RowMark(), None, model)


def _headed(span: bytes) -> bytes:
    """A span as a field of its scope (2), up to its ids and times, which follow."""
    return _head(2, len(span) + _PLACE.size) + span


def _row_span(phase: str, mark: RowMark, use: Spent | None, model: str) -> bytes:
    operation = names.OPERATIONS.get(phase)
    about: dict[str, Any] = {names.LEDGER_PHASE: phase}
    if operation is not None:
        about[names.OPERATION] = operation.name
    if operation is names.CHAT and (called := use.model if use is not None else model):
        about[names.MODEL] = called
    if use is not None:
        about |= _used([use])
    about |= mark.about
    failed = mark.status in ("error", "timeout")
    if failed:
        about[names.ERROR] = mark.status
    subject = "" if operation is None else about.get(operation.subject, "")
    name = phase if operation is None else f"{operation.name} {subject}".rstrip()
    remote = phase in names.REMOTE or (operation is not None and operation.remote)
    return _span(name, about, remote=remote, failed=failed)


def _span(name: str, about: Mapping[str, Any], *, remote: bool, failed: bool) -> bytes:
    """A span up to its place."""
    span = Span(name=_text(name), kind=Span.SPAN_KIND_CLIENT if remote else Span.SPAN_KIND_INTERNAL)
    if failed:
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = _text(str(about.get(names.ERROR, "")))
    encoded: bytes = span.SerializeToString() + _attributes(about)
    return encoded


def _place(trace_id: bytes, id_: bytes, above: bytes, began_us: int, start_ms: float, ms: float) -> bytes:
    """What each span has of its own: its ids, its start and end in Unix time, the id of the span above it."""
    start_us = began_us + int(start_ms * 1e3 + 0.5)
    end_us = start_us + int(ms * 1e3 + 0.5)
    return _PLACE.pack(
        b"\x0a\x10", trace_id, b"\x12\x08", id_, b"\x39", start_us * 1000, b"\x41", end_us * 1000, b"\x22\x08", above
    )


def _field(number: int, message: bytes) -> bytes:
    return _head(number, len(message)) + message


def _head(number: int, length: int) -> bytes:
    """What stands before a message that is a field of another: its number, below 16, and its length."""
    return bytes((number << 3 | 2,)) + _varint(length)


def _varint(number: int) -> bytes:
    """A number in groups of seven bits; one below 0 as 64 bits of two's complement."""
    if 0 <= number <= 0x7F:
        return bytes((number,))
    left = number & (1 << 64) - 1
    groups = bytearray()
    while left > 0x7F:
        groups.append(left & 0x7F | 0x80)
        left >>= 7
    groups.append(left)
    return bytes(groups)


def _used(spent: Sequence[Spent]) -> dict[str, int | float]:
    """The tokens of model calls; empty if none reported any."""
    if not spent:
        return {}
    read = wrote = cached = reasoned = 0
    cost = 0.0
    for one in spent:
        read += one.input_tokens
        wrote += one.output_tokens
        cached += one.cached_tokens
        reasoned += one.reasoning_tokens
        cost += one.cost
    used: dict[str, int | float] = {names.INPUT_TOKENS: read, names.OUTPUT_TOKENS: wrote}
    if cached:
        used[names.CACHED_TOKENS] = cached
    if reasoned:
        used[names.REASONING_TOKENS] = reasoned
    if cost:
        used[names.COST] = cost
    return used


def _message(role: str, text: str) -> str:
    shown = text if len(text) <= _CONTENT_CHARS else text[:_CONTENT_CHARS] + "…"
    return dumps([{"role": role, "parts": [{"type": "text", "content": shown}]}]).decode()


def _attributes(about: Mapping[str, Any]) -> bytes:
    """Attributes as fields of a span (9), whose values are texts, whole numbers or floats."""
    return b"".join([_attribute(_key(name), given) for name, given in about.items()])


def _attribute(key: bytes, given: str | float) -> bytes:
    # A field (9) of a name (1) and a value (2) of its kind (1, 3, 4). Names are short, and so all lengths but those of
    # long texts are one byte.
    size = len(key)
    if isinstance(given, str):
        text = _bytes(given)
        length = len(text)
        if size + length < _SHORT:
            return b"\x4a%c%b\x12%c\x0a%c%b" % (size + length + 4, key, length + 2, length, text)
        return _field(9, key + _field(2, _field(1, text)))
    if isinstance(given, int):
        number = _varint(min(max(given, -_LARGEST), _LARGEST))
        return b"\x4a%c%b\x12%c\x18%b" % (size + len(number) + 3, key, len(number) + 1, number)
    return b"\x4a%c%b\x12\x09\x21%b" % (size + 11, key, _DOUBLE.pack(given))


@lru_cache(_TEMPLATES)
def _key(name: str) -> bytes:
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"{name!r} is too long for an attribute's name")
    return _field(1, name.encode())


def _bytes(given: str) -> bytes:
    """In UTF-8; half of a pair, as JSON can have it, is no character, and a turn must not fail for that."""
    return given.encode("utf-8", "replace")


def _text(given: str) -> str:
    """What protobuf takes."""
    return _bytes(given).decode()
