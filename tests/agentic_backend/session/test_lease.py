"""Turns where several instances share the sessions: each takes a lease first and gives it back, however it ends."""

import asyncio

import pytest

from agentic_backend.errors import HistoryUnavailable, SessionBusy
from agentic_backend.session.stream import Cancelled, Failed, Final, TextDelta, Turn
from agentic_backend.testing import MemoryStorage
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended
from tests.support.patience import PATIENCE_S


class Table:
    """The leases of all instances. `told` is, for each release, whether the turn's end had been told by then."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.fence = 0
        self.turn: Turn | None = None
        self.told: list[bool] = []
        self.away = False


class Instance:
    """The leases as one instance sees them; its own lease while it has one."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self._name = name
        self.fence = 0
        self._released = False

    async def acquire(self, _session_id: str, _user_id: str) -> "Instance":
        await asyncio.sleep(0)
        if self._table.away:
            raise HistoryUnavailable
        if self._table.holder is not None:
            raise SessionBusy(retry_after_s=1.0)
        self._table.holder = self._name
        self._table.fence += 1
        self.fence = self._table.fence
        self._released = False
        return self

    async def release(self) -> None:
        if not self._released:
            self._released = True
            self._table.holder = None
            self._table.told.append(self._table.turn is not None and self._table.turn.ended)


@pytest.fixture
def storage():
    return MemoryStorage(SESSION)


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def instances(storage, tasks, table):
    return [EchoProcess(storage, tasks, leases=Instance(table, name)) for name in "ab"]


def ask(process, table, *given, **more):
    table.turn = process.ask(*given, **more)
    return table.turn


async def test_turns_at_either_instance_go_on_from_one_another(storage, table, instances):
    for number in range(6):
        final = await ended(ask(instances[number % 2], table, f"e{number}", f"question {number}"))
        assert isinstance(final, Final)
    assert [loads(row)["rank"] for row in storage.history()] == list(range(18))
    assert storage.reads["get"] == 6
    assert storage.fences == [1, 2, 3, 4, 5, 6]
    # Whoever hears of an end finds the session free.
    assert table.told == [False] * 6


async def test_while_one_instance_runs_a_turn_the_other_is_busy_even_for_who_would_queue(storage, table, instances):
    running = instances[0].ask("e1", "wait")
    spoken = asyncio.Event()
    running.follow(lambda: spoken.set() if isinstance(running.events[-1].payload, TextDelta) else None)
    async with asyncio.timeout(PATIENCE_S):
        await spoken.wait()
    for policy in ("reject", "queue", "replace"):
        refused = await ended(instances[1].ask(f"other-{policy}", if_busy=policy))
        assert (refused.code, refused.refused, refused.retry_after_ms) == (Code.SESSION_BUSY, True, 1000)
    assert table.holder == "a"
    running.cancel()
    assert isinstance(await ended(running), Cancelled)
    assert table.holder is None
    assert isinstance(await ended(instances[1].ask("other-reject")), Final)


@pytest.mark.parametrize("question", ["fail", "fail late"])
async def test_a_turn_that_fails_gives_the_session_back_before_it_says_so(table, instances, question):
    assert isinstance(await ended(ask(instances[0], table, "e1", question)), Failed)
    assert table.told == [False]


async def test_a_turn_that_could_not_be_stored_gives_the_session_back(storage, table, instances):
    storage.full = True
    turn = ask(instances[0], table, "e1")
    assert (await ended(turn)).code == Code.STORAGE_FULL
    await asyncio.sleep(0)
    assert table.holder is None


async def test_an_ask_that_is_told_again_or_refused_gives_the_session_back(storage, table, instances):
    await ended(instances[0].ask("e1", "hello"))
    assert isinstance(await ended(instances[1].ask("e1", "hello")), Final)
    assert len(storage.asks) == 1
    await asyncio.sleep(0)
    assert table.holder is None
    del storage.sessions[SESSION.id, SESSION.user_id]
    assert (await ended(instances[1].ask("e2"))).code == Code.SESSION_NOT_FOUND
    await asyncio.sleep(0)
    assert table.holder is None


async def test_without_a_lease_nothing_is_read_or_run(storage, table, instances):
    table.away = True
    assert (await ended(instances[0].ask("e1"))).code == Code.HISTORY_UNAVAILABLE
    assert storage.reads == {}
    assert storage.asks == []


async def test_alone_no_record_has_a_fence(storage, tasks):
    await ended(EchoProcess(storage, tasks).ask("e1"))
    assert storage.fences == [None]
