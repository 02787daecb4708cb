"""What a user may do at all instances together: an instance allows a few things on its own, and beyond that Postgres
decides.

All instances together allow a fifth of a limit without asking. Anything beyond takes one conditional statement on one
row, and the fifth comes on top of that: so no user gets more than 1.2 times a limit, and one who is far from it costs
nothing. While Postgres does not answer, each instance enforces the limits on its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakValueDictionary

from sqlalchemy import text

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.persist.database import Queries
from backend_kit.aio.retry import try_again

_OF_OTHERS: Final = """
FROM jsonb_each(share.held) AS other JOIN instance AS holder ON holder.id = other.key
WHERE other.key <> :me AND holder.heartbeat_at > clock_timestamp() - make_interval(secs => :dead_s)
"""
# Entries of dead instances are left out. With :most, the row is written only if the total does not exceed it.
HOLD_SHARE = text(f"""
INSERT INTO user_share AS share (user_id, kind, held, changed_at)
SELECT :user_id, :kind, jsonb_build_object(CAST(:me AS text), coalesce(jsonb_agg(since ORDER BY since), '[]')),
    clock_timestamp()
FROM (SELECT extract(epoch FROM clock_timestamp()) - age AS since FROM unnest(CAST(:ages AS float8[])) AS age) AS mine
ON CONFLICT (user_id, kind) DO UPDATE SET changed_at = excluded.changed_at,
    held = excluded.held || (SELECT coalesce(jsonb_object_agg(other.key, other.value), '{{}}') {_OF_OTHERS})
WHERE CAST(:most AS integer) IS NULL OR :most >= jsonb_array_length(excluded.held -> CAST(:me AS text))
    + (SELECT coalesce(sum(jsonb_array_length(other.value)), 0) {_OF_OTHERS})
RETURNING held
""")  # noqa: S608 - constants
# What an earlier process of this instance had reported.
FORGET_SHARES = text("""
UPDATE user_share SET held = held - CAST(:me AS text) WHERE jsonb_exists(held, CAST(:me AS text)) RETURNING user_id
""")
SWEEP_SHARES = text("""
DELETE FROM user_share AS share WHERE changed_at < clock_timestamp() - interval '1 day' AND NOT EXISTS (
    SELECT FROM jsonb_each(share.held) AS held JOIN instance ON instance.id = held.key
    WHERE jsonb_array_length(held.value) > 0)
RETURNING user_id
""")

# A clock that was set back, or the one of another server, would keep a bucket empty until it has caught up.
_STEPPED: Final = "share.changed_at > statement_timestamp() + interval '5 s'"
_TOKENS: Final = f"""CASE WHEN {_STEPPED} THEN :burst ELSE least(:burst, share.tokens
    + :rate * greatest(0, extract(epoch FROM statement_timestamp() - share.changed_at))) END"""
# One token of the user's bucket, and how many there were as the statement began.
TAKE_SHARE = text(f"""
WITH taken AS (
    INSERT INTO user_share AS share (user_id, kind, tokens, changed_at)
    VALUES (:user_id, :kind, CAST(:burst AS float8) - 1, statement_timestamp())
    ON CONFLICT (user_id, kind) DO UPDATE SET tokens = {_TOKENS} - 1, changed_at = CASE WHEN {_STEPPED}
        THEN statement_timestamp() ELSE greatest(share.changed_at, statement_timestamp()) END
    WHERE {_TOKENS} >= 1
    RETURNING user_id
)
SELECT EXISTS (SELECT FROM taken) AS taken,
    (SELECT {_TOKENS} FROM user_share AS share WHERE user_id = :user_id AND kind = :kind) AS tokens
""")  # noqa: S608 - constants

_UNREPORTED: Final = 0.2
"""The part of a limit that all instances together allow without asking one another."""
_AGAIN_S: Final = 1.0
_SWEEP_S: Final = 3600.0
_AT_ONCE: Final = 8
"""Users who are reported at the same time, a connection each."""
_USERS_KEPT: Final = 10_000

KeepNewest = Callable[[str, int, float], None]
ReportedAges = dict[str, list[float]]
"""What each instance has reported of a user: since when each item is held there, the oldest first, by Postgres'
clock."""


class Held(Protocol):
    """What users hold at this instance."""

    def ages_of(self, user_id: str) -> list[float]:
        """For how many seconds they have held each, the oldest first."""

    def holders(self) -> Iterable[str]:
        """The users who hold any."""


class SharedRate:
    """Implements `RateOverall`: a bucket for each user in Postgres, and at each instance a small one beside it. 0 a
    minute: no limit."""

    def __init__(self, shares: "SharedLimits", kind: str, per_min: int, burst: int) -> None:
        self._shares = shares
        self._kind = kind
        self._rate = per_min / 60.0
        self._burst = burst
        self._local: dict[str, tuple[float, float]] = {}

    async def take(self, user_id: str) -> float:
        """See `RateOverall`."""
        if not self._rate or self._take_locally(user_id):
            return 0.0
        values = {"user_id": user_id, "kind": self._kind, "rate": self._rate, "burst": float(max(1, self._burst))}
        try:
            ((taken, tokens),) = await self._shares.queries.fetch("take_share", TAKE_SHARE, values)
        except HistoryUnavailable:
            return 0.0
        # Of several at once, one has taken the last token that all of them had seen.
        missing = 1.0 - min(1.0, tokens or 0.0)
        return 0.0 if taken else (missing or 1.0) / self._rate

    def _take_locally(self, user_id: str) -> bool:
        part = _UNREPORTED / self._shares.instances
        most = part * self._burst
        if most < 1.0:
            return False
        now = time.monotonic()
        tokens, at = self._local.pop(user_id, (most, now))
        tokens = min(most, tokens + (now - at) * part * self._rate)
        took = tokens >= 1.0
        self._local[user_id] = (tokens - 1.0 if took else tokens, now)
        if len(self._local) > _USERS_KEPT:
            del self._local[next(iter(self._local))]
        return took


class SharedCount:
    """Implements `CountOverall` for one kind of thing, e.g. turns; `most` of them a user may hold at all instances.

    With `keep_newest` nothing is refused: the oldest of all close instead. It is called where those are, with the user,
    how many of what was open there stay, and when that was reported, on the monotonic clock: more may have opened or
    closed since.
    """

    def __init__(
        self, shares: "SharedLimits", kind: str, most: int, held: Held, keep_newest: KeepNewest | None
    ) -> None:
        self._shares = shares
        self._kind = kind
        self._most = most
        self._held = held
        self._keep_newest = keep_newest
        self.some = asyncio.Event()
        """Set where something is due."""
        self._reported: set[str] = set()
        # Whether the other instances are notified if a user holds too many.
        self._due: dict[str, bool] = {}
        # What is reported later must be written later.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def has_room(self, user_id: str, ages: Callable[[], list[float]]) -> bool:
        """See `CountOverall`."""
        if not self._most or self._is_local(user_id, len(ages())):
            return True
        async with self._locks.setdefault(user_id, asyncio.Lock()):
            if len(ages()) > self._most:
                return False  # whatever others hold
            try:
                return await self._publish_share(user_id, ages(), self._most) is not None
            except HistoryUnavailable:
                return True

    def note(self, user_id: str) -> None:
        """See `CountOverall`."""
        if self._most and not self._is_local(user_id, len(self._held.ages_of(user_id))):
            self._due[user_id] = True
            self.some.set()

    def note_full(self, user_id: str) -> None:
        """Another instance has found that the user holds too many, and has notified all instances concerned."""
        self._due.setdefault(user_id, False)
        self.some.set()

    def note_all(self) -> None:
        """The instances have changed, or what they knew of this one is lost."""
        for user_id in (*self._reported, *self._held.holders()):
            self.note(user_id)

    async def write(self) -> None:
        """Report what is due, a few users at a time. Raises `HistoryUnavailable` with the rest still due."""
        while self._due:
            some = list(self._due.items())[:_AT_ONCE]
            for user_id, _ in some:
                del self._due[user_id]
            reported = await asyncio.gather(*(self._write_one(*one) for one in some))
            if not all(reported):
                raise HistoryUnavailable

    async def _write_one(self, user_id: str, tell_others: bool) -> bool:
        try:
            async with self._locks.setdefault(user_id, asyncio.Lock()):
                reported_at = time.monotonic()
                reported = await self._publish_share(user_id, self._held.ages_of(user_id))
            await self._make_room(user_id, reported or {}, reported_at, tell_others=tell_others)
        except HistoryUnavailable:
            self._due[user_id] = True
            return False
        return True

    def _is_local(self, user_id: str, count: int) -> bool:
        return user_id not in self._reported and count <= int(self._most * _UNREPORTED / self._shares.instances)

    async def _publish_share(self, user_id: str, ages: list[float], most: int | None = None) -> ReportedAges | None:
        """Write what the user holds here and return what all instances hold then. None if that would exceed `most`."""
        await self._shares.forget_earlier()
        values = {**self._shares.judge, "user_id": user_id, "kind": self._kind, "ages": ages, "most": most}
        was_reported = user_id in self._reported
        self._reported.add(user_id)  # it may have been written, whatever becomes of it
        rows = await self._shares.queries.fetch("hold_share", HOLD_SHARE, values)
        if not ages if rows else not was_reported:
            self._reported.discard(user_id)
        return rows[0].held if rows else None

    async def _make_room(self, user_id: str, reported: ReportedAges, reported_at: float, *, tell_others: bool) -> None:
        everything = sorted((since, instance) for instance, held in reported.items() for since in held)
        over = [instance for _, instance in everything[: max(0, len(everything) - self._most)]]
        if self._keep_newest is None or not self._most or not over:
            return
        me = self._shares.me
        if me in over:
            self._keep_newest(user_id, len(reported[me]) - over.count(me), reported_at)
        for instance in set(over) - {me} if tell_others else ():
            await self._shares.report_full(instance, user_id)


class SharedLimits:
    """The limits of users over all instances. `instances` is how many there are, at least two: another may come at any
    moment."""

    def __init__(
        self, queries: Queries, me: str, dead_s: float, report_full: Callable[[str, str], Awaitable[None]]
    ) -> None:
        """`report_full` has an instance see for itself which sockets of a user it must close. Raises
        `HistoryUnavailable`."""
        self.queries = queries
        self.me = me
        self.judge = {"me": me, "dead_s": dead_s}
        self.report_full = report_full
        self.instances = 2
        self._counts: dict[str, SharedCount] = {}
        self._forgetting = asyncio.Lock()
        self._forgotten = False

    def count(self, kind: str, most: int, held: Held, keep_newest: KeepNewest | None = None) -> SharedCount:
        """Limit how many of something users hold; 0: no limit."""
        self._counts[kind] = SharedCount(self, kind, most, held, keep_newest)
        return self._counts[kind]

    def note_instances(self, alive: int) -> None:
        """Note that `alive` instances exist now, this one included."""
        instances = max(2, alive)
        grown, self.instances = instances > self.instances, instances
        if grown:
            self.note_all()

    def note_all(self) -> None:
        """What the others know of this instance may be lost: report it again."""
        for count in self._counts.values():
            count.note_all()

    def note_full(self, user_id: str) -> None:
        """Another instance has found that a user holds too many sockets."""
        self._counts["sockets"].note_full(user_id)

    async def write(self) -> None:
        """Report what is due, until cancelled. Spawn it with `restart=True`."""
        await try_again(self.forget_earlier, HistoryUnavailable, lambda _failure, _attempts: _AGAIN_S)
        self.note_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            for count in self._counts.values():
                group.create_task(self._write(count))

    async def forget_earlier(self) -> None:
        """Delete what an earlier process of this instance had reported: once, before this one reports anything, which
        would be deleted too. Raises `HistoryUnavailable`."""
        async with self._forgetting:
            if not self._forgotten:
                await self.queries.fetch("forget_shares", FORGET_SHARES, {"me": self.me})
                self._forgotten = True

    async def _write(self, count: SharedCount) -> None:
        while True:
            await count.some.wait()
            count.some.clear()
            try:
                await count.write()
            except HistoryUnavailable:
                await asyncio.sleep(_AGAIN_S)
                count.some.set()

    async def _sweep(self) -> None:
        while True:
            with suppress(HistoryUnavailable):
                await self.queries.fetch("sweep_shares", SWEEP_SHARES, {})
            await asyncio.sleep(_SWEEP_S)
