"""Who goes next where users wait for the same thing: one after the other by user, however much each asks for."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Literal

_IDLE_USERS_KEPT: Final = 10_000

Crowd = Literal["per_user", "overall"]
"""Whose bound of waiting a request met: that of its user, or that of all."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """`places` are held at a time, at most `per_user` of them by one user (0 = all). The last `reserve` of them only go
    to users who hold none. At most `waiting` wait, and `waiting_per_user` of one user.

    `budget_s`: who has used more seconds than this lately goes behind all others (0 = nobody); what was used counts
    half after `half_life_s`.
    """

    places: int
    per_user: int = 0
    reserve: int = 0
    waiting: int = 1_000
    waiting_per_user: int = 100
    budget_s: float = 0.0
    half_life_s: float = 60.0

    def of_one_user(self) -> "GateRules":
        """The same where all callers count as one user, as without authentication: only what is bounded in all."""
        return replace(self, per_user=0, reserve=0, waiting_per_user=self.waiting, budget_s=0.0)


class Crowded(Exception):
    """Too many wait. `bound` says whose bound it is."""

    def __init__(self, bound: Crowd) -> None:
        super().__init__(bound)
        self.bound: Crowd = bound


@dataclass(slots=True)
class _User:
    held: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    ahead: int = 0
    """How many at the head of `waiting` go before other users."""
    used_s: float = 0.0
    used_at: float = 0.0


class FairGate:
    """Hands out places in the order of users, not of requests: a freed place goes to the next user who waits, who then
    stands behind the others. Within a user it goes by age.

    A newcomer never overtakes one who waits and may have the place. Where too many wait, the newest of the user with
    the most has to go.
    """

    def __init__(self, rules: GateRules, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, by which what a user has used is forgotten."""
        self._rules = rules
        self._clock = clock
        self._users: OrderedDict[str, _User] = OrderedDict()
        self._line: OrderedDict[str, _User] = OrderedDict()
        """Those of the users who wait, the next one first."""
        self._ahead = 0
        self.running = 0
        self.waiting = 0

    def held_by(self, user_id: str) -> int:
        """How many places the user holds."""
        user = self._users.get(user_id)
        return 0 if user is None else user.held

    def waits_for_own(self, user_id: str) -> bool:
        """Whether the user holds places and may have no more, though others might: what waits of theirs waits for that,
        and not for others."""
        rules, held = self._rules, self.held_by(user_id)
        return held > 0 and (held >= rules.per_user > 0 or self.running < rules.places)

    def place(self, user_id: str) -> "_Place":
        """Hold a place for an `async with` block, which may wait for it. Raises as `enter`."""
        return _Place(self, user_id)

    async def enter(self, user_id: str, *, ahead: bool = False) -> None:
        """Take a place, or wait for one. Raises `Crowded` where too many wait, at once or when others come later.

        `ahead` is for the next step of what has begun: it goes before the user's others, and, while the user holds no
        place, before other users.
        """
        if self.enter_now(user_id):
            return
        user = self._user(user_id)
        self._make_room(user)
        await self._wait(user_id, user, ahead=ahead)

    def enter_now(self, user_id: str) -> bool:
        """Take a place where there is one for the user and nobody waits; False where not."""
        user = self._user(user_id)
        if self._line or not self._may(user):
            return False
        self._take(user)
        return True

    def leave(self, user_id: str, used_s: float = 0.0) -> None:
        """Give a place back. `used_s`: how many seconds of what is scarce it has cost."""
        user = self._users[user_id]
        user.held -= 1
        self.running -= 1
        if used_s:
            user.used_s = self._used(user) + used_s
            user.used_at = self._clock()
        if self._line:
            self._hand_out()

    def _may(self, user: _User) -> bool:
        rules = self._rules
        if rules.per_user and user.held >= rules.per_user:
            return False
        free = rules.places - self.running
        return free > (rules.reserve if user.held else 0)

    def _take(self, user: _User) -> None:
        user.held += 1
        self.running += 1

    def _make_room(self, user: _User) -> None:
        rules = self._rules
        if len(user.waiting) >= rules.waiting_per_user:
            raise Crowded("per_user")
        if self.waiting < rules.waiting:
            return
        longest = max(self._line.values(), key=lambda one: len(one.waiting), default=user)
        if len(user.waiting) >= len(longest.waiting):
            raise Crowded("overall")
        # It stays in its queue until its own task has seen this, in `_wait`.
        for place in reversed(longest.waiting):
            if not place.done():
                place.set_exception(Crowded("overall"))
                return

    async def _wait(self, user_id: str, user: _User, *, ahead: bool) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if ahead:
            user.waiting.insert(user.ahead, place)
            self._count_ahead(user, 1)
        else:
            user.waiting.append(place)
        self._line.setdefault(user_id, user)
        self.waiting += 1
        self._hand_out()
        entered = False
        try:
            await place
            entered = True
        finally:
            if not entered:
                self._abandon(user_id, user, place)

    def _abandon(self, user_id: str, user: _User, place: asyncio.Future[None]) -> None:
        if place in user.waiting:
            if user.waiting.index(place) < user.ahead:
                self._count_ahead(user, -1)
            user.waiting.remove(place)
            self._waits_less(user_id, user)
        elif place.done() and not place.cancelled() and place.exception() is None:
            self.leave(user_id)  # it had been handed over in the same tick

    def _count_ahead(self, user: _User, change: int) -> None:
        user.ahead += change
        self._ahead += change

    def _waits_less(self, user_id: str, user: _User) -> None:
        self.waiting -= 1
        if not user.waiting:
            del self._line[user_id]

    def _hand_out(self) -> None:
        while self._line and self.running < self._rules.places:
            user_id = self._next()
            if user_id is None:
                return
            user = self._line[user_id]
            place = user.waiting.popleft()
            if user.ahead:
                self._count_ahead(user, -1)
            self._line.move_to_end(user_id)
            self._waits_less(user_id, user)
            if not place.done():
                self._take(user)  # it changes hands here: no newcomer finds it free
                place.set_result(None)

    def _next(self) -> str | None:
        """The next user who may have a place: one whose work has begun, one within their budget, else any."""
        if self._ahead:
            for user_id, user in self._line.items():
                if user.ahead and not user.held and self._may(user):
                    return user_id
        behind: str | None = None
        for user_id, user in self._line.items():
            if not self._may(user):
                continue
            if not self._rules.budget_s or self._used(user) <= self._rules.budget_s:
                return user_id
            behind = behind or user_id
        return behind

    def _used(self, user: _User) -> float:
        if not user.used_s:
            return 0.0
        return float(user.used_s * 0.5 ** ((self._clock() - user.used_at) / self._rules.half_life_s))

    def _user(self, user_id: str) -> _User:
        user = self._users.get(user_id)
        if user is None:
            user = self._users[user_id] = _User()
            self._forget()
        return user

    def _forget(self) -> None:
        """Drop users who hold nothing and wait for nothing, the oldest first."""
        for _ in range(2):  # two for each that comes: more than come
            if len(self._users) <= _IDLE_USERS_KEPT:
                return
            oldest_id, oldest = next(iter(self._users.items()))
            if oldest.held or oldest.waiting:
                self._users.move_to_end(oldest_id)
            else:
                del self._users[oldest_id]


class _Place:
    """A place of a gate, held inside the block. `used_s`: seconds that it cost, to be set in the block."""

    __slots__ = ("_gate", "_user_id", "used_s")

    def __init__(self, gate: FairGate, user_id: str) -> None:
        self._gate = gate
        self._user_id = user_id
        self.used_s = 0.0

    async def __aenter__(self) -> "_Place":
        await self._gate.enter(self._user_id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave(self._user_id, self.used_s)


class Pace:
    """How often each user may do something: `per_s` times a second on average, `burst` times at once.

    A caller that comes too early gets the time to wait, and keeps their place: those who come later wait longer.
    """

    def __init__(self, per_s: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s` and `burst` above 0."""
        self._each_s = 1.0 / per_s
        self._ahead_s = (burst - 1) * self._each_s
        self._clock = clock
        self._next: OrderedDict[str, float] = OrderedDict()

    def take(self, user_id: str, longest_s: float) -> float | None:
        """Count it once. Returns the seconds to wait before it is done, or None, uncounted, above `longest_s`."""
        now = self._clock()
        at = max(self._next.get(user_id, now), now)
        wait_s = at - now - self._ahead_s
        if wait_s > longest_s:
            return None
        self._next[user_id] = at + self._each_s
        self._next.move_to_end(user_id)
        if len(self._next) > _IDLE_USERS_KEPT:
            self._next.popitem(last=False)  # the one that has been away for longest
        return max(0.0, wait_s)
