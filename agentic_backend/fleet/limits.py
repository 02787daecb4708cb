"""What a user may do at all instances together: few things an instance lets them do unasked, more Postgres decides.

Of a limit, all instances together let a fifth go without a word. What goes beyond is one conditional statement on one
row, which the fifth comes on top of: so no user gets more than 1.2 times a limit, and who is far from it costs nothing.
While Postgres does not answer, each instance holds the limits by itself.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from weakref import WeakValueDictionary

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.membership import Membership, Message
from agentic_backend.fleet.statements import CHANNEL, HOLD_SHARE, NOTIFY, TAKE_SHARE
from agentic_backend.persist.queries import Queries

_UNTOLD: Final = 0.2
"""The part of a limit that all instances together let go without telling one another."""
_AGAIN_S: Final = 1.0
_USERS_KEPT: Final = 10_000

KeepNewest = Callable[[str, int, float], None]
Told = dict[str, list[float]]
"""What each instance has said of a user: since when each thing is held there, the oldest first, by Postgres' clock."""


class Held(Protocol):
    """What users hold at this instance."""

    def ages_of(self, user_id: str) -> list[float]:
        """For how many seconds they have held each, the oldest first."""

    def holders(self) -> Iterable[str]:
        """The users who hold any."""


class SharedRate:
    """Implements `RateOverall`: a bucket for each user in Postgres, and at each instance a small one beside it. 0 a
    minute: no limit."""

    def __init__(self, shares: "FleetLimits", kind: str, per_min: int, burst: int) -> None:
        self._shares = shares
        self._kind = kind
        self._rate = per_min / 60.0
        self._burst = burst
        self._untold: dict[str, tuple[float, float]] = {}

    async def take(self, user_id: str) -> float:
        """See `RateOverall`."""
        if not self._rate or self._take_untold(user_id):
            return 0.0
        values = {"user_id": user_id, "kind": self._kind, "rate": self._rate, "burst": float(max(1, self._burst))}
        try:
            ((taken, tokens),) = await self._shares.queries.fetch("take_share", TAKE_SHARE, values)
        except HistoryUnavailable:
            return 0.0
        return 0.0 if taken else max(0.0, 1.0 - (tokens or 0.0)) / self._rate

    def _take_untold(self, user_id: str) -> bool:
        part = _UNTOLD / self._shares.instances
        most = part * self._burst
        if most < 1.0:
            return False
        now = time.monotonic()
        tokens, at = self._untold.pop(user_id, (most, now))
        tokens = min(most, tokens + (now - at) * part * self._rate)
        took = tokens >= 1.0
        self._untold[user_id] = (tokens - 1.0 if took else tokens, now)
        if len(self._untold) > _USERS_KEPT:
            del self._untold[next(iter(self._untold))]
        return took


class SharedCount:
    """Implements `CountOverall` for one kind of thing, e.g. turns; `most` of them a user may hold at all instances.

    With `keep_newest` it is never refused: the oldest of all go. It is called where those are, with the user, how many
    stay of what was open there, and when that was told, on the monotonic clock: more may be open or closed by then.
    """

    def __init__(self, shares: "FleetLimits", kind: str, most: int, held: Held, keep_newest: KeepNewest | None) -> None:
        self._shares = shares
        self._kind = kind
        self._most = most
        self._held = held
        self._keep_newest = keep_newest
        self._told: set[str] = set()
        # With whether the others are told if a user holds too many.
        self._due: dict[str, bool] = {}
        # What is told later must be written later.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def has_room(self, user_id: str, ages: Callable[[], list[float]]) -> bool:
        """See `CountOverall`."""
        if not self._most or self._is_untold(user_id, len(ages())):
            return True
        async with self._locks.setdefault(user_id, asyncio.Lock()):
            if len(ages()) > self._most:
                return False  # whatever others hold
            try:
                return await self._tell(user_id, ages(), self._most) is not None
            except HistoryUnavailable:
                return True

    def note(self, user_id: str) -> None:
        """See `CountOverall`."""
        if self._most and not self._is_untold(user_id, len(self._held.ages_of(user_id))):
            self._due[user_id] = True
            self._shares.some.set()

    def note_full(self, user_id: str) -> None:
        """Another instance has found that the user holds too many, and has told all that have to know."""
        self._due.setdefault(user_id, False)
        self._shares.some.set()

    def note_all(self) -> None:
        """There are other instances than before, or what they knew of this one is gone."""
        for user_id in (*self._told, *self._held.holders()):
            self.note(user_id)

    async def write(self) -> None:
        """Tell what is due. Raises `HistoryUnavailable` with the rest of it still due."""
        while self._due:
            user_id, tell_others = next(iter(self._due.items()))
            del self._due[user_id]
            try:
                async with self._locks.setdefault(user_id, asyncio.Lock()):
                    told_at = time.monotonic()
                    told = await self._tell(user_id, self._held.ages_of(user_id))
                await self._make_room(user_id, told or {}, told_at, tell_others=tell_others)
            except HistoryUnavailable:
                self._due[user_id] = True
                raise

    def _is_untold(self, user_id: str, count: int) -> bool:
        return user_id not in self._told and count <= int(self._most * _UNTOLD / self._shares.instances)

    async def _tell(self, user_id: str, ages: list[float], most: int | None = None) -> Told | None:
        """Write what the user holds here; what all say then. None if that would be more than `most`."""
        values = {**self._shares.judge, "user_id": user_id, "kind": self._kind, "ages": ages, "most": most}
        was_told = user_id in self._told
        self._told.add(user_id)  # it may have been written, whatever becomes of it
        rows = await self._shares.queries.fetch("hold_share", HOLD_SHARE, values)
        if not ages if rows else not was_told:
            self._told.discard(user_id)
        return rows[0].held if rows else None

    async def _make_room(self, user_id: str, told: Told, told_at: float, *, tell_others: bool) -> None:
        everything = sorted((since, instance) for instance, held in told.items() for since in held)
        over = [instance for _, instance in everything[: max(0, len(everything) - self._most)]]
        if self._keep_newest is None or not self._most or not over:
            return
        me = self._shares.me
        if me in over:
            self._keep_newest(user_id, len(told[me]) - over.count(me), told_at)
        for instance in set(over) - {me} if tell_others else ():
            await self._shares.say_full(instance, user_id)


class FleetLimits:
    """The limits of users over all instances. `instances` is how many there are, at least two: another may come at any
    moment. `some` is set where something is due."""

    def __init__(self, queries: Queries, membership: Membership) -> None:
        self.queries = queries
        self.me = membership.identity.id
        self.judge = {"me": self.me, "dead_s": membership.rules.dead_s}
        self.instances = 2
        self._counts: dict[str, SharedCount] = {}
        self.some = asyncio.Event()

    def count(self, kind: str, most: int, held: Held, keep_newest: KeepNewest | None = None) -> SharedCount:
        """Limit how many of something users hold; 0: no limit."""
        self._counts[kind] = SharedCount(self, kind, most, held, keep_newest)
        return self._counts[kind]

    def note_instances(self, alive: int) -> None:
        """So many instances are there now, this one among them."""
        instances = max(2, alive)
        grown, self.instances = instances > self.instances, instances
        if grown:
            self.note_all()

    def note_all(self) -> None:
        """What the others know of this instance may be gone: tell them again."""
        for count in self._counts.values():
            count.note_all()

    def note_full(self, user_id: str) -> None:
        """Another instance has found that a user holds too many sockets."""
        self._counts["sockets"].note_full(user_id)

    async def say_full(self, instance: str, user_id: str) -> None:
        """Have an instance see for itself which sockets of the user it must close."""
        message = Message("full", "", user_id, to=instance, sender=self.me)
        await self.queries.fetch("notify", NOTIFY, {"channel": CHANNEL, "message": message.encode()})

    async def write(self) -> None:
        """Tell what is due, until cancelled. Spawn it with `restart=True`."""
        while True:
            await self.some.wait()
            self.some.clear()
            try:
                for count in self._counts.values():
                    await count.write()
            except HistoryUnavailable:
                asyncio.get_running_loop().call_later(_AGAIN_S, self.some.set)
