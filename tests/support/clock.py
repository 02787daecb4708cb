"""A clock that goes on when the test says so."""


class Clock:
    """Seconds of a monotonic clock: `now` is set by the test, or goes on by what is slept."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.slept.append(seconds)
        self.now += seconds
