"""Where in the events of an exchange one run of AG-UI is, and where in that run a client was cut off.

An exchange of ours is one run, plus one for each answer of a person whom the agent asked.
"""

from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from agentic_backend.errors import BadRequest, Conflict
from agentic_backend.session.stream import Awaiting, Turn, Whole
from agentic_backend.surfaces.follow import EVERYTHING, whole_events
from backend_kit.wire import dumps

_MAX_ID_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins: at an index of the turn's events, or, with `behind` (a person's answer), behind the first
    message from there that has it."""

    turn: Turn
    place: int
    behind: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """What a client has of a run: everything up to the turn's event `seq`, and `more` of what the next event became.

    `turn` tells turns with the same exchange id apart: a run that is replayed from history, or runs again after a
    restart, has other numbers.
    """

    turn: str
    seq: int
    more: int = 0

    def __str__(self) -> str:
        return f"{self.turn}-{self.seq}.{self.more}" if self.more else f"{self.turn}-{self.seq}"

    @classmethod
    def read(cls, text: str | None) -> "Position | None":
        """The position in a `Last-Event-ID`, None without one. Raises BadRequest."""
        if not text:
            return None
        turn, dash, rest = text.partition("-")
        seq, dot, more = rest.partition(".")
        numbers = [seq, more] if dot else [seq]
        whole = all(number.isascii() and number.isdigit() for number in numbers)
        if len(text) > _MAX_ID_CHARS or not dash or not whole:
            raise BadRequest("no position", field="Last-Event-ID")
        return cls(turn, int(seq), int(more) if dot else 0)


def only_run(start: Start) -> Start:
    """The run alone: if its exchange has continued after its end, as a turn that ended with this run."""
    events = start.turn.events
    place = start.place
    while place < len(events):
        event, count = events.joined(place, EVERYTHING)
        place += count
        if event.terminal:
            break
    else:
        return start
    if place == len(events):
        return start
    told = Turn(start.turn.ask)
    told.continue_after(events[start.place].seq - 1)
    for at in range(start.place, place):
        told.publish(events[at].payload)
    return Start(told, 0, start.behind)


def name_of(turn: Turn) -> str:
    """What distinguishes this turn from any other of its exchange."""
    return f"{crc32(repr(turn.ask.received_at).encode()):08x}"


def expect_turn(position: Position, turn: Turn) -> None:
    """Raise Conflict for a position in another turn, or in what this one replaced: the run can then be sent only from
    its beginning."""
    replaced = turn.shown_from and position.seq < turn.events[turn.shown_from].seq
    if replaced or position.turn != name_of(turn):
        raise Conflict(field="Last-Event-ID")


def start_of_answer(turn: Turn, answer: dict[str, Any]) -> Start | None:
    """Where the run begins that this answer let continue; None if the turn has no such run."""
    asked_at, told = None, False
    for place, payload in whole_events(turn):
        if isinstance(payload, Awaiting) and payload.payload.get("checkpoint_id") == answer["checkpoint_id"]:
            asked_at = place
        told = told or (isinstance(payload, Whole) and is_decision(payload, answer))
    goes_on = turn.ask.human is not None and turn.ask.human.payload == answer
    if not (goes_on or told):
        return None
    if asked_at is not None:
        return Start(turn, asked_at + 1)
    if goes_on:
        # Of a run that begins again after a restart, what it had before the answer comes first.
        return Start(turn, turn.earlier, answer if turn.cut is not None else None)
    return Start(turn, turn.shown_from, answer)


def is_decision(whole: Whole, answer: dict[str, Any]) -> bool:
    """Whether a message is what a person answered, and this is the answer."""
    message = whole.message
    if (message.role, message.channel) != ("user", "observation"):
        return False
    decision = message.metadata.get("extras", {}).get("decision", {})
    said = decision.get("answer")
    if not decision.get("cut"):
        return bool(said == answer)
    return isinstance(said, str) and dumps(answer).decode().startswith(said)
