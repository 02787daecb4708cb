"""Limits how fast one client may send frames of any kind."""

from agentic_backend.errors import RateLimited

FRAMES_PER_S = 500.0
BURST = 500.0


class FrameRateLimit:
    """A bucket of `BURST` frames that fills up again at `FRAMES_PER_S`; one second of the fastest client that means it.

    Every frame takes one, even if refused: a client that keeps this rate for another second is `flooding`.
    """

    def __init__(self) -> None:
        self._level = BURST
        self._at = 0.0

    @property
    def flooding(self) -> bool:
        """Whether this client keeps sending far too fast."""
        return self._level <= -BURST

    def take(self, now: float) -> None:
        """Count a frame received at `now` (monotonic clock, seconds). Raises RateLimited if it came too early."""
        self._level = min(BURST, self._level + (now - self._at) * FRAMES_PER_S) - 1.0
        self._at = now
        if self._level < 0.0:
            raise RateLimited(retry_after_s=-self._level / FRAMES_PER_S)
