"""Results of a run in progress: read by the progress display, the gates and, at the end, the report."""

import asyncio
from collections import Counter, deque

from ws_bench.record.dialects import clock
from ws_bench.record.results import TurnResult

_RECENT_S = 10.0


class Recorder:
    """Results, current counts, and the events that others wait for. Used on one loop only, so it needs no lock.

    Times in the results are seconds since `begin` (on `clock`).
    """

    def __init__(self, clients: int) -> None:
        self.begin = clock()
        self.turns: list[TurnResult] = []
        self.connect_ms: list[float] = []
        self.session_ms: list[float] = []
        self.close_ms: list[float] = []
        self.in_flight = 0
        self.active = 0
        self.reconnects = 0
        self.errors: Counter[str] = Counter()
        self.all_asked = asyncio.Event()
        """Set when every client has sent its first ask."""
        self.first_done = asyncio.Event()
        """Set when a client has no more turns."""
        self._clients = clients
        self._asked: set[int] = set()
        self._recent: deque[tuple[float, float]] = deque()

    def now(self) -> float:
        """Seconds since the run began."""
        return clock() - self.begin

    def turn_asked(self, client: int) -> None:
        """Count an ask that is about to be sent."""
        self.in_flight += 1
        if len(self._asked) < self._clients:
            self._asked.add(client)
            if len(self._asked) == self._clients:
                self.all_asked.set()

    def turn_ended(self, result: TurnResult) -> int:
        """Record the result of an asked turn and return its index."""
        self.in_flight -= 1
        return self.add_result(result)

    def add_result(self, result: TurnResult) -> int:
        """Record a result and return its index."""
        self.turns.append(result)
        if result.ok:
            self._recent.append((result.ended, result.latency_ms))
        else:
            self.errors[result.error] += 1
        return len(self.turns) - 1

    def replace_result(self, number: int, result: TurnResult) -> None:
        """Replace a result: the turn turned out to be an error after its end."""
        self.turns[number] = result
        self.errors[result.error] += 1

    def client_done(self) -> None:
        """Note that a client has no more turns."""
        self.first_done.set()

    def recent_latencies(self) -> list[float]:
        """Latencies of the turns that ended well in the last ten seconds, in milliseconds."""
        oldest = self.now() - _RECENT_S
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()
        return [latency for _, latency in self._recent]
