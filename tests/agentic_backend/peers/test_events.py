"""What is rendered of a turn's events on another instance is what would have been rendered on their own."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_backend.chat import relay
from agentic_backend.chat.sse import NATIVE
from agentic_backend.events import ChatMessage
from agentic_backend.peers import events as codec
from agentic_backend.peers.events import decode_ask, decode_events, encode_ask, encode_events
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    Ask,
    Awaiting,
    Cited,
    CustomPart,
    Final,
    HumanAnswer,
    SessionChanged,
    TextDelta,
    Turn,
    TurnEvent,
    Whole,
)
from backend_kit.auth import Credentials
from backend_kit.wire import dumps
from tests.agentic_backend.peers.payloads import BROKEN, CLEAN, DIRTY, KINDS, TEXT, events, payloads

SESSION = Session("s", "ann", "Georges", "A title", "2026-01-01T00:00:00.000000Z", 2, {"a": 1}, 3, (("f", "n"),), True)
MESSAGE = ChatMessage.build(
    session_id="s", exchange_id="e", rank=1, role="assistant", channel="final", parts=[{"type": "text", "text": "é"}]
)
TEXTS = (str, type(None))
ROWS = {kind.name: kind for kind in codec.KINDS}


def passed_on(given_events: list[TurnEvent]) -> list[TurnEvent]:
    line = encode_events(given_events)
    assert b"\n" not in line
    return decode_events(line)


def refused(line: bytes, read: Callable[[bytes], object] = decode_events) -> bool:
    try:
        read(line)
    except ValueError:
        return True
    return False


def rendered(event: TurnEvent) -> list[bytes]:
    """The frames of both protocols and the event of a stream."""
    turn = Turn(Ask("s", "Georges", "Hello", "e", "ann", 0.0, request_id="r"))
    with suppress(RuntimeError):
        turn.publish(event.payload)
    return [relay.native(turn, event), NATIVE.write(turn, event), *relay.compatible(turn, event)]


def test_every_payload_has_its_kind_with_the_form_of_each_field() -> None:
    assert {kind.payload for kind in codec.KINDS} == set(KINDS), "a row of KINDS for each payload of a turn"
    assert len(ROWS) == len(codec.KINDS)
    for kind in codec.KINDS:
        assert len(kind.forms) == len(kind.names), kind.name


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_comes_out_as_it_was(kind: type) -> None:
    @given(payload=payloads(CLEAN, TEXT)[kind], seq=st.integers(0, 2**63 - 1))
    def holds(payload: Any, seq: int) -> None:
        event = TurnEvent(seq, payload)
        (seen,) = passed_on([event])
        assert seen == event
        assert repr(seen) == repr(event)  # 1 and 1.0 are equal, but not the same JSON
        assert rendered(seen) == rendered(event)

    holds()


@given(given_events=events(CLEAN, TEXT))
def test_a_line_keeps_the_order_and_the_numbers(given_events: list[TurnEvent]) -> None:
    assert passed_on(given_events) == given_events


@given(given_events=events(DIRTY, BROKEN))
@example(given_events=[TurnEvent(1, Cited([{"n": 2**70, "x": float("nan"), "t": "\ud800"}]))])
@example(given_events=[TurnEvent(1, TextDelta(1, "final", "a\ud800b"))])
@example(given_events=[TurnEvent(1, SessionChanged(Session("s", "u", "a", "\ud800", "", preferences={"a": 2**64})))])
def test_what_json_cannot_hold_is_rendered_as_without_a_relay(given_events: list[TurnEvent]) -> None:
    assert [rendered(event) for event in passed_on(given_events)] == [rendered(event) for event in given_events]


def test_json_that_others_wrote_keeps_its_bytes() -> None:
    """As Postgres and clients write it: our own writer would change each of these."""
    spaced = json.dumps(json.loads(MESSAGE.json) | {"metadata": {"n": 10**30, "f": 1.50}}, indent=None).encode()
    odd = b'{"a": 1.0e5, "b": 100000000000000000000000, "a": "\\u00e9\\/"}'
    given_events = [TurnEvent(1, Whole(ChatMessage.decode(spaced))), TurnEvent(2, CustomPart(odd))]
    whole, custom = passed_on(given_events)
    assert isinstance(whole.payload, Whole)
    assert whole.payload.message.json == spaced
    assert custom.payload == CustomPart(odd)


def test_what_nests_as_deep_as_a_frame_can_goes_through() -> None:
    deep: Any = "x"
    for _ in range(249):
        deep = [deep]
    for payload in (Awaiting({"a": deep}, (MESSAGE,), SESSION), Cited([{"a": deep}])):
        event = TurnEvent(1, payload)
        assert [rendered(one) for one in passed_on([event])] == [rendered(event)]


def test_milliseconds_that_are_no_number_are_none_in_the_frame() -> None:
    final = Final((MESSAGE,), SESSION, b"[]", float("nan"), "db")
    assert [rendered(one) for one in passed_on([TurnEvent(1, final)])] == [rendered(TurnEvent(1, final))]


WRONG: dict[str, tuple[object, ...]] = {
    "accepted": ("1", 1.5, -1, True, []),
    "restarted": ("1", -1, None),
    "delta": ("1", None),
    "thought": (1, None),
    "custom": ("{", "", 1, '{"a":1}x', None),
    "message": (
        "{}",
        "[]",
        "1",
        "null",
        1,
        MESSAGE.json.decode()[:-1],
        MESSAGE.json.decode().replace('"rank":1', '"rank":"1"'),
    ),
    "sources": ("{}", "[1]", "x", 1, []),
    "session": ("{}", "[]", "null", 1, None),
    "final": (1, [1], ["{}"], None),
    "awaiting": ("[]", "1", None, {}),
    "cancelled": (1, [None], None),
    "failed": ("no such code", 1, None, [], {}),
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_field_that_is_none_of_its_kind_is_refused(name: str) -> None:
    for wrong in WRONG.get(name, ()):
        rest = [None] * (len(ROWS[name].forms) - 1)
        assert refused(dumps([[1, name, wrong, *rest]]))
    assert refused(dumps([[1, name, *[None] * (len(ROWS[name].forms) + 1)]]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_takes_an_object(kind: type) -> None:
    """What is JSON in an event goes as text."""

    @given(payload=payloads(CLEAN, TEXT)[kind])
    def holds(payload: Any) -> None:
        row = json.loads(encode_events([TurnEvent(1, payload)]))[0]
        for place in range(2, len(row)):
            assert refused(dumps([[*row[:place], {}, *row[place + 1 :]]])), place
            assert refused(dumps([[*row[:place], "no such thing", *row[place + 1 :]]])) or type(row[place]) in TEXTS

    holds()


@pytest.mark.parametrize(
    "change",
    [
        {"id": 1},
        {"next_rank": "1"},
        {"next_rank": -1},
        {"preferences": []},
        {"rested": 0},
        {"more": 1},
        {"attachments": [["a"]]},
    ],
)
def test_a_session_with_a_wrong_field_is_refused(change: dict[str, Any]) -> None:
    (row,) = json.loads(encode_events([TurnEvent(1, SessionChanged(SESSION))]))
    row[2] = json.dumps(json.loads(row[2]) | change)
    assert refused(dumps([row]))


@pytest.mark.parametrize(
    "row",
    [
        [1, "delta", 1, 'final","text":"x', "a"],
        [-1, "thought", "a"],
        ["1", "thought", "a"],
        [True, "thought", "a"],
        [1, "unknown"],
        [1, ["thought"], "a"],
        [1],
        [],
        {},
        1,
        None,
    ],
)
def test_a_row_that_is_no_event_is_refused(row: object) -> None:
    assert refused(dumps([row]))


@pytest.mark.parametrize("line", [b"", b"{}", b"1", b"[", b"\xff", b"[[1,", b"[" * 5000, b'[[1,"thought","\\ud800"]]'])
def test_a_line_that_is_no_list_of_events_is_refused(line: bytes) -> None:
    assert refused(line)


def test_a_line_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(ValueError, match="too long"):
        decode_events(b"[" + b" " * codec.MAX_LINE_BYTES)


ASK = Ask("s", "Georges", "Hello", "e", "ann", 0.0, request_id="r", credentials=Credentials("secret"))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"language": "fr", "model": "big", "on_disconnect": "cancel"},
        {"note": {"a": [1, 1.0, "\u2028"]}},
        {"human": HumanAnswer(None)},
        {"human": HumanAnswer({"checkpoint_id": "c"})},
    ],
)
def test_what_was_asked_comes_out_as_it_was_and_without_secrets(more: dict[str, Any]) -> None:
    ask = replace(ASK, **more)
    line = encode_ask(ask)
    assert b"secret" not in line
    assert b"\n" not in line
    seen = decode_ask(line, user_id="ann", session_id="s", exchange_id="e")
    assert repr(replace(seen, received_at=0.0)) == repr(ask)
    assert seen.note == ask.note
    assert seen.credentials is None


@pytest.mark.parametrize(
    "change",
    [
        {"agent_id": None},
        {"message": 1},
        {"request_id": []},
        {"language": 1},
        {"note": []},
        {"human": "yes"},
        {"on_disconnect": "no"},
        {"on_disconnect": None},
        {"more": 1},
    ],
)
def test_an_ask_with_a_wrong_field_is_refused(change: dict[str, Any]) -> None:
    for line in (dumps(json.loads(encode_ask(ASK)) | change), b"{}", b"[]", b"", b"{" + b" " * codec.MAX_LINE_BYTES):
        assert refused(line, lambda text: decode_ask(text, user_id="ann", session_id="s", exchange_id="e"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.sampled_from(sorted(ROWS)),
    lambda inner: st.lists(inner, max_size=11) | st.dictionaries(TEXT, inner, max_size=3),
)


def rows_like(name: str) -> st.SearchStrategy[list[Any]]:
    """Rows of one kind with as many fields as it has, of any values."""
    many = len(ROWS[name].forms)
    return st.lists(VALUES, min_size=many, max_size=many).map(lambda fields: [1, name, *fields])


LIKE = st.lists(st.sampled_from(sorted(ROWS)).flatmap(rows_like), max_size=2)


@given(line=st.binary() | VALUES.map(dumps) | LIKE.map(dumps))
def test_any_line_is_read_or_refused(line: bytes) -> None:
    with suppress(ValueError):
        for event in decode_events(line):
            assert encode_events([event])


@given(given_events=events(CLEAN, TEXT), cut=st.integers(0, 400), change=st.binary(max_size=3))
def test_a_damaged_line_is_read_or_refused(given_events: list[TurnEvent], cut: int, change: bytes) -> None:
    line = encode_events(given_events)
    with suppress(ValueError):
        decode_events(line[:cut] + change + line[cut + len(change) :])
