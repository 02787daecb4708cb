"""Limits of users over several instances: what an instance lets go by itself, what Postgres decides, and what it knows
of the dead."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from agentic_backend.errors import RateLimited, TooManyTurns
from agentic_backend.fleet.bus import Message
from agentic_backend.fleet.statements import CHANNEL, NOTIFY
from agentic_backend.persist.shares import SWEEP_SHARES, SharedLimits, SharedRate
from agentic_backend.session.admission import Admission, Overall, TurnLimits
from tests.agentic_backend.fleet.instances import Instance, died
from tests.agentic_backend.records import rows, until
from tests.support.postgres import Database

pytestmark = pytest.mark.servers


class Member:
    """The limits of one instance of three."""

    def __init__(self, instance: Instance, **given: int) -> None:
        self.instance = instance
        self.limits = SharedLimits(instance.queries, instance.name, instance.membership.rules.dead_s, self.report_full)
        self.limits.instances = 3
        self.hits: list[str] = []
        turns, asks, burst = given.get("turns", 0), given.get("asks_per_min", 0), given.get("burst", 0)
        limits = TurnLimits(0, 0, 1.0, turns_per_user=turns, asks_per_min=asks, burst=burst)
        self.admission = Admission(limits, self.hits.append)
        count = self.limits.count("turns", turns, self.admission)
        self.admission.overall = Overall(SharedRate(self.limits, "asks", asks, burst), count)
        self.sockets = Sockets()
        self.open = self.limits.count("sockets", given.get("sockets", 0), self.sockets, self.sockets.keep_newest)

    async def report_full(self, instance: str, user_id: str) -> None:
        message = Message("full", "", user_id, to=instance, sender=self.instance.name)
        await self.instance.queries.fetch("notify", NOTIFY, {"channel": CHANNEL, "message": message.encode()})

    async def ask(self, user_id: str = "ann") -> bool:
        """Whether the user may have another turn, which then runs."""
        try:
            self.admission.check(user_id)
            await self.admission.enter_overall(user_id)
        except (TooManyTurns, RateLimited):
            return False
        return True

    def asked_postgres(self) -> int:
        """How many statements it has taken."""
        return len([op for op in self.instance.queries.ran if op in ("hold_share", "take_share")])


class Sockets:
    """Sockets of one user: for how many seconds each has been open, the oldest first; `kept` is how many stay."""

    def __init__(self) -> None:
        self.ages: list[float] = []
        self.kept: int | None = None

    def ages_of(self, _user_id: str) -> list[float]:
        return self.ages

    def holders(self) -> Iterable[str]:
        return ["ann"] if self.ages else []

    def keep_newest(self, _user_id: str, count: int, _told_at: float) -> None:
        self.kept = count


@pytest.fixture
def pair(pair: tuple[Instance, Instance]) -> Callable[..., Awaitable[tuple[Member, Member]]]:
    """Two instances with these limits, which tell what is due."""

    async def make(**given: int) -> tuple[Member, Member]:
        members = Member(pair[0], **given), Member(pair[1], **given)
        for member in members:
            member.instance.spawn(member.limits.write)
            ran = member.instance.queries
            await until(lambda of=ran: "forget_shares" in of.ran and not of.running)
        return members

    return make


Pair = Callable[..., Awaitable[tuple[Member, Member]]]


def held(database: Database, kind: str = "turns") -> dict[str, int]:
    """How many things of the user each instance has told."""
    found = rows(database.dsn, "SELECT held FROM user_share WHERE user_id = 'ann' AND kind = %s", kind)
    return {instance: len(since) for (told,) in found for instance, since in told.items()}


async def test_of_many_asks_at_once_at_two_as_many_run_as_the_limit_says(pair: Pair) -> None:
    one, other = await pair(turns=4)
    ran = await asyncio.gather(*(member.ask() for _ in range(5) for member in (one, other)))
    assert sum(ran) == 4
    assert await one.ask("bob")
    assert "per_user_turns" in one.hits + other.hits


async def test_what_has_ended_at_one_may_run_at_the_other(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=2)
    assert [await one.ask(), await one.ask(), await other.ask()] == [True, True, False]
    assert held(database) == {"one": 2}
    one.admission.leave_user("ann")
    await until(lambda: held(database) == {"one": 1})
    assert [await other.ask(), await one.ask()] == [True, False]
    for member in (one, other):
        member.admission.leave_user("ann")
    await until(lambda: not any(held(database).values()))


async def test_few_turns_are_told_to_nobody_and_all_of_them_once_they_are_many(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=30)  # of which each of three may let two go
    assert [await one.ask(), await one.ask(), await other.ask()] == [True] * 3
    assert one.asked_postgres() == other.asked_postgres() == 0
    assert await one.ask()
    assert held(database) == {"one": 3}
    one.admission.leave_user("ann")
    one.admission.leave_user("ann")
    await until(lambda: held(database) == {"one": 1})
    one.admission.leave_user("ann")
    await until(lambda: held(database) == {"one": 0} and not one.instance.queries.running)
    asked = one.asked_postgres()
    assert await one.ask()
    assert one.asked_postgres() == asked


async def test_no_more_than_a_fifth_runs_above_the_limit(pair: Pair) -> None:
    one, other = await pair(turns=20)
    ran = [await member.ask() for member in (one, other) for _ in range(20)]
    assert 20 <= sum(ran) <= 24


async def test_what_the_dead_had_counts_no_more(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=2)
    assert [await one.ask(), await one.ask(), await other.ask()] == [True, True, False]
    await one.instance.stop_renewing()
    died(database.dsn, "one")
    assert await other.ask()
    assert held(database) == {"other": 1}


async def test_who_was_away_tells_what_it_holds_again(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=2)
    assert [await one.ask(), await other.ask()] == [True, True]
    rows(database.dsn, "UPDATE user_share SET held = '{}' RETURNING 1")
    one.limits.note_all()
    other.limits.note_all()
    await until(lambda: held(database) == {"one": 1, "other": 1})


async def test_where_more_instances_come_less_goes_untold(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=30)
    one.limits.note_instances(1)  # as two
    assert [await one.ask() for _ in range(3)] == [True] * 3
    one.limits.note_instances(2)
    assert held(database) == {}
    one.limits.note_instances(5)
    await until(lambda: held(database) == {"one": 3})
    one.limits.note_instances(2)  # what was told is told on
    one.admission.leave_user("ann")
    await until(lambda: held(database) == {"one": 2})
    assert other.asked_postgres() == 0


async def test_without_postgres_each_instance_holds_the_limit_itself(pair: Pair, database: Database) -> None:
    one, _ = await pair(turns=2, asks_per_min=6, burst=3)
    one.instance.queries.failing += ["take_share", "hold_share"] * 2
    assert [await one.ask(), await one.ask(), await one.ask()] == [True, True, False]
    # What could not be told is told when there is something to tell.
    one.instance.queries.failing.append("hold_share")
    one.admission.leave_user("ann")
    await until(lambda: held(database) == {"one": 1})


async def test_a_burst_is_one_over_all_instances(pair: Pair) -> None:
    one, other = await pair(asks_per_min=6, burst=3)
    assert [await member.ask() for member in (one, other, one, other, one)] == [True] * 3 + [False] * 2
    with pytest.raises(RateLimited) as refused:
        await other.admission.check_overall("ann")
    assert 0.0 < refused.value.retry_after_s <= 10.0  # type: ignore[operator]
    assert await other.ask("bob")


async def test_seldom_asks_cost_no_statement(pair: Pair) -> None:
    one, other = await pair(asks_per_min=6, burst=30)  # of which each of three may let two go
    assert [await member.ask() for member in (one, other, one, other)] == [True] * 4
    assert one.asked_postgres() == other.asked_postgres() == 0
    assert await one.ask()
    assert one.asked_postgres() == 1
    more = [await member.ask() for member in (one, other) for _ in range(30)]
    assert 30 <= 5 + sum(more) <= 36


async def test_tokens_come_back_with_time(pair: Pair, database: Database) -> None:
    one, other = await pair(asks_per_min=60, burst=2)
    assert [await one.ask(), await one.ask(), await other.ask()] == [True, True, False]
    rows(database.dsn, "UPDATE user_share SET changed_at = changed_at - interval '1 second' RETURNING 1")
    assert [await other.ask(), await other.ask()] == [True, False]


async def test_with_too_many_sockets_the_oldest_of_all_go(pair: Pair, database: Database) -> None:
    one, other = await pair(sockets=3)
    one.sockets.ages, other.sockets.ages = [50.0, 30.0, 10.0], [40.0, 20.0]
    for member in (one, other):
        member.instance.membership.on_message = lambda message, of=member.limits: of.note_full(message.user_id)
    one.open.note("ann")
    await until(lambda: held(database, "sockets") == {"one": 3})
    other.open.note("ann")
    await until(lambda: (one.sockets.kept, other.sockets.kept) == (2, 1))
    # Until they are closed both hold too many. Nobody tells it again and again.
    assert held(database, "sockets") == {"one": 3, "other": 2}
    one.limits.note_full("ann")
    await until(lambda: one.asked_postgres() == 3 and not one.instance.queries.running)
    assert [member.instance.queries.ran.count("notify") for member in (one, other)] == [0, 1]
    # A stream is refused instead.
    assert not await other.open.has_room("ann", lambda: [40.0, 20.0, 0.0])
    one.sockets.ages, other.sockets.ages = [10.0], [20.0]
    for member in (one, other):
        member.open.note("ann")
    await until(lambda: held(database, "sockets") == {"one": 1, "other": 1})
    assert await other.open.has_room("ann", lambda: [20.0, 0.0])


async def test_who_has_no_limit_closes_nothing_for_others(pair: Pair, database: Database) -> None:
    one, other = await pair()
    one.sockets.ages = [50.0, 40.0]
    one.instance.membership.on_message = lambda message: one.limits.note_full(message.user_id)
    await other.report_full("one", "ann")
    await until(lambda: held(database, "sockets") == {"one": 2} and not one.instance.queries.running)
    assert one.sockets.kept is None


async def test_of_many_asks_at_once_a_bucket_lets_pass_what_it_has(pair: Pair) -> None:
    one, other = await pair(asks_per_min=6, burst=8)
    asked = await asyncio.gather(*(member.ask() for _ in range(8) for member in (one, other)))
    assert sum(asked) == 8


async def test_who_floods_is_refused_without_a_look_at_anything(pair: Pair) -> None:
    one, _ = await pair(asks_per_min=6, burst=2)
    assert [await one.ask(), await one.ask()] == [True] * 2
    asked = one.asked_postgres()
    with pytest.raises(RateLimited):
        one.admission.check("ann")
    assert one.asked_postgres() == asked


async def test_what_an_earlier_process_of_the_instance_had_told_is_forgotten(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=2)
    assert [await one.ask(), await one.ask(), await other.ask()] == [True, True, False]
    again = Member(one.instance, turns=2)
    again.instance.spawn(again.limits.write)
    await until(lambda: held(database) == {})
    assert [await other.ask(), await other.ask()] == [True, True]


async def test_what_is_told_before_that_is_not_forgotten_with_it(pair: Pair) -> None:
    """While Postgres is not there yet, or is slow, the first ask comes before the task."""
    one, other = await pair(turns=2)
    again = Member(one.instance, turns=2)
    ran = again.instance.queries.ran
    ran.clear()
    assert [await again.ask(), await again.ask()] == [True, True]
    again.instance.spawn(again.limits.write)
    again.admission.enter_user("ann")  # due, and written after whatever the task begins with
    await until(lambda: ran.count("hold_share") == 3 and not again.instance.queries.running)
    assert [op for op in ran if op != "sweep_shares"] == ["forget_shares", *["hold_share"] * 3]
    assert not await other.ask()


async def test_a_bucket_whose_clock_was_set_back_is_full(pair: Pair, database: Database) -> None:
    one, other = await pair(asks_per_min=6, burst=3)
    assert [await one.ask(), await one.ask(), await one.ask(), await other.ask()] == [True, True, True, False]
    rows(database.dsn, "UPDATE user_share SET changed_at = changed_at + interval '1 hour' RETURNING 1")
    assert [await other.ask(), await other.ask()] == [True, True]


async def test_a_refused_ask_spends_nothing_of_the_other_limit(pair: Pair, database: Database) -> None:
    one, other = await pair(turns=1, asks_per_min=6, burst=2)
    assert [await one.ask(), await other.ask(), await other.ask()] == [True, False, False]
    one.admission.leave_user("ann")
    await until(lambda: not any(held(database).values()))
    # Of two asks there is one left, and who is refused it runs nothing.
    assert [await other.ask(), await one.ask()] == [True, False]
    other.admission.leave_user("ann")
    await until(lambda: not any(held(database).values()))
    assert not await one.ask()
    assert one.admission.ages_of("ann") == []


async def test_what_somebody_holds_for_long_is_not_swept(pair: Pair, database: Database) -> None:
    one, _ = await pair(turns=2)
    assert await one.ask()
    gone = "INSERT INTO user_share (user_id, kind, held, changed_at) VALUES ('bob', 'turns', '{}', now()) RETURNING 1"
    rows(database.dsn, gone)
    rows(database.dsn, "UPDATE user_share SET changed_at = changed_at - interval '2 days' RETURNING 1")
    again = Member(one.instance, turns=2)
    await again.limits.queries.fetch("sweep_shares", SWEEP_SHARES, {})
    assert rows(database.dsn, "SELECT user_id FROM user_share") == [("ann",)]
