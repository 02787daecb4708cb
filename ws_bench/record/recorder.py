"""What a running run has seen so far: read by the live lines, the gates and, at the end, the report."""

import asyncio
from collections import Counter, deque

from ws_bench.record.dialects import clock
from ws_bench.record.results import TurnResult

_RECENT_S = 10.0


class Recorder:
    """Results, counts of now, and the moments that others wait for. All on one loop, so nothing is locked.

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
        """Every client has written its first ask."""
        self.first_done = asyncio.Event()
        """A client has no more turns."""
        self._clients = clients
        self._asked: set[int] = set()
        self._recent: deque[tuple[float, float]] = deque()

    def now(self) -> float:
        """Seconds since the run began."""
        return clock() - self.begin

    def turn_asked(self, client: int) -> None:
        """An ask is written now."""
        self.in_flight += 1
        if len(self._asked) < self._clients:
            self._asked.add(client)
            if len(self._asked) == self._clients:
                self.all_asked.set()

    def turn_ended(self, result: TurnResult) -> int:
        """The turn of an ask has ended; the number of its record."""
        self.in_flight -= 1
        return self.add_result(result)

    def add_result(self, result: TurnResult) -> int:
        """Keep a result; the number of its record."""
        self.turns.append(result)
        if result.ok:
            self._recent.append((result.ended, result.latency_ms))
        else:
            self.errors[result.error] += 1
        return len(self.turns) - 1

    def replace_result(self, number: int, result: TurnResult) -> None:
        """A turn turned out otherwise after its end."""
        self.turns[number] = result
        self.errors[result.error] += 1

    def client_done(self) -> None:
        """A client has no more turns."""
        self.first_done.set()

    def recent_latencies(self) -> list[float]:
        """Latencies of the turns that ended well in the last ten seconds, in milliseconds."""
        oldest = self.now() - _RECENT_S
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()
        return [latency for _, latency in self._recent]
