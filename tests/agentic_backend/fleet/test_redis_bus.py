"""Redis as the bus of a fleet: who hears what, what Postgres takes over, and how an instance notices its absence."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.bus import Message
from agentic_backend.fleet.membership import FleetRules
from agentic_backend.fleet.redis_bus import RedisBus
from agentic_backend.settings import RedisSettings
from backend_kit.aio import TaskRegistry
from tests.agentic_backend.records import until
from tests.chaos.proxy import FaultProxy
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, redis_server, self_signed, watched_pair

pytestmark = [pytest.mark.servers, pytest.mark.redis]

RULES = FleetRules(beat_s=0.05, deaf_s=0.5)
NEVER_DEAF = replace(RULES, deaf_s=PATIENCE_S)
SECRET = "never-to-be-seen"


class Instead:
    """Postgres as the bus: what it was given instead of Redis, or beside it. `down` is as without Postgres."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.down = False

    async def send(self, message: Message) -> None:
        if self.down:
            raise HistoryUnavailable
        self.sent.append(message)


class Ear:
    """An instance on the bus. `there` is how many it believes there are."""

    def __init__(self, name: str, settings: RedisSettings, rules: FleetRules, there: int) -> None:
        self.name = name
        self.there = there
        self.heard: list[Message] = []
        self.odd: list[str] = []
        self.deaf = 0
        self.published = 0
        self.postgres = Instead()
        self.changed = asyncio.Event()
        self.hearing: asyncio.Task[None]
        self.bus = RedisBus(
            settings,
            name,
            self.postgres,
            rules=rules,
            instances=lambda: self.there,
            on_payload=self._hear,
            on_deaf=self._miss,
            on_heard=lambda _seconds: self.changed.set(),
            on_sent=self._count,
        )

    def _hear(self, payload: str) -> None:
        try:
            self.heard.append(Message.decode(payload))
        except ValueError:
            self.odd.append(payload)
        self.changed.set()

    def _miss(self) -> None:
        self.deaf += 1
        self.changed.set()

    def _count(self) -> None:
        self.published += 1

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def up(self) -> None:
        await self.until(lambda: self.bus.up)

    async def away(self) -> None:
        await self.until(lambda: not self.bus.up)


Join = Callable[..., Any]


@pytest.fixture
async def join(tasks: TaskRegistry) -> AsyncIterator[Join]:
    """Make an instance on the bus of these settings, which hears."""
    async with AsyncExitStack() as stack:

        def make(name: str, rules: FleetRules = NEVER_DEAF, there: int = 2, **settings: Any) -> Ear:
            ear = Ear(name, RedisSettings.model_validate({"host": "127.0.0.1", **settings}), rules, there)
            stack.push_async_callback(ear.bus.aclose)
            ear.hearing = tasks.spawn("bus", ear.bus.listen, restart=True)
            stack.push_async_callback(ended, ear.hearing)
            return ear

        yield make


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def server() -> Any:
    with redis_server() as one:
        yield one


@pytest.fixture
async def pair(join: Join, server: RedisServer) -> tuple[Ear, Ear]:
    one, other = join("one", port=server.port), join("other", port=server.port)
    await one.up()
    await other.up()
    return one, other


def to(instance: str = "", sender: str = "one") -> Message:
    return Message("cancel", "s1", "ada", "e1", to=instance, sender=sender)


async def test_one_for_an_instance_is_heard_there_alone_and_one_for_all_by_all(pair):
    one, other = pair
    await one.bus.send(to("other"))
    await one.bus.send(to())
    await other.until(lambda: len(other.heard) == 2)
    await one.until(lambda: len(one.heard) == 1)
    assert other.heard == [to("other"), to()]
    assert one.heard == [to()]
    assert (one.published, one.postgres.sent) == (2, [])


async def test_what_reaches_fewer_than_there_are_goes_by_postgres_as_well(pair):
    one, other = pair
    await one.bus.send(to("nobody"))
    one.there = 3
    await one.bus.send(to())
    await other.until(lambda: len(other.heard) == 1)
    assert one.postgres.sent == [to("nobody"), to()]
    one.there = 0  # nobody has counted yet
    await one.bus.send(to())
    assert len(one.postgres.sent) == 3


async def test_a_channel_of_another_prefix_is_another_fleet(pair, join, server):
    stranger = join("other", port=server.port, prefix="staging", there=1)
    await stranger.up()
    await pair[0].bus.send(to("other"))
    await pair[1].until(lambda: len(pair[1].heard) == 1)
    await stranger.bus.send(to("other", sender="stranger"))
    await stranger.until(lambda: len(stranger.heard) == 1)
    assert stranger.heard == [to("other", sender="stranger")]
    assert pair[1].heard == [to("other")]


async def test_redis_killed_and_started_again(pair, server, caplog):
    one, other = pair
    server.stop()
    await one.away()
    await one.bus.send(to("other"))
    assert one.postgres.sent == [to("other")]
    server.start()
    await one.up()
    await other.until(lambda: other.bus.up and other.deaf >= 3)
    await one.bus.send(to("other"))
    await other.until(lambda: len(other.heard) == 1)
    assert (one.postgres.sent, one.deaf) == ([to("other")], 3)  # at the start, when it went and when it came
    words = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("redis is away" in word for word in words)


async def test_a_redis_that_stands_still_is_away_until_it_goes_on(join, server):
    one = join("one", RULES, there=1, port=server.port)
    await one.up()
    server.send(signal.SIGSTOP)
    await one.away()
    await one.bus.send(to())
    server.send(signal.SIGCONT)
    await one.up()
    assert one.postgres.sent == [to()]


async def test_a_connection_of_which_the_other_side_knows_nothing_is_noticed(join, server):
    async with proxied(server) as proxy:
        one = join("one", RULES, there=1, port=proxy.port)
        await one.up()
        await proxy.command("hold")
        await one.away()
        await one.bus.send(to())
        await proxy.command("reset")
        await proxy.command("normal")
        await one.up()
        await one.bus.send(to())
        await one.until(lambda: len(one.heard) == 1)
    assert one.postgres.sent == [to()]


async def test_a_slow_redis_is_still_the_bus(join, server):
    async with proxied(server) as proxy:
        one = join("one", there=1, port=proxy.port)
        await one.up()
        await proxy.command("delay both 50 10")
        await one.bus.send(to())
        await one.until(lambda: len(one.heard) == 1)
    assert one.postgres.sent == []


async def test_what_goes_out_by_a_connection_that_was_reset_while_it_was_idle_goes_by_postgres(
    join, server, tasks, caplog
):
    async with proxied(server) as proxy:
        one = join("one", there=1, port=proxy.port)
        await one.up()
        await asyncio.gather(*(one.bus.send(to()) for _ in range(4)))
        await one.until(lambda: len(one.heard) == 4)
        await proxy.command("reset")
        await one.until(lambda: one.deaf == 3)  # up, away, and up again
        await asyncio.gather(*(one.bus.send(to()) for _ in range(8)))
        await one.until(lambda: len(one.heard) + len(one.postgres.sent) == 4 + 8)
    assert one.postgres.sent != []
    assert not tasks.failures


async def test_a_redis_that_takes_no_more_clients_is_away_for_those_alone(pair, join, server, caplog):
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as console:  # there will be no other
        console.sendall(b"config set maxclients 1\r\n")
        assert console.recv(64) == b"+OK\r\n"
        late = join("late", port=server.port)
        await until(lambda: "redis is away" in caplog.text)
        await late.bus.send(to())
        await pair[0].bus.send(to("other"))
        await pair[1].until(lambda: len(pair[1].heard) == 1)
        assert (late.postgres.sent, late.bus.up, pair[0].postgres.sent) == ([to()], False, [])
        console.sendall(b"config set maxclients 1000\r\n")
    await late.up()


async def test_a_redis_without_memory_carries_on(pair, server):
    server.say("config", "set", "maxmemory", "1")
    one, other = pair
    await one.bus.send(to("other"))
    await other.until(lambda: len(other.heard) == 1)
    assert one.postgres.sent == []


async def test_whoever_shares_the_server_cannot_break_the_hearing(pair, server):
    one, other = pair
    for word in ("", "{", "heard at then", "{}"):
        server.say("publish", "turnwise:fleet:other", word)
    await one.bus.send(to("other"))
    await other.until(lambda: len(other.heard) == 1)
    assert other.bus.up
    assert len(other.odd) == 4


async def test_neither_redis_nor_postgres_is_an_error(pair, server):
    one, _ = pair
    one.postgres.down = True
    server.stop()
    with pytest.raises(HistoryUnavailable):
        await one.bus.send(to("other"))


async def test_a_user_of_few_rights_is_enough(join):
    rights = ("resetchannels", "&turnwise:fleet*", "-@all", "+@connection", "+publish", "+subscribe", "+unsubscribe")
    with redis_server("--user", "turnwise", "on", f">{SECRET}", *rights, "--user", "default", "off") as server:
        one = join("one", there=1, port=server.port, username="turnwise", password=SECRET)
        await one.up()
        await one.bus.send(to())
        await one.until(lambda: len(one.heard) == 1)
    assert one.postgres.sent == []


async def test_a_wrong_password_is_told_in_words_without_it(join, caplog):
    with redis_server("--requirepass", "another") as server:
        one = join("one", port=server.port, password=SECRET)
        await one.bus.send(to())
        await until(lambda: "redis is away" in caplog.text)
    assert one.postgres.sent == [to()]
    assert SECRET not in caplog.text


@pytest.mark.parametrize("trusted", [True, False])
async def test_over_tls_the_certificate_is_judged(join, tmp_path: Path, trusted):
    here, _ = self_signed(tmp_path)
    served, key = (here, here.with_suffix(".key")) if trusted else self_signed(tmp_path, "127.0.0.2")
    files = ("--tls-cert-file", str(served), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with redis_server(*files, "--tls-ca-cert-file", str(served), tls=True) as server:
        one = join("one", there=1, port=server.port, tls=True, ca_file=str(here))
        if trusted:
            await one.up()
        await one.bus.send(to())
        assert one.postgres.sent == ([] if trusted else [to()])
        assert one.bus.up is trusted


async def test_sentinels_say_which_server_it_is_after_a_failover(join):
    with watched_pair() as watched:
        port = watched.sentinels[0].port
        one = join("one", RULES, there=1, port=port, sentinel_set=watched.name)
        await one.up()
        watched.primary.stop()
        await one.away()
        await one.bus.send(to())
        await one.up()
        await one.bus.send(to())
        await one.until(lambda: len(one.heard) == 1)
        assert one.postgres.sent == [to()]
        assert watched.replica.say("pubsub", "channels").splitlines() != []


async def test_what_is_closed_leaves_no_connection_to_a_sentinel_open(join):
    with watched_pair() as watched:
        sentinel = watched.sentinels[0]
        before = connections(sentinel)
        one = join("one", RULES, there=1, port=sentinel.port, sentinel_set=watched.name)
        await one.up()
        assert connections(sentinel) > before
        await ended(one.hearing)
        await one.bus.aclose()
        await until(lambda: connections(sentinel) == before)


def connections(sentinel: RedisServer) -> int:
    return len(sentinel.say("client", "list").splitlines())


@asynccontextmanager
async def proxied(server: RedisServer) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the server that fails as it is told."""
    proxy = FaultProxy(server.port, seed=1)
    await proxy.accept()
    try:
        yield proxy
    finally:
        proxy.close()
