"""Who looks out for turns of a session hears of each, whoever runs it."""

import pytest

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.session.store import NewestElsewhere
from agentic_backend.session.watches import Watches
from agentic_backend.testing import USER
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended
from tests.agentic_backend.session.leased import LeaseView, Others, Table

HERE = (SESSION.id, USER)


class Heard(list):
    """What a watcher was called with."""

    def __call__(self, exchange_id, next_rank):
        self.append((exchange_id, next_rank))


def newest(exchange_id=None, next_rank=0):
    return NewestElsewhere(*HERE, exchange_id, next_rank)


async def test_a_turn_that_begins_is_told_to_who_watches_its_session(tasks):
    table = Table()
    process = EchoProcess(table, tasks, leases=LeaseView(table, "a"), elsewhere=Others())
    heard, other = Heard(), Heard()
    stop = process.registry.watch(*HERE, heard)
    process.registry.watch("another", USER, other)
    await ended(process.ask("e1", "hi"))
    assert heard == [("e1", 0)]
    await ended(process.ask("e1", "hi"))  # nothing begins: it is there already
    stop()
    await ended(process.ask("e2", "hi"))
    assert (heard, other) == ([("e1", 0)], [])


async def test_what_others_run_is_told_once():
    watches, others, heard = Watches(), Others(), Heard()
    await watches.look_elsewhere(others)
    stop = watches.add(*HERE, heard)
    await watches.look_elsewhere(others)
    assert heard == []
    others.newest_there = [newest("e1", 2), NewestElsewhere("another", USER, "e9", 2)]
    await watches.look_elsewhere(others)
    await watches.look_elsewhere(others)
    assert heard == [("e1", 2)]
    others.newest_there = [newest(None, 4)]
    await watches.look_elsewhere(others)
    assert heard == [("e1", 2), (None, 4)]
    later = Heard()
    watches.add(*HERE, later)
    await watches.look_elsewhere(others)
    assert later == [(None, 4)]  # who comes later is told what there is
    stop()
    stop()
    others.newest_there = [newest("e2", 4)]
    await watches.look_elsewhere(others)
    assert (heard[-1], later[-1]) == ((None, 4), ("e2", 4))
    assert len(watches) == 1


async def test_a_database_that_is_away_is_asked_again():
    watches, others = Watches(), Others()
    watches.add(*HERE, Heard())
    others.away = True
    with pytest.raises(HistoryUnavailable):
        await watches.look_elsewhere(others)
