"""What a client is behind by is what it will get, in its protocol."""

from dataclasses import replace
from typing import get_args

import pytest

from agentic_backend.chat import relay
from agentic_backend.chat.follow import Follow
from agentic_backend.events import ChatMessage
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
    Payload,
    Restarted,
    SessionChanged,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Turn,
    Whole,
)
from backend_kit.wire import Code, dumps
from tests.agentic_backend.chat.told_hub import message, session

ASK = Ask("8XbJv0qLw4I", "Georges", "Hello", "0b6f0b0f3c8e4d5f9a7b1c2d3e4f5061", "admin", 0.0)
TURN = Turn(ASK)
SESSION = replace(session(TURN), preferences={"libraries": ["a" * 300]})
LEDGER = dumps([{"name": f"phase {row}", "ms": 12.5, "count": 1, "detail": "x" * 30} for row in range(25)])


def messages(chars: int) -> tuple[ChatMessage, ...]:
    return message(TURN, 0, "user", "Hello"), message(TURN, 1, "assistant", "\u00e9" * (chars // 2))


PAYLOADS: dict[str, Payload] = {
    "accepted": Accepted(),
    "queued": Accepted(3),
    "restarted": Restarted(1),
    "delta": TextDelta(1, "final", "a \u4e2d\u6587 " * 1000),
    "token": TextDelta(1, "final", "a"),
    "thought": ThoughtDelta("a \u00fc\U0001f600 " * 1000),
    "custom": CustomPart(dumps({"said": "\u00e9" * 1000})),
    "graph": GraphPart("values", (), dumps({"said": "\u00e9" * 1000})),
    "speaker": SpokenBy(1, "lc_run--1", "think", 1, ()),
    "whole": Whole(messages(3000)[1]),
    "cited": Cited([{"content": "\u00e9" * 500, "uid": str(hit)} for hit in range(15)]),
    "session": SessionChanged(SESSION),
    "final": Final(messages(100), SESSION, LEDGER, 0.5, "db"),
    "long final": Final(messages(40_000), SESSION, b"[]", 0.5, "db", ("w",)),
    "awaiting": Awaiting({"question": "\u00e9" * 1000}, messages(40_000), SESSION),
    "cancelled": Cancelled(messages(40_000), SESSION),
    "cancelled at once": Cancelled((), SESSION),
    "refused": Failed(Code.OVERLOADED, refused=True, retry_after_ms=2000),
    "failed": Failed(Code.INTERNAL, refused=False),
    "partial": Failed(Code.INTERNAL, refused=False, partial=True, messages=messages(40_000), session=SESSION),
}


def test_they_are_of_every_kind() -> None:
    assert {type(payload) for payload in PAYLOADS.values()} == set(get_args(Payload))


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_an_event_takes_the_bytes_of_its_frames(payload: Payload) -> None:
    turn = Turn(ASK)
    turn.publish(payload)
    behind = Follow(turn).behind_bytes
    native = len(relay.native(turn, turn.events[0]))
    compatible = sum(map(len, relay.compatible(turn, turn.events[0])))
    assert native / 1.5 <= behind.native <= 1.5 * native
    assert compatible / 1.5 <= behind.compatible <= 1.5 * compatible  # 0, where it says nothing of it


def test_a_turn_takes_the_bytes_of_its_frames_wherever_its_client_is() -> None:
    turn = Turn(ASK)
    for name in ("accepted", "whole", "session", *["delta", "token"] * 3, "cited", "delta", "final"):
        turn.publish(PAYLOADS[name])
    for start in range(len(turn.events)):
        behind = Follow(turn, start).behind_bytes
        rest = Follow(turn, start)
        native = compatible = 0
        while not rest.up_to_date:
            event = rest.take()
            native += len(relay.native(turn, event))
            compatible += sum(map(len, relay.compatible(turn, event)))
        assert native / 1.2 < behind.native < 1.2 * native
        assert compatible / 1.5 < behind.compatible < 1.5 * compatible
        assert rest.behind_bytes == (0, 0)
