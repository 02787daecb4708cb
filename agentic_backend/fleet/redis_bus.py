"""Redis or Valkey as the bus, by pub/sub; Postgres carries whatever that does not deliver."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ssl import TLSVersion
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError

from agentic_backend.fleet.bus import Bus, Message
from agentic_backend.fleet.membership import FleetRules
from agentic_backend.settings import RedisSettings
from backend_kit.aio.retry import Backoff, QuietLog

logger = logging.getLogger(__name__)

_SENDERS: Final = 8
"""Connections for sending messages."""
_SEND_S: Final = 1.0
"""Seconds for connecting, for each answer, and for a message to go out."""
_OWN_WORD: Final = "heard at "
_AWAY: Final = (RedisError, OSError, TimeoutError)


class RedisBus:
    """Implements `Bus`. A channel for each instance, and one for all.

    Redis reports how many instances got a message. If those are fewer than there are (`instances`, 0 while nobody has
    counted), or if it cannot be reached, Postgres carries the message as well, so that Redis only affects how much
    Postgres has to do. An instance that no longer hears itself takes Redis for gone: a half-open connection is silent,
    and looks healthy.

    `on_payload` gets each message, `on_deaf` is called when some may have been missed, `on_heard` with the seconds that
    a message of this instance took to come back.
    """

    def __init__(
        self,
        settings: RedisSettings,
        me: str,
        postgres: Bus,
        *,
        rules: FleetRules,
        instances: Callable[[], int],
        on_payload: Callable[[str], None],
        on_deaf: Callable[[], None],
        on_heard: Callable[[float], None] = lambda _seconds: None,
        on_sent: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_sent` is called for each message that Redis has taken."""
        self.up = False
        """Whether this instance hears itself."""
        self._postgres = postgres
        self._rules = rules
        self._instances = instances
        self._on_payload = on_payload
        self._on_deaf = on_deaf
        self._on_heard = on_heard
        self._on_sent = on_sent
        self._clock = clock
        self._all = f"{settings.prefix}:fleet"
        self._mine = self._channel_of(me)
        self._client = connect(settings)
        self._sending = asyncio.Semaphore(_SENDERS)
        self._log = QuietLog(logger)

    async def send(self, message: Message) -> None:
        """See `Bus`."""
        if not await self._published(message):
            await self._postgres.send(message)

    async def listen(self) -> None:
        """Hear the others until cancelled. Spawn it with `restart=True`."""
        backoff, task = Backoff(longest_s=1.0), asyncio.current_task()
        assert task is not None
        while True:
            try:
                with _resets_raised():
                    async with self._client.pubsub(push_handler_func=_ignore) as subscribed:
                        await self._listen_once(subscribed, backoff)
            except _AWAY as error:
                if task.cancelling():
                    raise asyncio.CancelledError from error  # the library's clean-up has failed instead
                self._log.warning("away", "redis is away (%s): postgres carries its messages", type(error).__name__)
            finally:
                self._lose()
            await asyncio.sleep(backoff.next_s())

    async def aclose(self) -> None:
        """Close every connection. Hear no more before."""
        await close(self._client)

    async def _published(self, message: Message) -> bool:
        """Whether all to whom it goes have it."""
        if not self.up:
            return False
        channel = self._channel_of(message.to) if message.to else self._all
        try:
            async with asyncio.timeout(_SEND_S), self._sending:
                with _resets_raised():
                    reached = await self._client.publish(channel, message.encode())
        except _AWAY as error:
            self._log.warning("send", "redis has not taken a message (%s)", type(error).__name__)
            return False
        self._on_sent()
        there = 1 if message.to else self._instances()
        return reached >= there > 0

    async def _listen_once(self, subscribed: PubSub, backoff: Backoff) -> None:
        """Hear until an error, or until this instance has not heard itself for too long."""
        await subscribed.subscribe(self._all, self._mine)
        heard_at = begun_at = self._clock()
        due_at = begun_at
        words: dict[str, float] = {}
        while True:
            now = self._clock()
            if now >= due_at:
                due_at = now + self._rules.beat_s
                word = f"{_OWN_WORD}{now!r}"
                words[word] = now
                await self._client.publish(self._mine, word)
            elif now - heard_at > self._rules.deaf_s:
                raise TimeoutError
            came = await subscribed.get_message(ignore_subscribe_messages=True, timeout=due_at - now)
            if came is None:
                continue
            payload = came["data"].decode(errors="replace")
            if (said_at := words.get(payload)) is None:
                self._on_payload(payload)
                continue
            words = {word: at for word, at in words.items() if at > said_at}  # those before it are lost
            heard_at = self._clock()
            self._on_heard(heard_at - said_at)
            if not self.up:
                self.up = True
                backoff.reset()
                self._on_deaf()  # nobody has heard what was sent before the subscription

    def _lose(self) -> None:
        if self.up:
            self.up = False
            self._on_deaf()

    def _channel_of(self, instance: str) -> str:
        return f"{self._all}:{instance}"


class BusRefused(Exception):
    """Redis answers, but refuses us: a user, a password or a right is wrong."""


class SentinelRefused(BusRefused):
    """A Sentinel does so."""


async def probe(settings: RedisSettings) -> float:
    """The seconds from sending a message to Redis until it is heard. Raises `BusRefused`, and OSError if Redis is
    away."""
    client = connect(settings)
    channel = f"{settings.prefix}:fleet:{secrets.token_hex(8)}"
    try:
        with _resets_raised():
            async with client.pubsub(push_handler_func=_ignore) as subscribed:
                await subscribed.subscribe(channel)
                await subscribed.get_message(timeout=_SEND_S)
                begun = time.perf_counter()
                await client.publish(channel, _OWN_WORD)
                if await subscribed.get_message(timeout=_SEND_S) is None:
                    raise BusRefused
                return time.perf_counter() - begun
    except (AuthenticationError, AuthorizationError, ResponseError) as error:
        raise BusRefused from error
    except RedisError as error:
        if await _refused(_sentinels(client)):
            raise SentinelRefused from error
        raise OSError from error
    finally:
        await close(client)


async def _refused(sentinels: Sequence[Redis]) -> bool:
    """Whether one of them answers, but refuses us. To the library that looks like a Sentinel that does not answer."""
    for sentinel in sentinels:
        try:
            await sentinel.ping()
        except (AuthenticationError, AuthorizationError, ResponseError):
            return True
        except _AWAY:
            continue
    return False


def connect(settings: RedisSettings) -> Redis:
    """A client of the server, or of what the Sentinels say is the primary. It connects with its first command, and
    retries none: its caller knows better what to do."""
    answers: dict[str, Any] = {
        "socket_timeout": _SEND_S,
        "socket_connect_timeout": _SEND_S,
        "retry": Retry(NoBackoff(), 0),
        # No push messages, which only version 3 of the protocol has.
        "protocol": 2,
    }
    if settings.tls:
        answers |= {"ssl": True, "ssl_ca_certs": settings.ca_file, "ssl_min_version": TLSVersion.TLSv1_2}
    user: dict[str, Any] = {"username": settings.username, "password": _secret(settings.password)}
    # In addition to those that send: one that listens, and one for its own message.
    client = {**answers, **user, "max_connections": _SENDERS + 2, "client_name": "turnwise-agentic"}
    hosts = settings.host.split(",")
    if settings.sentinel_set is None:
        return Redis(host=hosts[0], port=settings.port, **client)
    watchers = {"username": settings.sentinel_username, "password": _secret(settings.sentinel_password)}
    places = [(host, settings.port) for host in hosts]
    untyped: Any = Sentinel
    sentinels = untyped(places, sentinel_kwargs={**answers, **watchers})
    primary: Redis = sentinels.master_for(settings.sentinel_set, **client)
    return primary


async def close(client: Redis) -> None:
    """Close what `connect` has opened: its connections, and those to the Sentinels, which the library leaves open."""
    await client.aclose()
    for sentinel in _sentinels(client):
        await sentinel.aclose()


def _sentinels(client: Redis) -> Sequence[Redis]:
    pool = client.connection_pool
    return pool.sentinel_manager.sentinels if isinstance(pool, SentinelConnectionPool) else ()


def _secret(value: Any) -> str | None:
    return None if value is None else str(value.get_secret_value())


@contextmanager
def _resets_raised() -> Iterator[None]:
    """Raises ConnectionResetError for what uvloop says of a connection that was reset while it was idle. The library
    sees the end of one in what it reads, but not that, and writes: it lets the RuntimeError through."""
    try:
        yield
    except RuntimeError as error:
        if "handler is closed" not in str(error):
            raise
        raise ConnectionResetError from error


def _ignore(_pushed: object) -> None:
    """Without a function for what the server pushes the library adds a handler of its own to the log."""
