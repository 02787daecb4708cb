"""The log of a turn's events is the list of them, however they are kept."""

from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_backend.chat import relay
from agentic_backend.events import ChatMessage, text_part
from agentic_backend.session.stream import (
    Accepted,
    Ask,
    CustomPart,
    EventLog,
    FrameBytes,
    GraphPart,
    Payload,
    TextDelta,
    ThoughtDelta,
    Turn,
    TurnEvent,
    Whole,
)
from backend_kit.wire import dumps

WHOLE = Whole(
    ChatMessage.build(session_id="s", exchange_id="e1", rank=0, role="user", channel="final", parts=[text_part("Hi")])
)
PAYLOADS = st.lists(
    st.one_of(
        st.builds(Accepted, st.integers(1, 3)),
        st.just(WHOLE),
        st.builds(CustomPart, st.binary(max_size=4)),
        st.builds(GraphPart, st.just("values"), st.just(()), st.binary(max_size=4)),
        st.builds(ThoughtDelta, st.text(max_size=4)),
        st.builds(TextDelta, st.integers(1, 2), st.sampled_from(["final", "thought"]), st.text(max_size=4)),
    ),
    max_size=25,
)


def logged(
    payloads: list[Payload], first: int = 1, before: EventLog | None = None, *, sealed: bool = False
) -> tuple[EventLog, list[TurnEvent]]:
    """A log, and the plain list of its events."""
    log = EventLog(before)
    plain = [] if before is None else list(before)
    for seq, payload in enumerate(payloads, first):
        log.append(seq, payload)
        plain.append(TurnEvent(seq, payload))
    if sealed:
        log.seal()
    return log, plain


@given(payloads=PAYLOADS, jump=st.integers(0, 3), more=PAYLOADS, sealed=st.booleans())
def test_it_is_the_list_of_its_events(payloads: list[Payload], jump: int, more: list[Payload], sealed: bool) -> None:
    earlier, _ = logged([*payloads, Accepted()], sealed=True)
    log, plain = logged(more, first=earlier[-1].seq + 1 + jump, before=earlier, sealed=sealed)
    assert list(log) == plain
    assert len(log) == len(plain)
    assert len(earlier) == len(payloads) + 1
    assert [log[place] for place in range(-len(plain), len(plain))] == plain + plain
    for place in range(len(plain) + 1):
        others = [event.payload for event in plain[place:] if not isinstance(event.payload, TextDelta | ThoughtDelta)]
        assert list(log.without_text(place)) == others
    for seq in range(plain[-1].seq + 3):
        assert log.after(seq) == bisect_right(plain, seq, key=lambda event: event.seq)


@given(payloads=PAYLOADS, most_chars=st.integers(0, 9), sealed=st.booleans())
@example(payloads=[TextDelta(1, "final", "a"), TextDelta(1, "final", "b")], most_chars=9, sealed=False)
def test_fragments_of_one_message_are_joined_and_nothing_else(
    payloads: list[Payload], most_chars: int, sealed: bool
) -> None:
    log, plain = logged(payloads, sealed=sealed)
    place = 0
    while place < len(plain):
        event, count = log.joined(place, most_chars)
        parts = [one.payload for one in plain[place : place + count]]
        if count == 1:
            assert event == plain[place]
        else:
            texts = [part for part in parts if isinstance(part, TextDelta | ThoughtDelta)]
            assert len(texts) == count
            assert {(part.rank, part.channel) for part in texts} == {(texts[0].rank, texts[0].channel)}
            assert event == TurnEvent(
                plain[place + count - 1].seq, replace(texts[0], text="".join(part.text for part in texts))
            )
            assert sum(len(part.text) for part in texts[:-1]) < most_chars
        place += count
    assert place == len(plain)


def frames_from(log: EventLog, place: int) -> FrameBytes:
    """The bytes of the frames for a client that has the events before `place`, without what JSON escapes in texts."""
    turn = Turn(Ask("8XbJv0qLw4I", "Georges", "Hello", "0b6f0b0f3c8e4d5f9a7b1c2d3e4f5061", "admin", 0.0))
    native = compatible = 0
    while place < len(log):
        event, count = log.joined(place, 1_000_000)
        native += len(relay.native(turn, event))
        compatible += sum(map(len, relay.compatible(turn, event)))
        if isinstance(event.payload, TextDelta | ThoughtDelta):
            native -= len(dumps(event.payload.text)) - 2 - len(event.payload.text.encode())
        place += count
    return FrameBytes(native, compatible)


@given(payloads=PAYLOADS, more=PAYLOADS, start=st.integers(0, 51), sealed=st.booleans())
def test_what_is_left_takes_the_bytes_of_its_frames(
    payloads: list[Payload], more: list[Payload], start: int, sealed: bool
) -> None:
    earlier, _ = logged([*payloads, Accepted()], sealed=True)
    log, plain = logged(more, first=earlier[-1].seq + 1, before=earlier, sealed=sealed)
    assert log.frame_bytes_from(len(plain)) == (0, 0)
    place = min(start, len(plain))
    exact, left = frames_from(log, place), log.frame_bytes_from(place)
    assert exact.native / 1.5 <= left.native <= 1.5 * exact.native
    assert exact.compatible / 1.5 <= left.compatible <= 1.5 * exact.compatible


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("text", ["Zurich e ", "Zürich \u00e9\U0001f600 ", "\u4e2d\u6587"])
def test_text_that_is_left_counts_in_utf8(text: str, sealed: bool) -> None:
    sizes = [1, 3000, 2, 40, 900, 1, 1, 2500]
    log, plain = logged([TextDelta(1, "final", text * size) for size in sizes], sealed=sealed)
    for start in range(len(plain)):
        exact = len((text * sum(sizes[start:])).encode())
        assert exact < log.frame_bytes_from(start).native < exact + 200
        assert log.frame_bytes_from(start).compatible == 0  # it sends no text before its message


def test_there_is_nothing_beyond_its_ends() -> None:
    log, _ = logged([Accepted()])
    for place in (1, -2):
        with pytest.raises(IndexError):
            log[place]
