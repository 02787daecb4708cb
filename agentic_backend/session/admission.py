"""How many turns may run at once, in total and per user, and who waits for a slot (section `limits`; 0 = off)."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from agentic_backend.errors import Overloaded, RateLimited, TooManyTurns

_IDLE_USERS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The bounds, as configured. `queue_deadline_s` is how long an ask waits for a slot."""

    max_turns: int
    queue_length: int
    queue_deadline_s: float
    turns_per_user: int = 0
    asks_per_min: int = 0
    burst: int = 0


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
    returns it. A freed slot goes to the head of the queue, never to a newcomer, and to those who `enter_behind` only
    where nobody else waits.
    """

    def __init__(self, limits: TurnLimits, hit: Callable[[str], None] = _uncounted) -> None:
        """`hit` is called with the name of a limit each time it rejects an ask."""
        self._limits = limits
        self.hit = hit
        self._users: OrderedDict[str, _User] = OrderedDict()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._behind: deque[asyncio.Future[None]] = deque()
        self.running = 0
        self.left = 0
        """Turns that have given up their slot, since the start."""

    @property
    def waiting(self) -> int:
        """How many asks wait for a slot."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether an ask that comes now would have to wait."""
        return 0 < self._limits.max_turns <= self.running

    @property
    def queue_full(self) -> bool:
        """Whether an ask that has to wait would be refused immediately."""
        return len(self._waiting) >= self._limits.queue_length

    def check(self, user_id: str) -> None:
        """Count one ask of the user. Raises `RateLimited` or `TooManyTurns`."""
        limits = self._limits
        if not limits.asks_per_min and not limits.turns_per_user:
            return
        user = self._user(user_id)
        if limits.turns_per_user and user.running >= limits.turns_per_user:
            self.hit("per_user_turns")
            raise TooManyTurns(retry_after_s=1.0)
        if limits.asks_per_min:
            self._take_token(user)

    def enter_user(self, user_id: str) -> None:
        """Count one more turn of the user in progress."""
        self._user(user_id).running += 1

    def leave_user(self, user_id: str) -> None:
        """Count one turn of the user less in progress."""
        self._user(user_id).running -= 1

    async def enter(self) -> float:
        """Take a slot. Returns the seconds waited. Raises `Overloaded` at the queue's limit or deadline."""
        if not self.full:
            self.running += 1
            return 0.0
        if self.queue_full:
            self.hit("max_turns")
            raise Overloaded(retry_after_s=self._limits.queue_deadline_s)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.queue_deadline_s):
                await self._wait_in(self._waiting)
        except TimeoutError:
            self.hit("max_turns")
            raise Overloaded(retry_after_s=self._limits.queue_deadline_s) from None
        return time.perf_counter() - began

    async def enter_behind(self) -> float:
        """Take a slot, behind all who `enter`, however long that takes. Returns the seconds waited."""
        if not self.full:
            self.running += 1
            return 0.0
        began = time.perf_counter()
        await self._wait_in(self._behind)
        return time.perf_counter() - began

    def leave(self) -> None:
        """Pass the slot to the longest waiting ask, or free it."""
        self.left += 1
        for queue in (self._waiting, self._behind):
            while queue:
                slot = queue.popleft()
                if not slot.done():
                    slot.set_result(None)  # the slot changes hands: `running` stays
                    return
        self.running -= 1

    async def _wait_in(self, queue: deque[asyncio.Future[None]]) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(slot)
        entered = False
        try:
            await slot
            entered = True
        finally:
            if not entered:
                self._abandon(queue, slot)

    def _abandon(self, queue: deque[asyncio.Future[None]], slot: asyncio.Future[None]) -> None:
        if slot in queue:
            queue.remove(slot)
        elif slot.done() and not slot.cancelled():
            self.leave()  # the slot had been handed over in the same tick

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
        rate = self._limits.asks_per_min / 60.0
        now = time.monotonic()
        user.tokens = min(float(max(self._limits.burst, 1)), user.tokens + (now - user.refilled_at) * rate)
        user.refilled_at = now
        if user.tokens < 1.0:
            self.hit("per_user_asks_per_min")
            raise RateLimited(retry_after_s=(1.0 - user.tokens) / rate)
        user.tokens -= 1.0
