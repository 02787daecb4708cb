"""What one socket still has to send, and how it then closes: state and transitions, no I/O."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from agentic_backend.chat.follow import Follow
from agentic_backend.session.stream import Ask

_MAX_FRAMES = 256


class CloseWhen(Enum):
    """When the close frame is sent; frames that belong to no turn are always sent before it."""

    AT_ONCE = "at once"
    AFTER_TURNS = "after the followed turns"


@dataclass(frozen=True, slots=True)
class Closing:
    """How a socket closes: its code, when, and a final frame (empty: none) after the turns.

    A final frame answers a frame that came after the waiting asks, so those are answered before it; without one they
    are dropped. `reads_on`: frames that come until then are still acted on, and the waiting asks begin, each in its
    turn, for the drain to refuse them. Raises ValueError for a final frame with an immediate close: send it as an
    ordinary frame instead.
    """

    code: int
    when: CloseWhen = CloseWhen.AT_ONCE
    final_frame: bytes = b""
    reads_on: bool = False

    def __post_init__(self) -> None:
        if self.final_frame and self.at_once:
            raise ValueError("a final frame with an immediate close")

    @property
    def at_once(self) -> bool:
        """Whether it closes without waiting for a turn. Such a closing cannot be replaced."""
        return self.when is CloseWhen.AT_ONCE

    def replaced_by(self, later: "Closing") -> "Closing":
        """The later closing, which replaces this one. Raises RuntimeError if this one is immediate."""
        if self.at_once:
            raise RuntimeError(f"close with {later.code} of a socket that closes at once with {self.code}")
        return later


class Outbox:
    """Frames that belong to no turn, followed turns, asks that wait for those, and the closing.

    `changed` is set by each transition. `on_event` is called with each event of a followed turn, and sets `changed`
    unless another is put there before the first turn is followed. `overflow` is called instead of keeping more than
    256 frames, since such a peer does not read.
    """

    def __init__(self, overflow: Callable[[], None]) -> None:
        # Lists: an empty deque takes 760 bytes, for each socket, and few frames or asks ever wait.
        self.frames: list[bytes] = []
        self.follows: list[Follow] = []
        self.waiting: list[Ask] = []
        self.closing: Closing | None = None
        self.changed = asyncio.Event()
        self.on_event: Callable[[], None] = self.changed.set
        # Whether its client can resume a turn on another connection.
        self.resumes = True
        self._overflow = overflow

    @property
    def leaving(self) -> bool:
        """Whether the socket closes immediately or is closed: no other closing can replace this one."""
        return self.closing is not None and self.closing.at_once

    @property
    def busy(self) -> bool:
        """Whether a turn is followed or an ask waits."""
        return bool(self.follows or self.waiting)

    @property
    def held(self) -> bool:
        """Whether it waits for anything before it closes: at the end of the process not for a turn that continues at
        another instance, where a client that can resume finds it."""
        ends = self.closing is not None and self.closing.reads_on and self.resumes
        return bool(self.waiting) or any(not (ends and follow.turn.let_go) for follow in self.follows)

    @property
    def sessions(self) -> set[str]:
        """Ids of the sessions whose turns are followed or wait."""
        return {follow.turn.ask.session_id for follow in self.follows} | {ask.session_id for ask in self.waiting}

    @property
    def behind_s(self) -> list[float]:
        """For each turn whose end is not yet written, the seconds since it ended. From any thread."""
        return [follow.behind_s for follow in tuple(self.follows) if follow.turn.ended]

    def close(self, closing: Closing) -> None:
        """Close in this way, replacing any earlier closing. Raises RuntimeError if the socket is `leaving`.

        The turns themselves continue or stop as their asks specify.
        """
        self.closing = closing if self.closing is None else self.closing.replaced_by(closing)
        if not closing.final_frame and not closing.reads_on:
            self.waiting.clear()
        self.changed.set()

    def end(self, code: int) -> None:
        """Record that the connection ended with this code. It replaces any closing and is final."""
        self.closing = Closing(code)
        self.waiting.clear()

    def take_frames(self) -> list[bytes]:
        """The frames that belong to no turn, to be sent now."""
        frames, self.frames = self.frames, []
        return frames

    def put(self, frame: bytes) -> None:
        """Send a frame that belongs to no turn."""
        if len(self.frames) >= _MAX_FRAMES:
            self._overflow()
            return
        self.frames.append(frame)
        self.changed.set()

    def follow(self, follow: Follow) -> None:
        """Send a turn's events from the given position; replaces an earlier `Follow` of the same turn."""
        known = next((known for known in self.follows if known.turn is follow.turn), None)
        if known is not None:
            known.cursor = follow.cursor
        else:
            self.follows.append(follow)
            follow.turn.follow(self.on_event)
        self.changed.set()

    def unfollow(self, follow: Follow) -> None:
        """Stop sending a followed turn's events."""
        self.follows.remove(follow)
        follow.turn.unfollow(self.on_event)
