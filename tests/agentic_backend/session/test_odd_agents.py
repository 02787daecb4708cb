"""What an agent or its saved run does that nobody foresaw ends its turn, and costs nothing beyond it."""

from dataclasses import dataclass

import pytest

from agentic_backend.agent.interrupts import SavedRun
from agentic_backend.session.stream import Awaiting, Cited, Failed, Final, HumanAnswer
from agentic_backend.testing import MemoryStorage
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended


@dataclass
class Unreadable:
    """Keeps runs that nobody can read any more, as after an upgrade."""

    async def keep(self, _session_id: str, _saved: SavedRun) -> None:
        """Taken."""

    async def take(self, _session_id: str, _run_id: str) -> SavedRun | None:
        raise ValueError("an unknown type")


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(SESSION)


@pytest.mark.parametrize("question", ["answer oddly", "cite oddly", "step oddly"])
async def test_what_an_agent_leaves_that_is_no_json_is_a_failure_that_is_recorded(
    storage: MemoryStorage, tasks: TaskRegistry, question: str
) -> None:
    process = EchoProcess(storage, tasks)
    turn = process.ask("e1", question)
    failed = await ended(turn)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.refused) == (Code.INTERNAL, False)
    assert not any(isinstance(event.payload, Cited) for event in turn.events)
    assert [event.seq for event in turn.events] == list(range(1, len(turn.events) + 1))
    stored = [loads(row) for row in storage.history()]
    assert [message.json for message in failed.messages] == storage.history()
    assert [row["rank"] for row in stored] == [0, 1, 2]
    assert stored[0]["parts"][0]["text"] == question
    assert stored[-1]["metadata"]["extras"]["error"] == "internal"
    assert [message.rank for message in (await ended(process.ask("e2"))).messages] == [3, 4, 5]


async def test_a_saved_run_that_cannot_be_read_keeps_no_slot(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    process = EchoProcess(storage, tasks, checkpoints=Unreadable())
    assert isinstance(await ended(process.ask("e1", "ask")), Awaiting)
    failed = await ended(process.ask("e1", "", human=HumanAnswer("yes")))
    assert (failed.code, process.admission.running) == (Code.INTERNAL, 0)
    assert tasks.failures["turn"] == 1
    assert isinstance(await ended(process.ask("e2")), Final)


async def test_an_id_that_could_break_a_line_of_the_log_stands_in_none(
    storage: MemoryStorage, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    process = EchoProcess(storage, tasks)
    forged = "e1\nALARM all is lost"
    for question in ("fail", "answer oddly"):
        assert isinstance(await ended(process.ask(f"{forged} {question}", question)), Failed)
    storage.full = True
    assert isinstance(await ended(process.ask(forged)), Failed)
    assert [record.getMessage().partition(" code=")[0] for record in caplog.records if record.levelname != "INFO"] == [
        "turn failed exchange_id=unprintable",
        "agent failed exchange_id=unprintable agent=Echo",
        "turn not stored exchange_id=unprintable",
    ]
