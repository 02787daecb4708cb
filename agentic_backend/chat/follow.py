"""How much of one turn has been sent to one client, and what is sent next."""

import time
from dataclasses import dataclass, field

from agentic_backend.session.stream import FrameBytes, Turn, TurnEvent

_DELTA_CHARS = 64 * 1024


@dataclass(slots=True)
class Follow:
    """One followed turn: how many of its events have been written, and when following began (monotonic clock).

    Fragments of a message that have piled up are taken as one, of `most_chars` characters or more; 0: each as it came.
    """

    turn: Turn
    cursor: int = 0
    since: float = field(default_factory=time.monotonic)
    most_chars: int = _DELTA_CHARS

    @property
    def up_to_date(self) -> bool:
        """Whether all events so far have been taken."""
        return self.cursor == len(self.turn.events)

    @property
    def behind_s(self) -> float:
        """Seconds since the turn ended if its end has not been written, else 0."""
        return time.monotonic() - max(self.turn.ended_at, self.since) if self.turn.ended else 0.0

    @property
    def behind_bytes(self) -> FrameBytes:
        """Roughly the bytes of the frames that have not been taken, in each protocol."""
        return self.turn.events.frame_bytes_from(self.cursor)

    def take(self) -> TurnEvent:
        """The next event; fragments of one message that have piled up are taken as one."""
        event, count = self.turn.events.joined(self.cursor, self.most_chars)
        self.cursor += count
        return event
