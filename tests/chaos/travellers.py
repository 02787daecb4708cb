"""Clients of a fleet: they ask at any instance, and go on at another one where theirs is gone, by resume alone."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from websockets.asyncio.client import ClientConnection

from backend_kit.wire import dumps
from tests.chaos.ledger import Asked, Ledger
from tests.chaos.load import CUT, Address, ask_text, hear
from tests.chaos.until import until

_ENDS = ("final", "cancelled", "error", "awaiting_human")
_PATIENCE_S = 40.0
"""Longer than any takeover: then the client looks elsewhere."""
_RESTLESS_S = (0.3, 2.5)
"""After how long a restless client leaves in the middle of an answer."""
_A_WHILE_S = 1.0
_LEAVES_S = 15.0
_MOVES = 0.3
"""The share of answers after which a client asks elsewhere."""


@dataclass(slots=True)
class Journey:
    """One ask over all connections of its client. Times are perf_counter() seconds."""

    asked: Asked
    place: int | None = None
    """The instance that accepted it."""
    seq: int = 0
    text: str = ""
    """What the client shows of the answer."""
    end: str = ""
    """How it ended: the type of the frame, or the code of the error."""
    ends: int = 0
    disorder: int = 0
    """Numbers that fell back in the middle of a connection."""
    differs: bool = False
    """The client has shown another text than that of the answer."""
    struck_at: float = 0.0
    """When its instance was killed in the middle of it."""
    restarts: list[float] = field(default_factory=list)
    silences: list[tuple[float, float]] = field(default_factory=list)
    """When each silence of over a second ended, and how many seconds it lasted: from the question or an event to the
    next event, whatever the client did meanwhile."""
    heard_at: float | None = None
    connected: bool = False
    """An event has come on the present connection."""

    def take(self, frame: Mapping[str, Any], now: float) -> None:
        """One event of the exchange."""
        since = self.asked.sent_at if self.heard_at is None else self.heard_at
        if now - since > _A_WHILE_S:
            self.silences.append((now, now - since))
        self.heard_at = now
        kind, seq = frame["type"], frame["seq"]
        if seq <= self.seq:
            self.disorder += self.connected
            self.text = ""  # it is told from the first event on
        self.connected = True
        self.seq = seq
        if kind in ("accepted", "restarted"):
            self.text = ""
        if kind == "restarted":
            self.restarts.append(now)
        elif kind == "delta":
            self.text += frame["text"]
        elif kind in _ENDS:
            self.ends += 1
            self.end = str(frame.get("code", kind))
            if kind == "final":
                parts = frame["messages"][-1]["parts"]
                self.differs = self.text != "".join(part.get("text", "") for part in parts)

    @property
    def takeover_s(self) -> float | None:
        """From the kill until the client heard that it runs again; None where its end had been told before."""
        return self.restarts[0] - self.struck_at if self.struck_at and self.restarts else None


@dataclass(frozen=True, slots=True)
class Findings:
    """What the clients saw, all asks together."""

    asks: int
    accepted: int
    finals: int
    """Accepted asks that ended in `final`. None of them was asked again."""
    one_end: int
    """Asks with exactly one end."""
    odd: int
    """Asks whose numbers fell back, or whose text was not that of the answer."""
    takeovers: list[float]
    """Seconds."""
    restarted: int
    """Asks that were run again, wherever."""
    ends: dict[str, int]
    """Accepted asks that ended otherwise, by how."""


@dataclass(slots=True)
class _Seat:
    session_id: str
    place: int
    number: int
    count: int = 0
    journey: Journey | None = None


class Travellers:
    """One client a session, each at an instance of its own choice. Make them with `travellers(...)`.

    `pause_s` is the longest pause between an answer and the next ask, `patience_s` how long a client waits for the end
    of an answer at one instance. `restless` is the share of times that it leaves long before, and goes on elsewhere.
    """

    def __init__(
        self,
        instances: Sequence[Address],
        ledger: Ledger,
        draw: random.Random,
        *,
        pause_s: float,
        patience_s: float = _PATIENCE_S,
        restless: float = 0.0,
    ) -> None:
        self.ledger = ledger
        self.journeys: list[Journey] = []
        self._instances = instances
        self._draw = draw
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._restless = restless
        self._name = f"{draw.getrandbits(32):08x}"
        self._seats: list[_Seat] = []
        self._by_id: dict[str, Journey] = {}
        self._going = asyncio.Event()
        self._going.set()
        self._closed = False

    def take_seats(self, sessions: Sequence[str], tasks: asyncio.TaskGroup) -> None:
        """Begin."""
        for number, session_id in enumerate(sessions):
            self.ledger.sessions.add(session_id)
            seat = _Seat(session_id, number % len(self._instances), number)
            self._seats.append(seat)
            tasks.create_task(self._member(seat))

    def strike(self, place: int) -> int:
        """Note that an instance is killed now; how many turns that hits."""
        struck = self._first_runs(place)
        for journey in struck:
            journey.struck_at = perf_counter()
        return len(struck)

    async def busy_places(self) -> list[int]:
        """The instances that run turns, of which there is at least one. Raises TimeoutError."""
        places = range(len(self._instances))
        await until(lambda: any(self._first_runs(place) for place in places))
        return [place for place in places if self._first_runs(place)]

    async def asked_at(self, place: int) -> None:
        """Wait until an instance accepts one more question: the whole of its answer is still to come. Raises
        TimeoutError."""

        def accepted() -> int:
            return sum(journey.place == place for journey in self.journeys)

        before = accepted()
        await until(lambda: accepted() > before)

    def _first_runs(self, place: int) -> list[Journey]:
        """Of the turns that an instance runs, those that have not moved before."""
        journeys = (seat.journey for seat in self._seats)
        return [one for one in journeys if one is not None and one.place == place and not one.restarts]

    async def recovered(self) -> None:
        """Wait until every turn has ended that was hit or has moved: no turn is promised to outlive two instances.
        Raises TimeoutError."""

        def moved() -> bool:
            journeys = (seat.journey for seat in self._seats)
            return any(one is not None and bool(one.struck_at or one.restarts) for one in journeys)

        await until(lambda: not moved())

    async def answered(self, count: int) -> None:
        """Wait until `count` more questions have been answered. Raises TimeoutError."""
        target = self.ledger.told_count + count
        await until(lambda: self.ledger.told_count >= target)

    async def pause(self) -> None:
        """Ask nothing new, and wait for what was asked. Raises TimeoutError."""
        self._going.clear()
        await until(lambda: all(seat.journey is None for seat in self._seats))

    def close(self) -> None:
        """Let every client leave after its turn."""
        self._closed = True
        self._going.set()

    def longest_silence_s(self, begun: float, ended: float) -> float:
        """Of those that ended in a span of perf_counter(), in seconds; 0 where none was over a second."""
        silences = (one for journey in self.journeys for one in journey.silences)
        return max((seconds for end, seconds in silences if begun < end <= ended), default=0.0)

    def findings(self) -> Findings:
        """What they have seen."""
        accepted = [journey for journey in self.journeys if journey.place is not None]
        others = [journey.end for journey in accepted if journey.end != "final"]
        return Findings(
            asks=len(self.journeys),
            accepted=len(accepted),
            finals=len(accepted) - len(others),
            one_end=sum(journey.ends == 1 for journey in self.journeys),
            odd=sum(journey.disorder > 0 or journey.differs for journey in self.journeys),
            takeovers=[found for journey in self.journeys if (found := journey.takeover_s) is not None],
            restarted=sum(bool(journey.restarts) for journey in self.journeys),
            ends={end or "no end": others.count(end) for end in set(others)},
        )

    async def _member(self, seat: _Seat) -> None:
        while not self._closed:
            try:
                async with self._instances[seat.place].dial() as socket:
                    await self._stay(socket, seat)
            except CUT:
                self.ledger.cuts += 1
                await asyncio.sleep(self._draw.uniform(0.05, 0.3))
            step = self._draw.randrange(1, len(self._instances)) if len(self._instances) > 1 else 0
            seat.place = (seat.place + step) % len(self._instances)

    async def _stay(self, socket: ClientConnection, seat: _Seat) -> None:
        """Go on with what is open, then ask, until the client fancies another instance."""
        while not self._closed:
            if seat.journey is None:
                if not await self._may_ask():
                    return
                seat.journey = self._ask(seat)
            seat.journey.connected = False
            await socket.send(_next_text(seat.journey))
            async with asyncio.timeout(self._patience()):
                over = await self._hear_out(socket, seat, seat.journey)
            if over:
                seat.journey = None
                if self._draw.random() < _MOVES:
                    return

    def _patience(self) -> float:
        if self._restless and self._draw.random() < self._restless:
            return self._draw.uniform(*_RESTLESS_S)
        return self._patience_s

    async def _may_ask(self) -> bool:
        """Wait until the next question comes to mind; False where the client is to leave."""
        await asyncio.sleep(self._draw.uniform(0, self._pause_s))
        await self._going.wait()
        return not self._closed

    def _ask(self, seat: _Seat) -> Journey:
        seat.count += 1
        exchange_id = f"{self._name}-{seat.number}-{seat.count}"
        asked = self.ledger.ask(exchange_id, seat.session_id, f"Question {seat.count} of {exchange_id}?")
        journey = self._by_id[exchange_id] = Journey(asked)
        self.journeys.append(journey)
        return journey

    async def _hear_out(self, socket: ClientConnection, seat: _Seat, journey: Journey) -> bool:
        """Hear the exchange to its end, or to a refusal; whether there is nothing more to hear of it."""
        while True:
            frame = await hear(socket)
            of = self._by_id.get(frame.get("exchange_id", ""))
            if of is None:
                continue
            if "seq" in frame:
                if journey.place is None and of is journey:
                    journey.place = seat.place
                of.take(frame, perf_counter())  # of an earlier one: then that has two ends
                if of is journey and journey.end:
                    self._told(frame, journey)
                    return True
            elif of is journey and frame["type"] == "error":
                return await self._refused(frame, journey)

    def _told(self, frame: Mapping[str, Any], journey: Journey) -> None:
        if frame["type"] in ("final", "cancelled"):
            self.ledger.told(journey.asked, frame)
        elif frame["type"] == "error":
            self.ledger.errors[frame["code"]] += 1

    async def _refused(self, frame: Mapping[str, Any], journey: Journey) -> bool:
        """Whether that was the last word: else the client waits, and tries again."""
        self.ledger.errors[frame["code"]] += 1
        if frame["retryable"]:
            wait_s = (frame.get("retry_after_ms") or 200) / 1e3
            await asyncio.sleep(wait_s * self._draw.uniform(0.8, 1.2))
            return False
        journey.end = frame["code"]
        return True


def _next_text(journey: Journey) -> str:
    """What the client sends on a new connection: the ask where nothing says that it arrived, else a resume."""
    asked = journey.asked
    if journey.place is None:
        return ask_text(asked)
    where = {"session_id": asked.session_id, "exchange_id": asked.exchange_id}
    return dumps({"type": "resume", **where, "after_seq": journey.seq}).decode()


@asynccontextmanager
async def travellers(
    instances: Sequence[Address], ledger: Ledger, draw: random.Random, sessions: Sequence[str], **habits: float
) -> AsyncIterator[Travellers]:
    """Clients that ask while the block runs, with these habits; they leave after their turns, or after 15 s without an
    answer."""
    clients = Travellers(instances, ledger, draw, **habits)
    async with asyncio.TaskGroup() as outer:
        seated = outer.create_task(_seated(clients, sessions))
        try:
            yield clients
        finally:
            clients.close()
            _, late = await asyncio.wait([seated], timeout=_LEAVES_S)
            if late:
                seated.cancel()


async def _seated(clients: Travellers, sessions: Sequence[str]) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            clients.take_seats(sessions, tasks)
    except asyncio.CancelledError:
        pass
