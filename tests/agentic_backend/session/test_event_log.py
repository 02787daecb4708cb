"""The log of a turn's events is the list of them, however they are kept."""

from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_backend.session.stream import Accepted, CustomSaid, EventLog, Payload, TextDelta, ThoughtDelta, TurnEvent

PAYLOADS = st.lists(
    st.one_of(
        st.builds(Accepted, st.integers(1, 3)),
        st.builds(CustomSaid, st.binary(max_size=4)),
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


@given(payloads=PAYLOADS, sealed=st.booleans())
def test_what_is_left_takes_the_bytes_of_its_frames(payloads: list[Payload], sealed: bool) -> None:
    log, plain = logged(payloads, sealed=sealed)
    assert log.frame_bytes_from(len(plain)) == 0
    for start in range(len(plain)):
        place = start
        frames = []
        while place < len(plain):
            event, count = log.joined(place, 1_000_000)
            alone, _ = logged([event.payload])
            frames.append(alone.frame_bytes_from(0))
            place += count
        assert log.frame_bytes_from(start) == sum(frames) > 0


def test_a_frame_takes_about_what_its_client_gets() -> None:
    text = "Zürich \u00e9\U0001f600 " * 1000
    log, _ = logged([TextDelta(1, "final", text)])
    assert len(text.encode()) < log.frame_bytes_from(0) < 1.02 * len(text.encode())


def test_there_is_nothing_beyond_its_ends() -> None:
    log, _ = logged([Accepted()])
    for place in (1, -2):
        with pytest.raises(IndexError):
            log[place]
