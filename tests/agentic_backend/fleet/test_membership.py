"""An instance among others: how it renews, when it is no longer valid, what it hears and what it may have missed."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_backend.fleet.bus import Message
from agentic_backend.fleet.membership import FleetRules, Membership, Presence, instance_id
from agentic_backend.fleet.statements import CHANNEL, NOTIFY
from backend_kit.aio import TaskRegistry
from tests.agentic_backend.fleet.conftest import Found
from tests.agentic_backend.fleet.instances import RULES, Clock, Instance, died, forget_message, notify
from tests.agentic_backend.records import rows, settings_for, until
from tests.chaos.proxy import FaultProxy
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

INSTANCE = "SELECT id, url, token, keeps_spool, draining FROM instance ORDER BY id"
CONNECTIONS = "SELECT pid FROM pg_stat_activity WHERE application_name ^@ 'turnwise-agentic-fleet'"
LISTENS = CONNECTIONS + " AND datname = current_database()"
HEARTBEAT = "SELECT heartbeat_at FROM instance WHERE id = 'one'"
STEADY = "SELECT steady_since = heartbeat_at, steady_since < heartbeat_at - interval '1 minute' FROM instance"

NOTIFY_FIVE = "SELECT pg_notify('turnwise_fleet', %s || repeat(' ', n)) FROM generate_series(1, 5) AS n"

MakeMember = Callable[..., Membership]


class Heard:
    """What a membership said: each message, and how often it may have missed some or lost its turns."""

    def __init__(self, membership: Membership) -> None:
        self.messages: list[Message] = []
        self.deaf = 0
        self.lost = 0
        self._more = asyncio.Event()
        membership.on_message = self._message
        membership.on_deaf = self._deaf
        membership.on_lost = self._lost

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until what was said is as it should be."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._more.clear()
                await self._more.wait()

    def _message(self, message: Message) -> None:
        self.messages.append(message)
        self._more.set()

    def _deaf(self) -> None:
        self.deaf += 1
        self._more.set()

    def _lost(self) -> None:
        self.lost += 1
        self._more.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def member(database: Database, clock: Clock) -> MakeMember:
    """Make a membership that does not renew yet."""

    def make(name: str = "one", rules: FleetRules = RULES, **more: object) -> Membership:
        postgres = settings_for(database.settings()).storage.postgres
        identity = Presence(id=name, token="t", **more)  # type: ignore[arg-type] # as the test has them
        return Membership(postgres, identity, rules=rules, clock=clock)

    return make


async def renewing(membership: Membership, tasks: TaskRegistry) -> "asyncio.Task[None]":
    """It renews, and has done so."""
    task = tasks.spawn("renewal", membership.renew)
    async with asyncio.timeout(PATIENCE_S):
        await membership.wait_valid()
    return task


async def stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def test_the_times_fit_together() -> None:
    rules = FleetRules()
    assert (rules.beat_s, rules.renew_s, rules.dead_s) == (2.0, 6.0, 10.0)  # docs/operations.md
    assert rules.beat_s < rules.gap_s < rules.renew_s < rules.dead_s - rules.beat_s
    assert rules.beat_s + rules.answer_s < rules.renew_s


def test_each_start_is_another_instance_with_another_token() -> None:
    one, other = Presence(), Presence()
    assert one.id != other.id
    assert one.token != other.token
    assert one.id.startswith(socket.gethostname())


def test_one_with_a_spool_is_the_same_instance_after_a_restart(tmp_path: Path) -> None:
    first = instance_id(tmp_path)
    assert instance_id(tmp_path) == first
    (tmp_path / "other").mkdir()
    assert instance_id(tmp_path / "other") != first
    assert first.startswith(socket.gethostname())
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["instance"]


async def test_it_says_who_it_is_and_how_it_is_reached(
    database: Database, member: MakeMember, tasks: TaskRegistry
) -> None:
    membership = member(url="http://here", keeps_spool=True)
    assert not membership.valid
    await renewing(membership, tasks)
    assert rows(database.dsn, INSTANCE) == [("one", "http://here", "t", True, False)]
    membership.draining = True
    await until(lambda: rows(database.dsn, INSTANCE) == [("one", "http://here", "t", True, True)])


async def test_without_a_url_it_is_that_of_its_address_on_the_way_to_postgres(
    database: Database, tasks: TaskRegistry
) -> None:
    membership = Membership(
        settings_for(database.settings()).storage.postgres,
        Presence(id="one", token="t"),
        own_url=lambda address: f"http://{address}:1",
        rules=RULES,
    )
    await renewing(membership, tasks)
    assert rows(database.dsn, "SELECT url FROM instance") == [("http://127.0.0.1:1",)]


async def test_it_renews_again_and_again(database: Database, member: MakeMember, tasks: TaskRegistry) -> None:
    await renewing(member(), tasks)
    for _ in range(3):
        before = rows(database.dsn, HEARTBEAT)
        await until(lambda: rows(database.dsn, HEARTBEAT) > before)  # noqa: B023 - awaited here


async def test_it_is_valid_for_a_while_by_its_own_clock(member: MakeMember, tasks: TaskRegistry, clock: Clock) -> None:
    membership = member()
    task = await renewing(membership, tasks)
    await stopped(task)
    clock.now += RULES.renew_s - 0.01
    assert membership.valid
    clock.now += 0.01
    assert not membership.valid
    await renewing(membership, tasks)
    assert membership.valid


async def test_a_heartbeat_counts_from_when_it_was_sent(
    database: Database, member: MakeMember, tasks: TaskRegistry, clock: Clock
) -> None:
    membership = member()
    await stopped(await renewing(membership, tasks))
    clock.now += RULES.renew_s
    with_lock = "SELECT FROM instance FOR UPDATE"
    postgres = settings_for(database.settings()).storage.postgres
    blocker = Membership(postgres, Presence(id="blocker", token="t"), rules=RULES)
    connection = await blocker._connect()
    async with connection, connection.transaction():
        await connection.execute(with_lock)
        tasks.spawn("renewal", membership.renew)
        await until(lambda: bool(rows(database.dsn, CONNECTIONS + " AND wait_event_type = 'Lock'")))
        clock.now += RULES.renew_s - 0.01
        assert not membership.valid
    async with asyncio.timeout(PATIENCE_S):
        await membership.wait_valid()


async def test_one_with_a_spool_is_valid_once_it_has_renewed(
    member: MakeMember, tasks: TaskRegistry, clock: Clock
) -> None:
    membership = member(keeps_spool=True)
    assert not membership.valid
    await stopped(await renewing(membership, tasks))
    clock.now += 3600.0
    assert membership.valid


async def test_who_cannot_renew_is_told_so_once_each_time(
    member: MakeMember, tasks: TaskRegistry, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    membership = member()
    heard = Heard(membership)
    tasks.spawn("watch", membership.watch)
    for times in (1, 2):
        await stopped(await renewing(membership, tasks))
        assert heard.lost == times - 1
        clock.now += RULES.renew_s
        await heard.until(lambda: heard.lost == times)  # noqa: B023 - awaited here
    alarms = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert alarms == ["ALARM this instance could not renew for 6 s: it lets go of its turns"] * 2


async def test_who_was_stopped_and_renews_before_anybody_looks_has_let_go_first(
    member: MakeMember, tasks: TaskRegistry, clock: Clock
) -> None:
    membership = member()
    heard = Heard(membership)
    await stopped(await renewing(membership, tasks))
    clock.now += RULES.renew_s
    await renewing(membership, tasks)
    assert heard.lost == 1


async def test_before_the_first_heartbeat_nothing_is_lost(
    member: MakeMember, tasks: TaskRegistry, clock: Clock
) -> None:
    membership = member()
    heard = Heard(membership)
    tasks.spawn("watch", membership.watch)
    clock.now += 3600.0
    await renewing(membership, tasks)
    assert heard.lost == 0


@pytest.mark.parametrize(("silent_s", "begins_anew"), [(4.0, False), (6.0, True)])
async def test_who_was_silent_must_be_heard_anew_before_it_may_judge(
    database: Database, member: MakeMember, tasks: TaskRegistry, silent_s: float, begins_anew: bool
) -> None:
    await stopped(await renewing(member(), tasks))
    rows(database.dsn, "UPDATE instance SET steady_since = now() - interval '1 hour' RETURNING 1")
    died(database.dsn, "one", silent_s)
    ((before,),) = rows(database.dsn, HEARTBEAT)
    again = member()
    tasks.spawn("renewal", again.renew)
    await until(lambda: bool(rows(database.dsn, HEARTBEAT)[0][0] > before))
    ((anew, long),) = rows(database.dsn, STEADY)
    assert (anew or not long) is begins_anew


async def test_a_message_to_all_is_heard_by_all_but_its_sender(found: Found) -> None:
    instances = [await found(name) for name in ("one", "two", "three")]
    heard = [Heard(instance.membership) for instance in instances]
    message = forget_message(sender="one")
    await _say(instances[0], message)
    for other in heard[1:]:
        await other.until(lambda: bool(other.messages))  # noqa: B023 - awaited here
        assert other.messages == [message]
    # What it says itself it would have heard before what comes later.
    last = forget_message(sender="two", to="one", session_id="last")
    await _say(instances[1], last)
    await heard[0].until(lambda: bool(heard[0].messages))
    assert heard[0].messages == [last]
    assert [len(other.messages) for other in heard] == [1, 1, 1]


async def test_a_message_to_one_is_not_heard_by_others(found: Found) -> None:
    instances = [await found(name) for name in ("one", "two", "three")]
    heard = [Heard(instance.membership) for instance in instances]
    to_two, to_all = forget_message(sender="one", to="two"), forget_message(sender="one", session_id="s2")
    await _say(instances[0], to_two)
    await _say(instances[0], to_all)
    await heard[1].until(lambda: len(heard[1].messages) == 2)
    await heard[2].until(lambda: len(heard[2].messages) == 1)
    assert heard[1].messages == [to_two, to_all]
    assert heard[2].messages == [to_all]


async def test_a_message_that_nobody_understands_is_left_out(
    found: Found, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one = await found("one")
    heard = Heard(one.membership)
    for payload in ("", "{", "[]", '{"kind":"newer","session":"s","user":"u","exchange":"","to":"","from":""}'):
        notify(database.dsn, payload)
    notify(database.dsn, forget_message(sender="other").encode())
    await heard.until(lambda: bool(heard.messages))
    assert heard.messages == [forget_message(sender="other")]
    assert "a message of another instance is not understood" in caplog.text


async def test_many_messages_hold_up_no_heartbeat(found: Found, database: Database) -> None:
    one = await found("one")
    heard = Heard(one.membership)
    before = rows(database.dsn, HEARTBEAT)
    count = 0
    while await asyncio.to_thread(rows, database.dsn, HEARTBEAT) == before:
        await asyncio.to_thread(notify, database.dsn, forget_message(sender="o").encode())
        count += 1
    await heard.until(lambda: len(heard.messages) >= count)


async def test_of_messages_that_come_together_none_is_lost_when_a_heartbeat_is_due(
    found: Found, database: Database
) -> None:
    one = await found("one")
    heard = Heard(one.membership)
    count = 0
    note, beat_s = one.membership.on_message, one.membership.rules.beat_s

    def slowly(message: Message) -> None:
        one.clock.now += beat_s
        note(message)

    one.membership.on_message = slowly
    for _ in range(20):
        message = forget_message(sender="o").encode()
        await asyncio.to_thread(rows, database.dsn, NOTIFY_FIVE, message)
        count += 5
        await heard.until(lambda: len(heard.messages) >= count)  # noqa: B023 - awaited here


async def test_who_lost_its_connection_may_have_missed_something_and_hears_again(
    found: Found, database: Database
) -> None:
    one = await found("one")
    heard = Heard(one.membership)
    ((listener,),) = rows(database.dsn, LISTENS)
    assert rows(database.dsn, "SELECT pg_terminate_backend(%s, 5000)", listener) == [(True,)]
    await heard.until(lambda: heard.deaf == 1)
    message = forget_message(sender="other")
    notify(database.dsn, message.encode())
    await heard.until(lambda: heard.messages == [message])


@pytest.mark.parametrize("which", ["up", "down"])
async def test_a_connection_that_became_half_open_costs_no_turns(
    database: Database, tasks: TaskRegistry, which: str
) -> None:
    """A proxy answers for the connection, and no keepalive notices; a new one is well."""
    proxy = FaultProxy(database.port)
    await proxy.accept()
    where = {**database.settings(), "port": proxy.port}
    rules = FleetRules(beat_s=0.05, answer_s=0.3, renew_s=4.5)
    one = Membership(settings_for(where).storage.postgres, Presence(id="one", token="t"), rules=rules)
    heard = Heard(one)
    await renewing(one, tasks)
    tasks.spawn("watch", one.watch)
    await heard.until(lambda: heard.deaf == 1)
    await proxy.command(f"strand {which}")
    await heard.until(lambda: heard.deaf >= 2)
    message = forget_message(sender="other")
    notify(database.dsn, message.encode())
    await heard.until(lambda: heard.messages == [message])
    assert heard.lost == 0
    proxy.close()


async def test_who_begins_may_have_missed_everything(member: MakeMember, tasks: TaskRegistry) -> None:
    membership = member()
    heard = Heard(membership)
    await renewing(membership, tasks)
    await heard.until(lambda: heard.deaf == 1)


async def test_who_leaves_is_gone_at_once(found: Found, database: Database) -> None:
    one = await found("one")
    await found("other")
    await one.stop_renewing()
    await one.membership.leave()
    assert [row[0] for row in rows(database.dsn, INSTANCE)] == ["other"]


async def test_who_cannot_say_that_it_leaves_leaves_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    nowhere = {"host": "127.0.0.1", "port": 1, "database": "d", "username": "u"}
    membership = Membership(settings_for(nowhere).storage.postgres, Presence(), rules=RULES)
    await membership.leave()
    assert "the fleet was not left" in caplog.text


async def test_what_died_long_ago_is_swept_away_but_for_what_a_spool_may_have(
    found: Found, database: Database, member: MakeMember, tasks: TaskRegistry
) -> None:
    for name, spool in (("old", False), ("spooled", True)):
        await stopped(await renewing(member(name, keeps_spool=spool), tasks))
        died(database.dsn, name, 90_000.0)
    await found("one")
    await until(lambda: [row[0] for row in rows(database.dsn, INSTANCE)] == ["one", "spooled"])


KINDS = st.sampled_from(["cancel", "forget", "changed"])


@given(message=st.builds(Message, KINDS, *[st.text(max_size=9)] * 5))
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    assert Message.decode(message.encode()) == message


FIELDS = st.fixed_dictionaries(
    {}, optional={name: st.none() | st.text(max_size=3) | KINDS for name in ("kind", "session", "user", "exchange")}
)


@given(payload=st.text(max_size=20) | FIELDS.map(str) | FIELDS.map(lambda one: str(one).replace("'", '"')))
def test_any_other_text_is_no_message(payload: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Message.decode(payload)


async def _say(instance: Instance, message: Message) -> None:
    await instance.queries.fetch("notify", NOTIFY, {"channel": CHANNEL, "message": message.encode()})
