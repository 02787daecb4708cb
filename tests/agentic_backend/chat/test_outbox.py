"""How a socket's closing moves, and what it leaves to send."""

import time

import pytest

from agentic_backend.chat.follow import Follow
from agentic_backend.chat.outbox import CloseWhen, Closing, Outbox
from agentic_backend.session.stream import Ask, Turn

AFTER_TURNS = Closing(1012, CloseWhen.AFTER_TURNS)
REFUSAL = Closing(1011, CloseWhen.AFTER_TURNS, final_frame="why")
AT_ONCE = Closing(4409)


def ask(exchange_id: str) -> Ask:
    return Ask("s", "Georges", "Hello", exchange_id, "admin", time.perf_counter())


class Overflows:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(Overflows())


def test_a_closing_is_at_once_unless_it_says_otherwise() -> None:
    assert AT_ONCE.at_once
    assert not AFTER_TURNS.at_once


def test_a_closing_at_once_has_no_final_frame() -> None:
    with pytest.raises(ValueError, match="final frame"):
        Closing(1011, final_frame="why")


@pytest.mark.parametrize("earlier", [AFTER_TURNS, REFUSAL])
@pytest.mark.parametrize("later", [AFTER_TURNS, REFUSAL, AT_ONCE])
def test_a_closing_that_waits_is_replaced_by_any(outbox: Outbox, earlier: Closing, later: Closing) -> None:
    outbox.close(earlier)
    assert not outbox.leaving
    outbox.close(later)
    assert outbox.closing == later
    assert outbox.leaving is later.at_once


@pytest.mark.parametrize("later", [AFTER_TURNS, REFUSAL, AT_ONCE])
def test_nothing_replaces_a_closing_at_once(outbox: Outbox, later: Closing) -> None:
    outbox.close(Closing(1003))
    assert outbox.leaving
    outbox.waiting.append(ask("e1"))
    outbox.changed.clear()
    with pytest.raises(RuntimeError, match=rf"close with {later.code} .* at once with 1003"):
        outbox.close(later)
    assert outbox.closing == Closing(1003)
    assert (len(outbox.waiting), outbox.changed.is_set()) == (1, False)


@pytest.mark.parametrize("earlier", [None, AFTER_TURNS, AT_ONCE])
def test_a_connection_that_ended_can_be_closed_in_no_way(outbox: Outbox, earlier: Closing | None) -> None:
    if earlier is not None:
        outbox.close(earlier)
    outbox.waiting.append(ask("e1"))
    outbox.end(1006)
    assert outbox.leaving
    assert not outbox.busy
    with pytest.raises(RuntimeError, match="at once with 1006"):
        outbox.close(AT_ONCE)


@pytest.mark.parametrize(("closing", "left"), [(AFTER_TURNS, 0), (AT_ONCE, 0), (REFUSAL, 2)])
def test_asks_that_wait_are_dropped_unless_a_final_frame_comes_after_them(
    outbox: Outbox, closing: Closing, left: int
) -> None:
    outbox.waiting += [ask("e1"), ask("e2")]
    outbox.close(closing)
    assert len(outbox.waiting) == left
    assert outbox.changed.is_set()


def test_a_closing_that_replaces_one_with_a_final_frame_drops_the_asks_too(outbox: Outbox) -> None:
    outbox.waiting.append(ask("e1"))
    outbox.close(REFUSAL)
    outbox.close(AFTER_TURNS)
    assert not outbox.waiting


def test_a_turn_is_followed_once_and_goes_on_from_where_it_is_asked_for_again(outbox: Outbox) -> None:
    turn = Turn(ask("e1"))
    outbox.follow(Follow(turn, 3))
    outbox.follow(Follow(turn, 1))
    [follow] = outbox.follows
    assert follow.cursor == 1
    outbox.unfollow(follow)
    assert not turn.followed
    assert not outbox.busy


def test_who_lets_too_many_frames_pile_up_is_told_of_and_kept_no_more_for() -> None:
    overflow = Overflows()
    outbox = Outbox(overflow)
    for _ in range(300):
        outbox.put("x")
    assert (len(outbox.frames), overflow.count) == (256, 44)


@pytest.mark.parametrize(
    ("closing", "resumes", "held"),
    [
        (AFTER_TURNS, True, True),
        (Closing(1012, CloseWhen.AFTER_TURNS, reads_on=True), True, False),
        (Closing(1012, CloseWhen.AFTER_TURNS, reads_on=True), False, True),
    ],
)
def test_a_turn_that_goes_on_elsewhere_keeps_those_here_who_cannot_follow_it_there(
    outbox: Outbox, closing: Closing, resumes: bool, held: bool
) -> None:
    turn = Turn(ask("e1"))
    outbox.resumes = resumes
    outbox.follow(Follow(turn))
    outbox.close(closing)
    assert outbox.held
    turn.mirror_from_now_on()
    assert outbox.held is held
