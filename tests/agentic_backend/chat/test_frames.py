import json

import pytest

from agentic_backend.chat import frames
from agentic_backend.errors import BadRequest, MessageTooLong, UnknownType

ASK = {"type": "ask", "session_id": "s", "agent_id": "Georges", "message": "hello"}


def native(**changes):
    return json.dumps({**ASK, **changes})


HOSTILE = {
    "not json": "{",
    "a list": "[]",
    "null": "null",
    "a bare string": '"ask"',
    "deep nesting": "[" * 100_000,
    "deep object": '{"a":' * 50_000,
    "an integer of 5000 digits": '{"type":"ask","n":' + "9" * 5000 + "}",
    "NaN": '{"type":"ask","session_id":"s","agent_id":"a","message":"m","n":NaN}',
    "infinity": '{"type":"ping","n":-Infinity}',
    "a number beyond all bounds": '{"type":"human_resume","session_id":"s","exchange_id":"e","agent_id":"a",'
    '"payload":{"n":-1e999999}}',
    "duplicate keys": '{"type":"ping","type":"ping"}',
    "a lone surrogate": '{"type":"ask","session_id":"s","agent_id":"a","message":"\\ud800"}',
    "NUL": '{"type":"ask","session_id":"s","agent_id":"a","message":"\\u0000"}',
    "an unknown key": native(surprise=1),
    "a missing key": '{"type":"ask","session_id":"s"}',
    "no type": '{"session_id":"s","agent_id":"a","message":"m"}',
    "an empty message": native(message=""),
    "a number for text": native(message=7),
    "an unknown policy": native(runtime_context={"search_policy": "all"}),
    "a claimed user": native(runtime_context={"user_id": "root"}),
    "claimed groups": native(runtime_context={"user_groups": ["admins"]}),
    "a token in the context": native(runtime_context={"access_token": "t"}),
    "a surrogate in a list": native(runtime_context={"selected_document_uids": ["\ud800"]}),
    "no message": json.dumps({key: value for key, value in ASK.items() if key != "message"}),
    "a message beside one that is regenerated": native(regenerate="e1"),
    "nothing to regenerate": native(message="", regenerate=""),
    "two places": native(message="", regenerate="e1", after_rank=1),
    "a place before all": native(after_rank=-2),
    "a place behind all": native(after_rank=2**31 - 1),
    "a place that is no number": native(after_rank="1"),
    "a place that is a truth": native(after_rank=True),
    "a place between two": native(after_rank=1.5),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_frame_that_is_not_one_is_refused_without_quoting_it(text):
    with pytest.raises(BadRequest) as refusal:
        frames.parse_native(text, 100)
    assert str(refusal.value) == "bad_request"
    assert refusal.value.__cause__ is None


FIELDS = {
    "not json": None,
    "duplicate keys": None,
    "a lone surrogate": "message",
    "an unknown key": None,
    "a missing key": "agent_id",
    "no type": "type",
    "an empty message": "message",
    "a number for text": "message",
    "an unknown policy": "runtime_context.search_policy",
    "a claimed user": "runtime_context",
    "a surrogate in a list": "runtime_context.selected_document_uids[0]",
    "no message": "message",
    "a message beside one that is regenerated": "message",
    "nothing to regenerate": "regenerate",
    "two places": "after_rank",
    "a place before all": "after_rank",
    "a place that is no number": "after_rank",
}


@pytest.mark.parametrize(("name", "field"), FIELDS.items(), ids=FIELDS)
def test_a_refusal_names_the_field_by_names_of_the_protocol_alone(name, field):
    with pytest.raises(BadRequest) as refusal:
        frames.parse_native(HOSTILE[name], 100)
    assert refusal.value.field == field


@pytest.mark.parametrize("parse", [frames.parse_native, frames.parse_compatible])
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"session_id": None}, "session_id"),
        ({"session_id": "x" * 129}, "session_id"),
        ({"client_exchange_id": 7}, "client_exchange_id"),
        ({"runtime_context": {"deep_search": "yes"}}, "runtime_context.deep_search"),
        ({"runtime_context": {"selected_document_uids": ["a", 1]}}, "runtime_context.selected_document_uids[1]"),
    ],
)
def test_both_protocols_know_the_field(parse, changes, field):
    with pytest.raises(BadRequest) as refusal:
        parse(native(**changes), 100)
    assert refusal.value.field == field


def test_an_unknown_type_is_told_apart_from_a_bad_frame():
    for parse in (frames.parse_native, frames.parse_compatible):
        with pytest.raises(UnknownType) as refusal:
            parse('{"type":"dance"}', 100)
        assert refusal.value.field == "type"


def test_an_ask_says_where_it_begins():
    asker = frames.Asker("ann", None, None)
    for changes, place in (
        ({}, (None, None)),
        ({"after_rank": -1}, (-1, None)),
        ({"after_rank": 2**31 - 2}, (2**31 - 2, None)),
        ({"after_rank": None, "regenerate": None}, (None, None)),
        ({"message": "", "regenerate": "e1"}, (None, "e1")),
    ):
        frame = frames.parse_native(native(**changes), 100)
        assert isinstance(frame, frames.NativeAsk)
        ask = frames.ask_of(frame, asker, "r")
        assert (ask.after_rank, ask.regenerate) == place
    compatible = frames.parse_compatible(native(after_rank=1, regenerate="e1"), 100)
    ask = frames.ask_of(compatible, asker, "r")
    assert (ask.message, ask.after_rank, ask.regenerate) == ("hello", None, None)


def test_a_message_is_counted_in_characters():
    assert isinstance(frames.parse_native(native(message="é" * 100), 100), frames.NativeAsk)
    with pytest.raises(MessageTooLong) as refusal:
        frames.parse_native(native(message="é" * 101), 100)
    assert refusal.value.field == "message"
    with pytest.raises(MessageTooLong):
        frames.parse_compatible(native(message="é" * 101), 100)


def test_native_frames_are_read_by_type():
    assert isinstance(frames.parse_native('{"type":"ping"}', 1), frames.Ping)
    cancel = frames.parse_native('{"type":"cancel","exchange_id":"e"}', 1)
    assert isinstance(cancel, frames.Cancel)
    assert cancel.exchange_id == "e"
    ask = frames.parse_native(native(if_busy="queue", runtime_context={"language": "fr"}), 100)
    assert isinstance(ask, frames.NativeAsk)
    assert ask.if_busy == "queue"
    assert ask.runtime_context.given() == {"language": "fr"}


def test_a_compatible_ask_needs_no_type_and_drops_what_it_does_not_know():
    text = json.dumps(
        {
            "session_id": "s",
            "agent_id": "Georges",
            "message": "hello",
            "refresh_token": "r",
            "surprise": {"deep": [1]},
            "runtime_context": {"user_id": "root", "access_token": "t", "language": "fr", "search_policy": "strict"},
        }
    )
    ask = frames.parse_compatible(text, 100)
    assert ask.runtime_context is not None
    assert ask.runtime_context.given() == {"language": "fr", "search_policy": "strict"}
    assert "root" not in repr(ask)


def test_an_access_token_is_in_no_repr():
    ask = frames.parse_compatible(native(access_token="canary-token"), 100)
    assert ask.access_token == "canary-token"
    assert "canary" not in repr(ask)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "unknown-session"),
        ("[]", "unknown-session"),
        ('{"session_id": 7}', "unknown-session"),
        ('{"session_id": "<script>"}', "unknown-session"),
        ('{"session_id": "abc-DEF_123"}', "abc-DEF_123"),
    ],
)
def test_the_session_of_a_broken_frame_is_named_where_it_can_be_read(text, expected):
    assert frames.session_id_of(text) == expected


def test_a_number_beyond_all_bounds_is_refused_in_the_compatible_protocol_too():
    with pytest.raises(BadRequest):
        frames.parse_compatible(HOSTILE["a number beyond all bounds"], 100)


HUMAN = {"type": "human_resume", "session_id": "s1", "exchange_id": "e1", "agent_id": "a1"}


@pytest.mark.parametrize("parse", [frames.parse_native, frames.parse_compatible])
@pytest.mark.parametrize(
    "payload", [{"a": ["b\0"]}, {"a\0": 1}, {"a": {"b": "\ud800"}}, "\0", None, 1, ["allow"]], ids=ascii
)
def test_an_answer_that_cannot_be_stored_is_refused(parse, payload):
    with pytest.raises(BadRequest):
        parse(json.dumps({**HUMAN, "payload": payload}), 100)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("parse", [frames.parse_native, frames.parse_compatible])
def test_an_answer_has_no_more_levels_than_can_be_encoded_again(parse):
    fits = nested(frames.MAX_DEPTH)
    assert parse(json.dumps({**HUMAN, "payload": fits}), 1000).payload == fits
    for levels in (frames.MAX_DEPTH + 1, 300, 600):
        with pytest.raises(BadRequest):
            parse(json.dumps({**HUMAN, "payload": nested(levels)}), 10_000)


@pytest.mark.parametrize("parse", [frames.parse_native, frames.parse_compatible])
def test_an_answer_is_as_long_as_a_message_may_be(parse):
    assert parse(json.dumps({**HUMAN, "payload": {"text": "x" * 80}}), 100).payload == {"text": "x" * 80}
    for payload in ({"text": "x" * 100}, "x" * 101):
        with pytest.raises(MessageTooLong):
            parse(json.dumps({**HUMAN, "payload": payload}), 100)
