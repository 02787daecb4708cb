"""Turns that say what a test says, and what the door makes of them."""

import json
from collections.abc import Iterable
from random import Random
from typing import Any

from agentic_backend.events import Channel, ChatMessage, Part, Role, text_part
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    Accepted,
    Ask,
    Awaiting,
    Cancelled,
    Cited,
    CustomPart,
    Failed,
    Final,
    GraphPart,
    HumanAnswer,
    Payload,
    SessionChanged,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Turn,
    Whole,
)
from agentic_backend.surfaces.agui.places import Position, Start
from agentic_backend.surfaces.agui.stream import RunStream
from agentic_backend.surfaces.agui.writing import RunNames, RunWriter
from backend_kit.wire import Code, dumps

NAMES = RunNames("t", "e1", None, "Georges", "s", "e1")
SESSION = Session("s", "ada", "Georges", "Title", "2026-11-20T23:09:19.249876Z")
QUESTION = {
    "stage": "tool_approval",
    "question": "Allow?",
    "choices": [{"id": "allow", "label": "Yes"}, {"id": "deny", "label": "No", "default": True}],
    "metadata": {"id": "c1"},
    "interrupt_id": "i1",
    "checkpoint_id": "k:1",
}


def message(
    rank: int, role: Role, channel: Channel, parts: list[Part] | str, metadata: dict[str, Any] | None = None
) -> ChatMessage:
    """A message of the exchange."""
    told = [text_part(parts)] if isinstance(parts, str) else parts
    return ChatMessage.build(
        session_id="s", exchange_id="e1", rank=rank, role=role, channel=channel, parts=told, metadata=metadata
    )


def question(text: str = "Hello", rank: int = 0) -> Whole:
    """The user's message."""
    return Whole(message(rank, "user", "final", text))


def called(rank: int, *calls: tuple[str, str]) -> Whole:
    """A step of tool calls: id and name of each."""
    parts = [{"type": "tool_call", "call_id": one, "name": name, "args": {"a": 1}} for one, name in calls]
    return Whole(message(rank, "assistant", "tool_call", parts))


def came(rank: int, *results: tuple[str, str], ok: bool | None = True) -> Whole:
    """A step of results: the id of the call and the text of each."""
    parts = [
        {"type": "tool_result", "call_id": one, "ok": ok, "latency_ms": 1, "content": text} for one, text in results
    ]
    return Whole(message(rank, "tool", "tool_result", parts))


def decided(answer: Any, rank: int = 2, **more: Any) -> Whole:
    """What a person answered."""
    metadata = {"extras": {"decision": {"by": "ada", "at": "", "answer": answer, **more}}}
    return Whole(message(rank, "user", "observation", "Yes", metadata))


def answer(rank: int, text: str, *parts: Part, **metadata: Any) -> ChatMessage:
    """The answer."""
    return message(rank, "assistant", "final", [text_part(text), *parts], metadata)


def final(*messages: ChatMessage) -> Final:
    """The end of a turn with this answer."""
    return Final(messages, SESSION, b"[]", 0.5, "spool")


def awaiting(question_: dict[str, Any] = QUESTION, rank: int = 1) -> Awaiting:
    """The end of a run that asks a person."""
    return Awaiting(question_, (question("Hello").message, message(rank, "assistant", "thought", "So")), SESSION)


def turn_of(*payloads: Payload, human: Any = None, before: Turn | None = None, received_at: float = 1.0) -> Turn:
    """A turn with these events."""
    given = None if human is None else HumanAnswer(human)
    turn = Turn(Ask("s", "Georges", "Hello", "e1", "ada", received_at, human=given), before)
    for payload in payloads:
        turn.publish(payload)
    return turn


def written(*payloads: Payload, names: RunNames = NAMES) -> list[dict[str, Any]]:
    """The events that a run of these payloads has."""
    writer = RunWriter(names, "q1")
    return [json.loads(one) for payload in payloads for one in writer.take(payload)]


def short(events: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The events as their types and what they say."""
    keys = ("stepName", "messageId", "toolCallId", "toolCallName", "parentMessageId", "delta", "content", "name")
    return [(event["type"], *(event[key] for key in keys if key in event)) for event in events]


def streamed(
    turn: Turn, position: Position | None = None, start: Start | None = None, names: RunNames = NAMES, sizes: int = 1
) -> list[tuple[str, dict[str, Any]]]:
    """Positions and events of a run, from a position on; at most so many characters are joined."""
    stream = RunStream(names, position)
    place = stream.begin(start or Start(turn, 0))
    text = b""
    while place < len(turn.events):
        event, count = turn.events.joined(place, sizes)
        text += stream.write(turn, event)
        place += count
    pieces = [one.split("\n") for one in text.decode().split("\n\n") if one]
    return [(number.removeprefix("id: "), json.loads(data.removeprefix("data: "))) for number, data in pieces]


def plain_run(*between: Payload, text: str = "Hi") -> list[Payload]:
    """A run that answers with a text."""
    told = answer(9, text)
    return [Accepted(), question(), *between, TextDelta(9, "final", text), final(question().message, told)]


def cancelled() -> Cancelled:
    """The end of a turn that was stopped."""
    return Cancelled((), SESSION)


def cut_metadata(answer_: Any) -> Any:
    """A long answer as history keeps it."""
    return dumps(answer_)[:20].decode()


def some_run(rng: Random) -> list[Payload]:
    """Payloads in an order in which turns may publish them."""
    payloads: list[Payload] = [Accepted(rng.choice([None, 2])), question()]
    rank = 1
    for _ in range(rng.randrange(12)):
        kind = rng.randrange(7)
        if kind == 0:
            payloads += [ThoughtDelta(word) for word in ["I", "see", "that"]]
        elif kind == 1:
            payloads += [TextDelta(rank, "final", word) for word in ("a", "b", "", "c")]
            payloads += [ThoughtDelta("hm"), TextDelta(rank, "final", "d")] * rng.randrange(2)
            payloads.append(Whole(message(rank, "assistant", "thought", "text")))
            rank += 1
        elif kind == 2:
            payloads.append(called(rank, *[("c1", "add"), ("", "sub")][: rng.randrange(1, 3)]))
            rank += 1
        elif kind == 3:
            payloads.append(came(rank, ("c1", "r"), ("", "s")))
            rank += 1
        elif kind == 4:
            payloads += [CustomPart(b"1"), GraphPart("values", (), b"{}"), SpokenBy(rank, "a", "b", 1, ()), Cited([])]
        elif kind == 5:
            payloads.append(Whole(message(rank, "system", "system_note", "note")))
            rank += 1
        else:
            payloads.append(SessionChanged(SESSION))
    if rng.randrange(2):
        payloads += [TextDelta(rank, "final", word) for word in ["the", "end", "of", "it"]]
    payloads.append(
        rng.choice([final(answer(rank, "the end")), awaiting(), cancelled(), Failed(Code.INTERNAL, refused=False)])
    )
    return payloads
