"""Payloads of every kind at random: as agents and storage make them, and with what JSON cannot hold."""

from functools import reduce
from operator import or_
from typing import Any, get_args

from hypothesis import strategies as st

from agentic_backend.events import Channel, ChatMessage, Role
from agentic_backend.session import stream
from agentic_backend.session.models import Durability, Session
from agentic_backend.session.stream import Payload, TurnEvent
from backend_kit.wire import Code, dumps

KINDS: tuple[type[Payload], ...] = get_args(Payload)
TEXT = st.text(max_size=8) | st.sampled_from(["", "é", "日本", "👩‍👩‍👧", "\u2028\n\r\x00", '"\\/', "\ufffd", "[1,2]"])
COUNT = st.integers(0, 2**63 - 1)
WIDE = st.integers(-(2**63), 2**64 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1e22, 5e-324, 0.1, 3, 2**53])


def values(leaves: st.SearchStrategy[Any], texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON values of such leaves."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
    )


CLEAN = values(st.none() | st.booleans() | WIDE | NUMBER | TEXT, TEXT)
BROKEN = TEXT | st.sampled_from(["\ud800", "a\udfffb"])
DIRTY = values(st.none() | st.integers() | st.floats() | st.sampled_from([2**64, -(2**70)]) | BROKEN, BROKEN)


def payloads(value: st.SearchStrategy[Any], text: st.SearchStrategy[str]) -> dict[type[Payload], Any]:
    """A strategy for each kind of payload, of such values and texts."""
    objects = st.dictionaries(text, value, max_size=3)
    message = st.builds(
        ChatMessage.build,
        session_id=TEXT,
        exchange_id=TEXT,
        rank=COUNT,
        role=st.sampled_from(get_args(Role)),
        channel=st.sampled_from(get_args(Channel)),
        parts=st.lists(objects, max_size=2),
        metadata=objects,
    )
    messages = st.lists(message, min_size=1, max_size=3).map(tuple)
    session = st.builds(
        Session,
        TEXT,
        TEXT,
        TEXT,
        text,
        TEXT,
        COUNT,
        objects,
        COUNT,
        st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
        st.booleans(),
    )
    channel = st.sampled_from(get_args(Channel))
    known: dict[type[Payload], Any] = {
        stream.Accepted: st.builds(stream.Accepted, st.none() | COUNT),
        stream.Restarted: st.builds(stream.Restarted, COUNT),
        stream.TextDelta: st.builds(stream.TextDelta, COUNT, channel, text),
        stream.ThoughtDelta: st.builds(stream.ThoughtDelta, text),
        stream.CustomPart: st.builds(stream.CustomPart, value.map(dumps)),
        stream.GraphPart: st.builds(stream.GraphPart, TEXT, st.lists(TEXT, max_size=2).map(tuple), value.map(dumps)),
        stream.SpokenBy: st.builds(
            stream.SpokenBy, COUNT, TEXT, TEXT, st.integers(-1, 99), st.lists(TEXT, max_size=2).map(tuple)
        ),
        stream.Whole: st.builds(stream.Whole, message),
        stream.Cited: st.builds(stream.Cited, st.lists(objects, max_size=3)),
        stream.SessionChanged: st.builds(stream.SessionChanged, session),
        stream.Final: st.builds(
            stream.Final,
            messages,
            session,
            st.lists(objects, max_size=2).map(dumps),
            NUMBER,
            st.sampled_from(get_args(Durability)),
            st.lists(text, max_size=2).map(tuple),
        ),
        stream.Awaiting: st.builds(stream.Awaiting, objects, messages, session, st.none() | objects),
        stream.Cancelled: st.builds(stream.Cancelled, messages, session),
        stream.Failed: st.builds(
            stream.Failed,
            st.sampled_from(Code),
            st.booleans(),
            st.none() | st.sampled_from(["fr", "en-GB", "x"]),
            st.none() | COUNT,
            st.booleans(),
            st.just(()) | messages,
            st.none() | session,
            st.none() | TEXT,
        ),
    }
    # One without fields needs no row.
    return {kind: known[kind] if kind in known else st.builds(kind) for kind in KINDS}


def events(value: st.SearchStrategy[Any], text: st.SearchStrategy[str]) -> st.SearchStrategy[list[TurnEvent]]:
    """Some events of a turn."""
    payload = reduce(or_, payloads(value, text).values())
    return st.lists(st.builds(TurnEvent, COUNT, payload), max_size=4)
