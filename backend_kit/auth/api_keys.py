"""API keys: their form, what is kept of them, and which of them are valid now in this process.

A key is `tw_<id>_<secret>`. The id is public: the row is found by it, and it is how people speak of the key. The secret
has 256 random bits, so that its SHA-256 alone is stored and no slow hash is needed.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import string
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from backend_kit.aio.retry import QuietLog
from backend_kit.auth.acting import ActingHeaders, ActingUser
from backend_kit.auth.grant import Grant, KeyScope, KeyTooFast, ScopeMissing
from backend_kit.auth.identity import AuthError, Clock, Identity
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

PREFIX: Final = "tw_"
ID_CHARS: Final = 12
SECRET_CHARS: Final = 43
"""Of 62 signs: 256 bits."""
_ID_SIGNS: Final = string.ascii_lowercase + string.digits
_SECRET_SIGNS: Final = string.ascii_letters + string.digits
_LOOKED_UP_AT_ONCE: Final = 512
_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A string in the form of a key. `digest` is the SHA-256 of its secret."""

    id: str
    digest: bytes = field(repr=False)


def looks_like_key(token: str) -> bool:
    """Whether it claims to be a key: then it is taken for one, well-formed or not, and for nothing else."""
    return token.startswith(PREFIX)


def parse_key(token: str) -> ParsedKey | None:
    """The parts of a well-formed key, None for anything else."""
    mark, _, rest = token.partition("_")
    id_, _, secret = rest.partition("_")
    if f"{mark}_" != PREFIX or len(id_) != ID_CHARS or len(secret) != SECRET_CHARS:
        return None
    if not set(id_) <= set(_ID_SIGNS) or not set(secret) <= set(_SECRET_SIGNS):
        return None
    return ParsedKey(id_, digest_of(secret))


def digest_of(secret: str) -> bytes:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def make_key() -> tuple[str, ParsedKey]:
    """A new key, to be shown once, and what is kept of it."""
    id_ = "".join(secrets.choice(_ID_SIGNS) for _ in range(ID_CHARS))
    secret = "".join(secrets.choice(_SECRET_SIGNS) for _ in range(SECRET_CHARS))
    return f"{PREFIX}{id_}_{secret}", ParsedKey(id_, digest_of(secret))


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is stored. Times in seconds since the epoch; `rate_per_min` 0 = no limit of its own.

    `groups` and `roles` are those that its owner had when it was made and left to it. Whom an `act_as` key names is a
    user of `namespace`; "" means the identity provider's own users.
    """

    id: str
    digest: bytes = field(repr=False)
    owner: str
    owner_name: str
    name: str
    scopes: frozenset[KeyScope]
    agents: frozenset[str] | None = None
    libraries: frozenset[str] | None = None
    groups: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    namespace: str = "openwebui"
    rate_per_min: int = 0
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None


class KeySource(Protocol):
    """Where keys are stored, as far as verifying them needs. Raises `ServiceError` where it is away."""

    async def find(self, ids: Sequence[str]) -> list[KeyRecord]:
        """Those of the keys that exist, revoked ones too."""
        ...

    async def note_use(self, used: Mapping[str, float]) -> None:
        """Store when keys were last used, by their ids; an older time than the stored one changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class KeyWaitTimes:
    """Seconds. What is older than `trusted_s` is looked up again before it counts; `refresh_s` is how often all keys in
    use are, without a request waiting for it. `find_s` is the longest wait for a look-up, `noted_s` the least between
    two writes of when a key was used, `unused_s` how long an unused one is remembered.

    A revoked key ends within `trusted_s` in every process, since one that cannot be looked up is not let in.
    """

    trusted_s: float = 4.0
    refresh_s: float = 2.0
    find_s: float = 2.5
    noted_s: float = 60.0
    unused_s: float = 60.0


class LiveKey:
    """A key that this process has met: its newest record, and its bucket of requests."""

    __slots__ = ("__weakref__", "_filled_at", "_level", "noted_at", "read_at", "record", "used_at")

    def __init__(self, record: KeyRecord, now: float) -> None:
        self.record = record
        self.read_at = now
        self.used_at = 0.0
        self.noted_at = record.last_used_at or 0.0
        self._level = float(record.rate_per_min)
        self._filled_at = now

    def ended(self, wall: float) -> bool:
        """Whether it was revoked or has expired."""
        record = self.record
        return record.revoked_at is not None or (record.expires_at is not None and wall >= record.expires_at)

    def spend(self, now: float) -> None:
        """Take one request out of the bucket, which a minute fills. Raises `KeyTooFast`."""
        rate = self.record.rate_per_min
        if not rate:
            return
        level = min(float(rate), self._level + (now - self._filled_at) * rate / 60.0)
        self._filled_at = now
        if level < 1.0:
            self._level = level
            raise KeyTooFast(retry_after_s=(1.0 - level) * 60.0 / rate)
        self._level = level - 1.0


class ApiKeys:
    """The keys that this process has met. `follow` must run in the background: it alone reads and writes.

    Look-ups that come together are one statement, and there is one at a time, so a flood of invented keys costs the
    database no more than that.
    """

    def __init__(
        self,
        source: KeySource,
        unavailable: Callable[[], ServiceError],
        acting: ActingHeaders | None = None,
        *,
        provider_users: bool = False,
        waits: KeyWaitTimes | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        """`unavailable` makes the error for a caller whose key cannot be looked up. `provider_users`: whether a key
        without a namespace may name a user."""
        self._source = source
        self._unavailable = unavailable
        self.acting = acting or ActingHeaders()
        self._provider_users = provider_users
        self._waits = waits or KeyWaitTimes()
        self._clock = clock
        self._wall = wall
        self._alive: weakref.WeakValueDictionary[str, LiveKey] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, LiveKey] = OrderedDict()
        self._wanted: dict[str, asyncio.Future[LiveKey | None]] = {}
        self._asked = asyncio.Event()
        self._noted_at = clock()
        self._log = QuietLog(logger)

    async def find(self, token: str) -> LiveKey:
        """The valid key that a caller shows. Raises `AuthError`, and what `unavailable` makes."""
        parsed = parse_key(token)
        live = None if parsed is None else await self._look_up(parsed.id)
        # Compared also where there is none, so that both take as long.
        digest = live.record.digest if live is not None else bytes(32)
        same = parsed is not None and hmac.compare_digest(digest, parsed.digest)
        if live is None or not same:
            raise AuthError("Invalid token")
        self._use(live)
        return live

    def forget(self, key_id: str) -> None:
        """Look a key up again before it counts, as it was changed by this process."""
        if (live := self._alive.get(key_id)) is not None:
            live.read_at = float("-inf")

    def identity_of(self, live: LiveKey, user: ActingUser | None) -> Identity:
        """The caller: the key's owner with what they left to it, or the user whom its holder names, without roles.

        Raises `ScopeMissing` for a user of the identity provider whom no key may name here.
        """
        record = live.record
        if user is not None and not record.namespace and not self._provider_users:
            raise ScopeMissing("users of the identity provider may not be named", field="namespace")
        # Without authentication everybody is an operator, whom a front end names is still none.
        scopes = record.scopes if user is None else record.scopes - {KeyScope.ADMIN}
        grant = Grant(
            scopes=scopes,
            agents=record.agents,
            libraries=record.libraries,
            expires_at=record.expires_at,
            key_id=record.id,
            acting=user is not None,
            ended=lambda: live.ended(self._wall()),
            spend=lambda: live.spend(self._clock()),
            confirm=lambda: self._confirm(live),
        )
        if user is not None:
            uid = user.uid(record.namespace)
            return Identity(uid, user.name or user.id, user.email, record.groups, frozenset(), record.expires_at, grant)
        roles = record.roles if KeyScope.ADMIN in record.scopes else frozenset[str]()
        return Identity(record.owner, record.owner_name, "", record.groups, roles, record.expires_at, grant)

    async def follow(self) -> None:
        """Look up what is asked for at once and what is in use every 2 s, and store when keys were used, until
        cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._waits.refresh_s):
                    await self._asked.wait()
            await self.look()

    async def look(self) -> None:
        """One round of `follow`. If the database is away, that is logged, and those who wait get the error."""
        self._asked.clear()
        wanted, self._wanted = self._wanted, {}
        self._let_go()
        try:
            await self._refresh(list({**dict.fromkeys(wanted), **dict.fromkeys(self._alive)}), wanted)
            await self._note()
        except ServiceError as failure:
            self._log.warning("away", "API keys cannot be looked up: %s", failure)
        finally:
            for waiting in wanted.values():
                if not waiting.done():
                    waiting.set_exception(self._unavailable())
                    waiting.exception()  # nobody may be left who waits for it

    async def _refresh(self, ids: Sequence[str], wanted: Mapping[str, asyncio.Future[LiveKey | None]]) -> None:
        for start in range(0, len(ids), _LOOKED_UP_AT_ONCE):
            part = ids[start : start + _LOOKED_UP_AT_ONCE]
            now = self._clock()  # before the statement: what it says may be as old as that
            found = {record.id: record for record in await self._source.find(part)}
            for id_ in part:
                live = self._take(id_, found.get(id_), now)
                if (waiting := wanted.get(id_)) is not None and not waiting.done():
                    waiting.set_result(live)

    def _take(self, id_: str, record: KeyRecord | None, now: float) -> LiveKey | None:
        live = self._alive.get(id_)
        if record is None:
            if live is not None:  # its row was deleted by hand
                live.record = replace(live.record, revoked_at=self._wall())
                live.read_at = now
            return None
        if live is None:
            live = self._alive[id_] = LiveKey(record, now)
        live.record, live.read_at = record, now
        return live

    async def _look_up(self, id_: str) -> LiveKey | None:
        live = self._alive.get(id_)
        if live is not None and self._clock() - live.read_at < self._waits.trusted_s:
            return live
        waiting = self._wanted.get(id_)
        if waiting is None:
            waiting = self._wanted[id_] = asyncio.get_running_loop().create_future()
        self._asked.set()
        try:
            async with asyncio.timeout(self._waits.find_s):
                return await asyncio.shield(waiting)
        except TimeoutError:
            raise self._unavailable() from None

    async def _confirm(self, live: LiveKey) -> None:
        found = await self._look_up(live.record.id)
        if found is None or found.record.digest != live.record.digest:
            raise AuthError("Invalid token")
        self._use(found)
        found.spend(self._clock())

    def _use(self, live: LiveKey) -> None:
        wall = self._wall()
        if live.record.revoked_at is not None:
            raise AuthError("Invalid token")
        if live.ended(wall):
            raise AuthError("Token has expired")
        live.used_at = wall
        id_ = live.record.id
        self._recent[id_] = live
        self._recent.move_to_end(id_)
        if len(self._recent) > _KEPT:
            self._recent.popitem(last=False)

    def _let_go(self) -> None:
        """Drop keys that nobody has used lately; one that an open socket holds stays known."""
        horizon = self._wall() - self._waits.unused_s
        for id_, live in list(self._recent.items()):
            if live.used_at < horizon and live.used_at <= live.noted_at:
                del self._recent[id_]

    async def _note(self) -> None:
        now = self._clock()
        if now - self._noted_at < self._waits.noted_s:
            return
        self._noted_at = now
        used = {live.record.id: live.used_at for live in self._recent.values() if live.used_at > live.noted_at}
        if used:
            await self._source.note_use(used)
            for id_, at in used.items():
                if (live := self._recent.get(id_)) is not None:
                    live.noted_at = at
