"""Turns that other instances run, over Postgres and real sockets: followed, stopped, forgotten and told of changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from fastapi import FastAPI

from agentic_backend.errors import HistoryUnavailable, StorageFull
from agentic_backend.fleet.bus import Bus, Message, PostgresBus
from agentic_backend.fleet.elsewhere import FleetTurns
from agentic_backend.fleet.leases import SessionLease
from agentic_backend.fleet.membership import FleetRules
from agentic_backend.peers.mirror import Peers
from agentic_backend.peers.relay import TurnRelay, relay_routes
from agentic_backend.session.models import Session
from agentic_backend.session.store import LeaseLost, NewestElsewhere
from agentic_backend.session.stream import Accepted, Awaiting, Final, TextDelta, Turn
from backend_kit.aio import TaskRegistry
from backend_kit.http import ServeSettings, listen
from tests.agentic_backend.fleet.conftest import Found
from tests.agentic_backend.fleet.instances import RULES, Instance, ask_record, died, leases_in, turn_of, under
from tests.agentic_backend.records import USER, messages_of, new_session, rows, turn, until
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.silent_server import silent_server

pytestmark = pytest.mark.servers

BASE = "/agentic/v1"
NO_PATIENCE = FleetRules(beat_s=0.05, look_s=0.01, mirror_s=0.0)


@dataclass
class Member:
    """An instance with its view of the others. `connections` is each change of how many turns it follows there."""

    instance: Instance
    elsewhere: FleetTurns
    connections: list[int]

    async def begin(self, session: Session, exchange_id: str) -> Turn:
        """A turn that runs here."""
        await self.instance.begin(session, exchange_id)
        running = self.instance.turns.begin(session, exchange_id)
        running.publish(Accepted())
        return running


Join = Callable[..., "asyncio.Future[Member]"]


@asynccontextmanager
async def relayed(instance: Instance) -> AsyncIterator[str]:
    """The address at which other instances follow the turns of this one."""
    app = FastAPI(openapi_url=None)
    app.router.routes += relay_routes(TurnRelay(f"token of {instance.name}", instance.turns.runs), BASE)

    async def drain() -> None:
        pass

    sock = listen("127.0.0.1", 0)
    server = silent_server(app, drain, ServeSettings(loop="none"))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.stop()
            await asyncio.wait([serving], timeout=PATIENCE_S)


@pytest.fixture
async def join(found: Found, tasks: TaskRegistry, database: Database) -> AsyncIterator[Join]:
    """Make an instance that acts on what others say, and which they reach."""
    async with AsyncExitStack() as stack:

        async def make(name: str, rules: FleetRules = RULES, *, reached: bool = True, bus: Bus | None = None) -> Member:
            instance = await found(name, rules)
            instance.start_asks()
            peers = Peers(BASE, heartbeat_s=PATIENCE_S, connect_s=PATIENCE_S)
            stack.push_async_callback(peers.aclose)
            connections: list[int] = []
            persistence = instance.persistence
            postgres = PostgresBus(instance.queries)
            elsewhere = FleetTurns(
                instance.queries,
                postgres if bus is None else bus,
                postgres,
                instance.membership,
                instance.leases,
                instance.takeover,
                peers,
                persistence.pending,
                persistence.store,
                tasks,
                connections.append,
            )
            elsewhere.serve(instance.turns)
            if reached:
                instance.membership.identity.url = await stack.enter_async_context(relayed(instance))
                query = "SELECT url FROM instance WHERE id = %s"
                url = instance.membership.identity.url
                await until(lambda: rows(database.dsn, query, name) == [(url,)])
            return Member(instance, elsewhere, connections)

        yield make  # type: ignore[misc] # a coroutine function


@pytest.fixture
async def pair(join: Join) -> tuple[Member, Member]:
    return await join("one"), await join("other")


Pair = tuple[Member, Member]


def final_of(running: Turn, session: Session) -> Final:
    messages = messages_of(session, running.ask.exchange_id, ("question", "answer"))
    return Final(messages, session.advanced(2, "t"), b"[]", 0.0, "db")


def followed(turn: Turn) -> Turn:
    turn.follow(lambda: None)
    return turn


async def published(turn: Turn, count: int) -> None:
    """Wait until the turn has so many events."""
    more = asyncio.Event()
    turn.follow(more.set)
    async with asyncio.timeout(PATIENCE_S):
        while len(turn.events) < count:
            more.clear()
            await more.wait()
    turn.unfollow(more.set)


async def mirrored(member: Member, turn: Turn) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        return await member.elsewhere.mirror(turn)


async def test_a_turn_is_told_as_its_instance_tells_it(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    turn = followed(turn_of(session, "x1"))
    mirroring = asyncio.create_task(mirrored(other, turn))
    await published(turn, 1)
    assert other.connections == [1]
    running.publish(TextDelta(1, "final", "a"))
    await published(turn, 2)
    running.publish(final_of(running, session))
    assert await mirroring
    assert list(turn.events) == list(running.events)
    assert other.connections == [1, -1]


async def test_who_has_seen_a_part_gets_the_rest(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    for text in "abc":
        running.publish(TextDelta(1, "final", text))
    running.publish(final_of(running, session))
    turn = followed(turn_of(session, "x1"))
    turn.begins_after = 3
    assert await mirrored(other, turn)
    assert [event.seq for event in turn.events] == [4, 5]


async def test_who_has_seen_all_of_it_gets_its_end_without_an_event(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    running.publish(final_of(running, session))
    turn = followed(turn_of(session, "x1"))
    turn.begins_after = 2
    assert await mirrored(other, turn)
    assert turn.ended
    assert len(turn.events) == 0


@pytest.mark.parametrize("user_id", [USER, "eve"])
async def test_what_no_instance_has_is_told_from_history(pair: Pair, user_id: str) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    assert not await mirrored(other, turn_of(session, "x0"))  # nobody has the session
    running = await one.begin(session, "x1")
    assert not await mirrored(other, turn_of(session, "x0"))  # it runs another turn
    foreign = replace(session, user_id="eve")
    assert not await mirrored(other, turn_of(foreign, "x1"))
    running.publish(final_of(running, session))
    assert not await mirrored(other, turn_of(replace(session, id="unknown", user_id=user_id), "x1"))


async def test_of_an_instance_that_cannot_be_reached_a_turn_that_has_ended_is_told_from_history(
    join: Join, database: Database
) -> None:
    one, other = await join("one", reached=False), await join("other", NO_PATIENCE)
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    running.publish(final_of(running, session))
    with pytest.raises(HistoryUnavailable):
        await mirrored(other, turn_of(session, "x1"))  # nobody can say how it goes on
    one.instance.persistence.start()
    lease = await one.instance.acquire(session)
    await one.instance.persistence.log.append(under(lease, turn(session, "x1")))
    assert leases_in(database.dsn) == [("one", 1, None)]
    assert not await mirrored(other, turn_of(session, "x1"))


async def test_a_turn_whose_instance_died_is_followed_where_it_goes_on(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    turn = followed(turn_of(session, "x1"))
    mirroring = asyncio.create_task(mirrored(other, turn))
    await published(turn, 1)
    # As the takeover does; then the first one stops in mid-turn.
    again = other.instance.turns.begin(session, "x1")
    rows(database.dsn, "UPDATE session_lease SET holder = 'other', fence = 2, runs = 1 RETURNING 1")
    running.end_unseen()
    again.begin_again(1)
    again.publish(final_of(again, session))
    assert await mirroring
    assert [event.payload for event in turn.events] == [running.events[0].payload, *(e.payload for e in again.events)]


async def test_a_turn_of_its_own_that_does_not_run_is_taken_up_again(pair: Pair, database: Database) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    await one.instance.begin(session, "x1")  # let go of, say
    turn = followed(turn_of(session, "x1"))
    mirroring = asyncio.create_task(mirrored(one, turn))
    turns = one.instance.turns
    async with asyncio.timeout(PATIENCE_S):
        await turns.changed.wait()
    assert [cut.user_message.exchange_id for cut in turns.taken][:1] == ["x1"]
    again = turns.begin(session, "x1")
    again.begin_again(1)
    again.publish(final_of(again, session))
    assert await mirroring
    assert list(turn.events) == list(again.events)
    assert rows(database.dsn, "SELECT runs > 0, deaths FROM session_lease") == [(True, 0)]


async def test_a_stop_reaches_a_turn_that_has_been_taken_over_here(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    turn = followed(turn_of(session, "x1"))
    turn.cancel()  # while it was nobody's, who might have heard of it
    mirroring = asyncio.create_task(mirrored(one, turn))
    await published(turn, 1)
    assert running.cancel_requested
    running.publish(final_of(running, session))
    assert await mirroring


async def test_a_run_that_a_person_let_continue_is_taken_up_again_behind_the_question(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    await one.instance.begin(session, "x1")
    turns = one.instance.turns
    asked = turns.begin(session, "x1")
    asked.publish(Accepted())
    asked.publish(Awaiting({}, (), session))
    turn = followed(Turn(asked.ask, asked))
    turn.publish(Accepted())
    one.instance.leases.end_term()  # let go of, say
    mirroring = asyncio.create_task(mirrored(one, turn))
    async with asyncio.timeout(PATIENCE_S):
        await turns.changed.wait()
    again = turns.begin(session, "x1")
    again.begin_again(1)
    again.publish(final_of(again, session))
    assert await mirroring
    assert isinstance(turn.events[-1].payload, Final)


async def test_a_turn_of_its_own_whose_end_waits_for_postgres_runs_no_more(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    lease = await one.instance.begin(session, "x1")
    appending = asyncio.create_task(one.instance.persistence.log.append(under(lease, turn(session, "x1"))))
    await asyncio.sleep(0)
    with pytest.raises(StorageFull):
        await mirrored(one, turn_of(session, "x1"))
    assert one.instance.turns.taken == []
    one.instance.persistence.start()
    await appending
    assert not await mirrored(one, turn_of(session, "x1"))


async def test_who_follows_a_turn_that_is_given_up_here_waits_until_postgres_has_its_end(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    lease = await one.instance.begin(session, "x1")
    appending = asyncio.create_task(one.instance.persistence.log.append(under(lease, turn(session, "x1"))))
    await asyncio.sleep(0)
    seen = turn_of(session, "x1")
    seen.publish(Accepted())
    looks = one.instance.queries.ran.count("holder_of_session")
    mirroring = asyncio.create_task(mirrored(one, seen))
    await until(lambda: one.instance.queries.ran.count("holder_of_session") >= looks + 2)
    assert not mirroring.done()
    one.instance.persistence.start()
    await appending
    assert not await mirroring  # history has it
    assert one.instance.turns.taken == []


async def test_an_exchange_of_another_session_is_not_told(pair: Pair) -> None:
    one, _ = pair
    session, another = await new_session(one.instance.persistence), await new_session(one.instance.persistence)
    await one.begin(session, "x1")
    await one.instance.acquire(another)
    one.instance.turns.here["x1", USER] = turn_of(session, "x1")
    assert not await mirrored(one, turn_of(another, "x1"))


async def test_without_postgres_who_has_seen_nothing_is_refused_and_who_has_waits(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    running.publish(final_of(running, session))
    turn = followed(turn_of(session, "x1"))
    other.instance.queries.failing.append("holder_of_session")
    with pytest.raises(HistoryUnavailable):
        await mirrored(other, turn)
    turn.take(running.events[0])
    other.instance.queries.failing += ["holder_of_session"] * 2
    assert await mirrored(other, turn)
    assert list(turn.events) == list(running.events)


async def test_a_stop_reaches_the_instance_that_runs_the_turn(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    assert not await other.elsewhere.stop("x0", USER)
    assert not await other.elsewhere.stop("x1", "eve")
    assert await other.elsewhere.stop("x1", USER)
    await until(lambda: running.cancel_requested)


class Lost:
    """A bus that says it has delivered, and has not."""

    async def send(self, message: Message) -> None:
        pass


async def test_a_stop_that_the_bus_has_lost_is_told_again(join: Join) -> None:
    one, other = await join("one"), await join("other", bus=Lost())
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    assert await other.elsewhere.stop("x1", USER)
    await until(lambda: running.cancel_requested)


@pytest.mark.parametrize("asked", ["one", "other"])
async def test_a_stop_of_a_turn_that_is_between_two_runs_is_told_until_it_runs(pair: Pair, asked: str) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    await one.instance.begin(session, "x1")
    one.instance.turns.here.clear()
    for _ in range(2):
        assert await (one if asked == "one" else other).elsewhere.stop("x1", USER)
    if asked == "other":
        await until(lambda: one.instance.membership.notified == 4)  # two in vain, and two more
    running = one.instance.turns.begin(session, "x1")
    await until(lambda: running.cancel_requested)


@pytest.mark.parametrize("taker", ["one", "other"])
async def test_a_stop_of_a_turn_that_moves_reaches_it_where_it_goes_on(
    pair: Pair, database: Database, taker: str
) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    await one.instance.begin(session, "x1")
    await one.elsewhere.hand_over(session.id, USER, "x1")
    for _ in range(2):
        assert await one.elsewhere.stop("x1", USER)
    assert one.instance.tasks.names.count("cancel-again") == 1
    await until(lambda: other.instance.membership.notified == 2)  # who does not have it yet
    running = (one if taker == "one" else other).instance.turns.begin(session, "x1")
    rows(database.dsn, "UPDATE session_lease SET holder = %s RETURNING 1", taker)
    await until(lambda: running.cancel_requested)


async def test_a_delete_that_the_bus_has_lost_is_told_again(join: Join) -> None:
    one, other = await join("one"), await join("other", bus=Lost())
    session = await new_session(one.instance.persistence)
    lease = await one.instance.begin(session, "x1")
    forgetting = asyncio.create_task(other.elsewhere.forget(session.id, USER))
    async with asyncio.timeout(PATIENCE_S):
        await one.instance.turns.changed.wait()
    one.instance.leases.withdraw(lease.fence, (session.id, USER), "x1")
    await forgetting
    assert one.instance.turns.forgotten == [(session.id, USER)]
    assert other.instance.queries.ran.count("notify") == 1


async def test_what_others_run_and_have_run_in_sessions_that_are_watched_here(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    quiet = await new_session(one.instance.persistence)
    watched = [(session.id, USER), (quiet.id, USER), (session.id, "another")]
    assert await other.elsewhere.newest(watched) == []
    await one.begin(session, "x1")
    assert await other.elsewhere.newest(watched) == [NewestElsewhere(session.id, USER, "x1", 0)]
    assert await one.elsewhere.newest(watched) == []  # it is its own
    other.instance.queries.failing.append("newest_elsewhere")
    with pytest.raises(HistoryUnavailable):
        await other.elsewhere.newest(watched)


async def test_what_is_handed_over_is_taken_at_once_and_counts_no_death(pair: Pair, database: Database) -> None:
    one, other = pair
    assert await one.elsewhere.has_takers()
    session = await new_session(one.instance.persistence)
    await one.begin(session, "x1")
    deaths = "SELECT holder, exchange_id, runs, deaths FROM session_lease"
    for run, (leaves, stays) in enumerate([(one, other), (other, one), (one, other)], 1):
        await leaves.elsewhere.hand_over(session.id, USER, "x1")
        looking = stays.instance.spawn(stays.instance.takeover.look_for_dead)
        name = stays.instance.name
        await until(lambda name=name, run=run: rows(database.dsn, deaths) == [(name, "x1", run, 0)])  # type: ignore[misc] # bound now
        looking.cancel()
        await asyncio.wait([looking])
        assert stays.instance.taken == []  # seconds after a death
        stays.instance.turns.begin(session, "x1")


async def test_nobody_takes_what_an_instance_leaves_that_drains_or_is_alone(pair: Pair, database: Database) -> None:
    one, other = pair
    other.instance.membership.draining = True
    await until(lambda: rows(database.dsn, "SELECT draining FROM instance WHERE id = 'other'") == [(True,)])
    assert not await one.elsewhere.has_takers()
    assert await other.elsewhere.has_takers()
    await one.instance.membership.leave()
    one.instance.queries.failing.append("takers")
    assert not await one.elsewhere.has_takers()  # Postgres is away: nobody knows


async def test_instances_that_are_ended_together_do_not_hand_over_to_one_another(
    join: Join, database: Database
) -> None:
    rare = replace(RULES, beat_s=60.0, signals_s=0.5)
    one, other = await join("one", rare, reached=False), await join("other", rare, reached=False)
    for each in (one, other):
        each.instance.membership.draining = True
    async with asyncio.timeout(PATIENCE_S):
        assert not any(await asyncio.gather(one.elsewhere.has_takers(), other.elsewhere.has_takers()))


async def test_what_is_let_go_in_a_drain_is_not_taken_up_here_again(pair: Pair, database: Database) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    await one.instance.begin(session, "x1")
    one.instance.membership.draining = True
    one.instance.queries.failing.append("hand_over")
    await one.elsewhere.hand_over(session.id, USER, "x1")
    mirroring = asyncio.create_task(mirrored(one, followed(turn_of(session, "x1"))))
    await until(lambda: one.instance.queries.ran.count("holder_of_session") > 2)
    assert one.instance.turns.taken == []
    assert rows(database.dsn, "SELECT holder, runs FROM session_lease") == [("one", 0)]
    mirroring.cancel()
    await asyncio.wait([mirroring])


async def test_with_a_spool_what_waits_for_postgres_holds_a_turn_back(join: Join, database: Database) -> None:
    one = await join("one")
    one.instance.membership.identity.keeps_spool = True
    rows(database.dsn, "UPDATE instance SET keeps_spool = true WHERE id = 'one' RETURNING 1")
    persistence = one.instance.persistence
    waits, free = await new_session(persistence), await new_session(persistence)
    lease = await one.instance.begin(waits, "x0")
    appending = asyncio.create_task(persistence.log.append(under(lease, turn(waits, "x0"))))
    await asyncio.sleep(0)  # nothing is written: its persistence has not begun
    await one.instance.begin(free, "x1")
    for session, exchange_id in ((waits, "x0"), (free, "x1")):
        await one.elsewhere.hand_over(session.id, USER, exchange_id)
    holders = dict(rows(database.dsn, "SELECT exchange_id, holder FROM session_lease"))
    assert holders == {"x0": "one", "x1": ""}
    persistence.start()
    await appending


async def test_a_stop_where_it_runs_needs_no_message(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    assert await one.elsewhere.stop("x1", USER)
    assert running.cancel_requested
    assert "notify" not in one.instance.queries.ran


async def test_what_has_ended_and_waits_for_postgres_cannot_be_stopped(join: Join) -> None:
    one = await join("one")
    persistence = one.instance.persistence
    session = await new_session(persistence)
    lease = await one.instance.acquire(session)
    await one.instance.begin(session, "x1")
    one.instance.turns.here.clear()
    appending = asyncio.create_task(persistence.log.append(under(lease, turn(session, "x1"))))
    await asyncio.sleep(0)  # nothing is written: its persistence has not begun
    assert not await one.elsewhere.stop("x1", USER)
    persistence.start()
    await appending


async def test_a_mirror_that_is_stopped_stops_the_turn_wherever_it_is_found(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    running = await one.begin(session, "x1")
    turn = followed(turn_of(session, "x1"))
    turn.cancel()
    mirroring = asyncio.create_task(mirrored(other, turn))
    await until(lambda: running.cancel_requested)
    running.publish(final_of(running, session))
    assert await mirroring


async def test_what_another_instance_runs_is_found_with_its_question(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    await one.begin(session, "x1")
    found = await other.elsewhere.find("x1", USER)
    assert found is not None
    assert (found.session.id, found.user_message.text) == (session.id, "question")
    assert await one.elsewhere.find("x1", USER) is None  # it runs here
    assert await other.elsewhere.find("x1", "eve") is None
    assert await other.elsewhere.find("x0", USER) is None


async def test_all_forget_a_session_and_its_deleter_waits_for_the_turn_that_runs(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    key = (session.id, USER)
    lease = await one.instance.begin(session, "x1")
    forgetting = asyncio.create_task(other.elsewhere.forget(session.id, USER))
    async with asyncio.timeout(PATIENCE_S):
        await one.instance.turns.changed.wait()
    assert one.instance.turns.forgotten == [key]
    assert one.instance.leases.fence_of(key) is None
    assert not forgetting.done()
    one.instance.leases.withdraw(lease.fence, key, "x1")
    async with asyncio.timeout(PATIENCE_S):
        await forgetting


@pytest.mark.parametrize("case", ["nobody", "no turn", "own", "dead"])
async def test_a_delete_does_not_wait_for_what_is_not_there(pair: Pair, database: Database, case: str) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence)
    if case == "no turn":
        await one.instance.acquire(session)
    elif case == "own":
        await other.instance.begin(session, "x1")
    elif case == "dead":
        await one.instance.begin(session, "x1")
        await one.instance.stop_renewing()
        died(database.dsn, "one")
    other.instance.queries.ran.clear()
    await other.elsewhere.forget(session.id, USER)
    assert other.instance.queries.ran == ["notify", "holder_of_session"]
    assert other.instance.leases.fence_of((session.id, USER)) is None


async def test_a_change_is_read_again_elsewhere(pair: Pair) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence, title="Old")
    await other.instance.acquire(session)
    one.instance.persistence.start()
    assert await one.instance.persistence.store.change(session.id, USER, title="New")
    await one.elsewhere.publish_change(session.id, USER)
    async with asyncio.timeout(PATIENCE_S):
        await other.instance.turns.changed.wait()
    assert [one.title for one in other.instance.turns.reread_] == ["New"]
    assert other.instance.leases.fence_of((session.id, USER)) is None


@pytest.mark.parametrize("runs", [False, True], ids=["between turns", "in a turn"])
async def test_who_has_not_heard_of_a_change_does_not_remember_the_old_for_the_next_turn(
    pair: Pair, database: Database, runs: bool
) -> None:
    one, other = pair
    session = await new_session(one.instance.persistence, title="Old")
    lease = await other.instance.acquire(session)
    if runs:
        await other.begin(session, "x1")
    other.instance.membership.on_message = lambda _message: None  # it is on its way
    await one.elsewhere.publish_change(session.id, USER)
    if runs:
        assert leases_in(database.dsn) == [("other", 1, "x1")]  # its end is written as if nothing were
        return
    with pytest.raises(LeaseLost):
        await other.instance.leases.record(lease, ask_record(session, "x2"))
    assert await other.instance.acquire(session) == SessionLease(2, False)
    # What it changes itself it knows.
    await other.elsewhere.publish_change(session.id, USER)
    assert leases_in(database.dsn) == [("other", 2, None)]


async def test_a_change_that_cannot_be_told_is_logged(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = pair
    one.instance.queries.failing.append("notify")
    await one.elsewhere.publish_change("s1", USER)
    assert "could not be told to other instances" in caplog.text


async def test_who_could_not_renew_lets_go_of_turns_and_of_all_it_remembered(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    await one.begin(session, "x1")
    one.instance.membership.on_lost()
    assert one.instance.turns.let_go_of == 1
    # Another may have it by now: of a turn that has not begun, too, that must be seen.
    assert one.instance.leases.fence_of((session.id, USER)) is None


async def test_who_may_have_missed_messages_trusts_no_lease(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.instance.persistence)
    await one.begin(session, "x1")
    one.instance.membership.on_deaf()
    assert one.instance.leases.fence_of((session.id, USER)) is None
    assert one.instance.turns.let_go_of == 0
