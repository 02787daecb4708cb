"""How many turns may run at once, in total and per user, and who waits for a slot (section `limits`; 0 = off)."""

import asyncio
import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from agentic_backend.errors import Overloaded, RateLimited, TooManyTurns

_IDLE_USERS_KEPT = 10_000
_Queue = deque[tuple[int, asyncio.Future[None]]]


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The bounds, as configured. `queue_deadline_s` is how long an ask waits for a slot. One model may hold at most
    `turns_per_model` of `max_turns`, and the same share of the queue; 0 = no bound."""

    max_turns: int
    queue_length: int
    queue_deadline_s: float
    turns_per_user: int = 0
    asks_per_min: int = 0
    burst: int = 0
    turns_per_model: int = 0

    @property
    def queue_per_model(self) -> int:
        """Asks that may wait for one model."""
        if not self.turns_per_model or not self.queue_length:
            return self.queue_length
        return max(1, self.queue_length * self.turns_per_model // self.max_turns)


@dataclass(slots=True)
class _Line:
    """The turns of one model: how many run, which asks wait, and which wait after all others; each with its number in
    the overall order."""

    running: int = 0
    waiting: _Queue = field(default_factory=deque)
    behind: _Queue = field(default_factory=deque)


class RateOverall(Protocol):
    """How often users do something at all instances of a service together."""

    async def take(self, user_id: str) -> float:
        """Count it once. Returns 0 or, if it was not counted, the seconds after which to try again."""


class CountOverall(Protocol):
    """How many of something each user holds at all instances of a service together."""

    async def has_room(self, user_id: str, ages: Callable[[], list[float]]) -> bool:
        """Whether the user may hold those in `ages`: for how many seconds each is held here, including the new one."""

    def note(self, user_id: str) -> None:
        """Note that the user holds more here, or fewer. Never waits."""


@dataclass(frozen=True, slots=True)
class Overall:
    """The limits of users where other instances hold them too."""

    asks: RateOverall
    turns: CountOverall | None = None


@dataclass(slots=True)
class _User:
    running: int = 0
    tokens: float = 0.0
    refilled_at: float = 0.0


def _uncounted(_limit: str) -> None:
    """The default of `hit`: do not count."""


class Admission:
    """Counts running turns and hands out slots in the order of requests.

    `check` immediately refuses an ask above the user's own limits; `enter` takes a slot or waits for one; `leave`
    returns it. A freed slot goes to the longest waiting ask that may have it, never to a newcomer, and to those who
    `enter_behind` only where nobody else may: an ask whose model holds its share of the slots waits for a turn of that
    model to end, and holds up no other.
    """

    def __init__(self, limits: TurnLimits, hit: Callable[[str], None] = _uncounted) -> None:
        """`hit` is called with the name of a limit each time it rejects an ask."""
        self._limits = limits
        self.hit = hit
        self.overall: Overall | None = None
        """Where other instances serve the same users."""
        self._users: OrderedDict[str, _User] = OrderedDict()
        self._lines: dict[str, _Line] = {}
        self._numbers = itertools.count()
        self.running = 0
        self.left = 0
        """Turns that have given up their slot, since the start."""

    @property
    def waiting(self) -> int:
        """How many asks wait for a slot."""
        return sum(len(line.waiting) for line in self._lines.values())

    @property
    def fill(self) -> float:
        """Turns that run by `max_turns`, 0 where that is no limit. Never above 1."""
        return self.running / self._limits.max_turns if self._limits.max_turns else 0.0

    def full(self, model: str) -> bool:
        """Whether an ask for the model that comes now would have to wait."""
        return self._is_full() or self._has_its_share(self._line(model))

    def queue_full(self, model: str) -> bool:
        """Whether an ask that has to wait would be refused immediately."""
        limits = self._limits
        return self.waiting >= limits.queue_length or len(self._line(model).waiting) >= limits.queue_per_model

    def check(self, user_id: str) -> None:
        """Count one ask of the user, where no other instance counts them too (`enter_overall`). Raises `RateLimited` or
        `TooManyTurns`."""
        limits = self._limits
        if not limits.asks_per_min and not limits.turns_per_user:
            return
        user = self._user(user_id)
        if self.overall is not None:
            if limits.asks_per_min:
                self._expect_token(user)  # a user who floods costs nothing more
            return
        if limits.turns_per_user and user.running >= limits.turns_per_user:
            self.hit("per_user_turns")
            raise TooManyTurns(retry_after_s=1.0)
        if limits.asks_per_min:
            self._take_token(user)

    async def check_overall(self, user_id: str) -> None:
        """Count one ask of the user together with what they do at other instances. Raises `RateLimited`."""
        if self.overall is None or not self._limits.asks_per_min:
            return
        self._take_token(self._user(user_id))
        wait_s = await self.overall.asks.take(user_id)
        if wait_s:
            self.hit("per_user_asks_per_min")
            raise RateLimited(retry_after_s=wait_s)

    async def enter_overall(self, user_id: str) -> None:
        """Count one more turn of the user in progress, with those at other instances: not before it is known to run
        here, since one that runs elsewhere is followed at any limit. Raises `TooManyTurns`, and as `check_overall`."""
        await self._enter_overall(user_id)
        within_rate = False
        try:
            await self.check_overall(user_id)
            within_rate = True
        finally:
            if not within_rate:
                self.leave_user(user_id)

    async def _enter_overall(self, user_id: str) -> None:
        turns = None if self.overall is None else self.overall.turns
        entered = turns is None
        try:
            if turns is not None:
                entered = await turns.has_room(user_id, lambda: [0.0] * (self._user(user_id).running + 1))
                if not entered:
                    self.hit("per_user_turns")
                    raise TooManyTurns(retry_after_s=1.0)
        finally:
            if entered:
                self._user(user_id).running += 1
            elif turns is not None:
                turns.note(user_id)  # the count may have been reported, and this ask is cancelled

    def enter_user(self, user_id: str) -> None:
        """Count one more turn of the user in progress, whatever their limit is."""
        self._user(user_id).running += 1
        self._note(user_id)

    def leave_user(self, user_id: str) -> None:
        """Count one turn of the user in progress less."""
        self._user(user_id).running -= 1
        self._note(user_id)

    def _note(self, user_id: str) -> None:
        if self.overall is not None and self.overall.turns is not None:
            self.overall.turns.note(user_id)

    def ages_of(self, user_id: str) -> list[float]:
        """An entry for each turn of the user in progress: how old they are does not matter."""
        user = self._users.get(user_id)
        return [] if user is None else [0.0] * user.running

    def holders(self) -> Iterable[str]:
        """The users who have turns in progress."""
        return [user_id for user_id, user in self._users.items() if user.running]

    async def enter(self, model: str) -> float:
        """Take a slot for a turn of the model: an id of the configuration. Returns the seconds waited.

        Raises `Overloaded` at the queue's limit or deadline.
        """
        line = self._line(model)
        if not self.full(model):
            self._take(line)
            return 0.0
        if self.queue_full(model):
            raise self._refusal()
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.queue_deadline_s):
                await self._wait_in(line, line.waiting)
        except TimeoutError:
            raise self._refusal() from None
        return time.perf_counter() - began

    async def enter_behind(self, model: str) -> float:
        """Take a slot, behind all who `enter`, however long that takes. Returns the seconds waited."""
        line = self._line(model)
        if not self.full(model):
            self._take(line)
            return 0.0
        began = time.perf_counter()
        await self._wait_in(line, line.behind)
        return time.perf_counter() - began

    def leave(self, model: str) -> None:
        """Return the slot of a turn of the model: the longest waiting ask that may have it gets it."""
        self._return(self._line(model))

    def _return(self, line: _Line) -> None:
        self.left += 1
        self.running -= 1
        line.running -= 1
        while (found := self._next()) is not None:
            line, queue = found
            _, slot = queue.popleft()
            if not slot.done():
                self._take(line)  # the slot changes hands: no newcomer finds it free
                slot.set_result(None)
                return

    def _take(self, line: _Line) -> None:
        self.running += 1
        line.running += 1

    def _line(self, model: str) -> _Line:
        # Without a bound a model, all stand in one.
        key = model if self._limits.turns_per_model else ""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        return line

    def _is_full(self) -> bool:
        return 0 < self._limits.max_turns <= self.running

    def _has_its_share(self, line: _Line) -> bool:
        return 0 < self._limits.turns_per_model <= line.running

    def _next(self) -> tuple[_Line, _Queue] | None:
        """The queue of the ask that gets the next slot; None if no ask may have it."""
        able = [line for line in self._lines.values() if not self._has_its_share(line)]
        for queues in ([(line, line.waiting) for line in able], [(line, line.behind) for line in able]):
            if standing := [one for one in queues if one[1]]:
                return min(standing, key=lambda one: one[1][0][0])
        return None

    def _refusal(self) -> Overloaded:
        self.hit("max_turns" if self._is_full() else "model_share")
        return Overloaded(retry_after_s=self._limits.queue_deadline_s)

    async def _wait_in(self, line: _Line, queue: _Queue) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (next(self._numbers), slot)
        queue.append(place)
        entered = False
        try:
            await slot
            entered = True
        finally:
            if not entered:
                self._abandon(line, queue, place)

    def _abandon(self, line: _Line, queue: _Queue, place: tuple[int, asyncio.Future[None]]) -> None:
        _, slot = place
        if place in queue:
            queue.remove(place)
        elif slot.done() and not slot.cancelled():
            self._return(line)  # the slot had been handed over in the same tick

    def _user(self, user_id: str) -> _User:
        user = self._users.get(user_id)
        if user is None:
            user = self._users[user_id] = _User(tokens=float(self._limits.burst), refilled_at=time.monotonic())
            while len(self._users) > _IDLE_USERS_KEPT:
                oldest_id, oldest = next(iter(self._users.items()))
                if oldest.running:
                    self._users.move_to_end(oldest_id)
                    break
                del self._users[oldest_id]
        else:
            self._users.move_to_end(user_id)
        return user

    def _take_token(self, user: _User) -> None:
        self._expect_token(user)
        user.tokens -= 1.0

    def _expect_token(self, user: _User) -> None:
        rate = self._limits.asks_per_min / 60.0
        now = time.monotonic()
        user.tokens = min(float(max(self._limits.burst, 1)), user.tokens + (now - user.refilled_at) * rate)
        user.refilled_at = now
        if user.tokens < 1.0:
            self.hit("per_user_asks_per_min")
            raise RateLimited(retry_after_s=(1.0 - user.tokens) / rate)
