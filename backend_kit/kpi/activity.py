"""Whether anything runs: turns and requests, counted on the event loop."""

from collections.abc import Callable


class Activity:
    """How many turns and requests run now. `with activity:` is one of them; on the event loop's thread.

    It tells the loop monitor when one begins: what runs for somebody is watched at the full rate.
    """

    __slots__ = ("begun", "running", "tell")

    def __init__(self) -> None:
        self.running = 0
        self.begun = 0
        """Since the start."""
        self.tell: Callable[[], None] = _nobody
        """Called at each begin. Must be cheap and not block."""

    def __enter__(self) -> None:
        self.running += 1
        self.begun += 1
        self.tell()

    def __exit__(self, *_: object) -> None:
        self.running -= 1


def _nobody() -> None:
    """Tells nobody."""
