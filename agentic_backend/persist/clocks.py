"""The difference between this host's clock and that of Postgres: while it is large, retention deletes nothing."""

import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import text

from backend_kit.db.pool import TimedConnection

APART_S: Final = 60.0
"""Seconds by which the clocks may differ: far above what NTP leaves, far below any retention age."""

_NOW: Final = text("SELECT extract(epoch FROM clock_timestamp())::double precision AS epoch_s")


class ClocksDiffer(Exception):
    """The two clocks differ by more than `APART_S`; which is wrong is unknown. `str()` is one line for the operator."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        way = "ahead of" if ahead_s > 0 else "behind"
        super().__init__(f"the clock of this host is {abs(ahead_s):.0f} s {way} that of Postgres")


class Clocks:
    """Compares the two clocks. `wall` is this host's, in seconds since the epoch."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    async def ahead_s(self, connection: TimedConnection) -> float:
        """Seconds by which this host is ahead, negative if it is behind; accurate to half the round trip.

        Raises sqlalchemy's DBAPIError.
        """
        asked = self._wall()
        (row,) = await connection.execute("clock", _NOW)
        return (asked + self._wall()) / 2 - float(row.epoch_s)

    async def agree(self, connection: TimedConnection) -> None:
        """Check that the clocks agree. Raises `ClocksDiffer` if not, or sqlalchemy's DBAPIError."""
        ahead_s = await self.ahead_s(connection)
        if abs(ahead_s) > APART_S:
            raise ClocksDiffer(ahead_s)
