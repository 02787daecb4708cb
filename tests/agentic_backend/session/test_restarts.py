"""Turns that the end of a process cut off: the next one runs them again by itself, once, or leaves them interrupted."""

import asyncio
from typing import Any

import pytest

from agentic_backend.agent import SavedRun
from agentic_backend.events import ChatMessage, text_part
from agentic_backend.session.admission import TurnLimits
from agentic_backend.session.models import AskRecord, Rerun
from agentic_backend.session.stream import (
    RUN_SEQS,
    Accepted,
    Ask,
    Awaiting,
    Cancelled,
    Failed,
    Final,
    HumanAnswer,
    Restarted,
    TextDelta,
    Whole,
)
from agentic_backend.session.turn import TurnRules
from agentic_backend.settings import Restart
from agentic_backend.testing import USER, MemoryStorage
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended, ticks
from tests.agentic_backend.session.hosted import Hosted
from tests.support.patience import PATIENCE_S

AUTHENTICATED = TurnRules(turn_s=30.0, restore_max_exchanges=20, authenticated=True)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(SESSION)


async def cut(storage: MemoryStorage, tasks: Any, agents: Hosted | None = None, **ask: Any) -> AskRecord:
    """Begin a turn in a process that dies in the middle of it; what the next one finds of it."""
    agents = agents or Hosted()
    died_with = MemoryStorage(*storage.sessions.values())
    dead = EchoProcess(died_with, tasks, agents=agents, rules=ask.pop("rules", None))
    dead.ask("e1", **ask)
    await agents.began()
    record = AskRecord.decode(died_with.asks[0].encode())
    if record.rerun is not None:
        storage.left_over.append(record)
    return record


def extras_of(row: bytes) -> dict[str, Any]:
    return loads(row)["metadata"].get("extras", {})


async def test_a_cut_off_turn_runs_again_by_itself_in_its_place(storage, tasks):
    context = {"search_policy": "strict"}
    record = await cut(storage, tasks, message="why?", runtime_context=context, language="fr", model="large")
    agents = Hosted()
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    await agents.began()
    # Whoever comes back finds it running: by the same ask, or from any number on.
    assert process.ask("e1", "why?") is turn
    assert process.registry.resume(SESSION.id, "e1", USER) is turn
    assert turn.after(7) == 0
    # All of it is above whatever the run before had, and the first says that it replaces that.
    assert [(event.seq - RUN_SEQS, type(event.payload)) for event in turn.events] == [
        (1, Restarted),
        (2, Accepted),
        (3, Whole),
        (4, TextDelta),
    ]
    assert turn.after(RUN_SEQS + 2) == 2
    agents.gate.set()
    final = await ended(turn)
    assert isinstance(final, Final)
    assert sum(isinstance(event.payload, Final) for event in turn.events) == 1
    (run,) = agents.runs
    assert (run.message, run.runtime_context, run.language, run.model) == ("why?", context, "fr", "large")
    assert (run.restarted, run.credentials, run.resume) == (True, None, None)
    assert final.messages[0] == record.user_message
    assert [loads(row)["rank"] for row in storage.history()] == [0, 1]
    assert [extras_of(row).get("status") for row in storage.history()] == [None, None]
    assert [counted.rerun.restarts for counted in storage.counted] == [1]
    assert process.counts.get_sample_value("app_turns_restarted_total") == 1
    assert process.counts.get_sample_value("chat_user_message_total") == 0
    await ticks()
    assert process.ask("e1", "why?") is turn  # and afterwards it is told, not run


async def test_it_is_found_while_it_waits_and_its_session_is_busy(storage, tasks):
    await cut(storage, tasks)
    ready, agents = asyncio.Event(), Hosted()
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again(ready.wait)
    turn = process.registry.resume(SESSION.id, "e1", USER)
    busy = process.ask("e2", "other")
    queued = process.ask("e3", "third", if_busy="queue")
    await ticks()
    assert (await ended(busy)).code is Code.SESSION_BUSY
    assert (len(turn.events), agents.runs) == (0, [])
    agents.gate.set()
    ready.set()
    assert isinstance(await ended(queued), Final)
    assert [run.exchange_id for run in agents.runs] == ["e1", "e3"]
    assert [loads(row)["exchange_id"] for row in storage.history()] == ["e1", "e1", "e3", "e3"]


async def test_what_the_agent_must_not_do_twice_is_not_noted_to_be_run_again(storage, tasks):
    noted = [
        await cut(storage, tasks, Hosted("never")),
        await cut(storage, tasks, Hosted(uses_credentials=True), rules=AUTHENTICATED),
        await cut(storage, tasks, on_disconnect="cancel"),
    ]
    assert [record.rerun for record in noted] == [None, None, None]
    also = [
        await cut(storage, tasks, Hosted(uses_credentials=True)),
        await cut(storage, tasks, Hosted(), rules=AUTHENTICATED),
        await cut(storage, tasks, Hosted("from_checkpoint")),
    ]
    assert [record.rerun for record in also] == [Rerun("Echo", "default")] * 3


@pytest.mark.parametrize(
    ("agents", "rules"),
    [(Hosted("never"), None), (Hosted(uses_credentials=True), AUTHENTICATED)],
    ids=["never by now", "users are authenticated by now"],
)
async def test_one_that_may_not_run_by_now_is_left_interrupted_and_may_be_asked_again(storage, tasks, agents, rules):
    await cut(storage, tasks)
    process = EchoProcess(storage, tasks, agents=agents, rules=rules)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    end = await ended(turn)
    assert isinstance(end, Cancelled)
    assert extras_of(storage.history()[-1]) == {"status": "interrupted", "interrupted_by": "restart"}
    await ticks()
    agents.gate.set()
    again = process.ask("e1")
    assert again is not turn
    assert isinstance(await ended(again), Final)
    assert [run.restarted for run in agents.runs] == [True]
    assert [loads(row)["rank"] for row in storage.history()] == [0, 1]


async def test_a_stop_while_it_waits_is_its_users(storage, tasks):
    await cut(storage, tasks)
    process = EchoProcess(storage, tasks, agents=Hosted())
    process.begin_again(asyncio.Event().wait)
    turn = process.registry.find("e1", USER)
    await ticks()
    turn.cancel()
    assert [message.role for message in (await ended(turn)).messages] == ["user", "assistant"]
    assert extras_of(storage.history()[-1]) == {"status": "interrupted"}
    await ticks()
    assert process.ask("e1") is turn


async def test_a_stop_before_its_first_step_is_kept_too(storage, tasks):
    await cut(storage, tasks)
    process = EchoProcess(storage, tasks, agents=Hosted())
    process.begin_again()
    turn = process.registry.find("e1", USER)
    turn.cancel()
    assert isinstance(await ended(turn), Cancelled)
    assert extras_of(storage.history()[-1]) == {"status": "interrupted"}


async def test_a_drain_waits_for_those_that_run_and_leaves_the_others_interrupted(storage, tasks):
    await cut(storage, tasks)
    agents = Hosted()
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again()
    await agents.began()
    draining = asyncio.create_task(process.registry.drain(PATIENCE_S))
    await ticks()
    assert not draining.done()
    agents.gate.set()
    assert await draining == 0
    assert loads(storage.history()[-1])["parts"] == [text_part("Half")]

    other = MemoryStorage(SESSION)
    await cut(other, tasks)
    process = EchoProcess(other, tasks, agents=agents)
    process.begin_again(asyncio.Event().wait)
    await ticks()
    turn = process.registry.find("e1", USER)
    assert await process.registry.drain(PATIENCE_S) == 0
    assert (await ended(turn)).code is Code.DRAINING
    assert extras_of(other.history()[-1]) == {"status": "interrupted", "interrupted_by": "restart"}


async def test_a_deleted_session_stops_it(storage, tasks):
    await cut(storage, tasks)
    agents = Hosted()
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    await agents.began()
    await process.registry.forget(SESSION.id, USER)
    assert turn.ended
    await ticks()
    assert process.registry.find("e1", USER) is None


async def test_without_room_it_is_left_and_may_be_asked_again(storage, tasks):
    await cut(storage, tasks)
    storage.room = False
    process = EchoProcess(storage, tasks, agents=(agents := Hosted()))
    process.begin_again()
    turn = process.registry.find("e1", USER)
    end = await ended(turn)
    assert (end.code, end.refused) == (Code.STORAGE_FULL, True)
    assert extras_of(storage.history()[-1]) == {"status": "interrupted", "interrupted_by": "restart"}
    assert storage.counted == []
    await ticks()
    storage.room = True
    agents.gate.set()
    assert isinstance(await ended(process.ask("e1")), Final)


async def test_one_that_has_run_again_and_asks_a_person_goes_on_with_its_numbers_and_runs_again_above_them(
    storage, tasks
):
    await cut(storage, tasks, Hosted("from_checkpoint"))
    agents = Hosted("from_checkpoint")
    agents.asks = True
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again()
    asked = process.registry.find("e1", USER)
    assert isinstance(await ended(asked), Awaiting)
    waited = asked.events[-1].seq
    assert waited > RUN_SEQS
    assert extras_of(storage.history()[-1])["awaiting"]["seq"] == waited
    storage.left_over.append(await continued(storage, tasks, "from_checkpoint"))
    process = EchoProcess(storage, tasks, agents=(agents := Hosted("from_checkpoint")))
    process.begin_again()
    turn = process.registry.find("e1", USER)
    agents.gate.set()
    assert isinstance(await ended(turn), Final)
    assert (turn.events[0].seq, type(turn.events[0].payload)) == (2 * RUN_SEQS + 1, Restarted)


async def test_it_waits_for_a_database_that_goes_away(storage, tasks):
    await cut(storage, tasks)
    agents = Hosted()
    storage.away = True
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    async with asyncio.timeout(PATIENCE_S):
        while storage.reads["get"] < 2:  # noqa: ASYNC110 - the storage tells nobody
            await asyncio.sleep(0.01)
    storage.away = False
    agents.gate.set()
    assert isinstance(await ended(turn), Final)
    assert len(storage.counted) == 1


async def test_one_that_had_ended_is_told_and_not_run(storage, tasks):
    record = await cut(storage, tasks)
    before = EchoProcess(storage, tasks, agents=(agents := Hosted()))
    agents.gate.set()
    final = await ended(before.ask("e1"))
    process = EchoProcess(storage, tasks, agents=(agents := Hosted()))
    process.begin_again()
    told = process.registry.find("e1", USER)
    assert (await ended(told)).messages == final.messages
    assert (told.events[0].seq, type(told.events[0].payload)) == (1, Accepted)
    await ticks()
    assert (agents.runs, [dropped.user_message for dropped in storage.dropped]) == ([], [record.user_message])


async def test_one_that_another_exchange_has_followed_is_left(storage, tasks):
    await cut(storage, tasks)
    before = EchoProcess(storage, tasks, agents=(agents := Hosted()))
    agents.gate.set()
    await ended(before.ask("e2"))
    process = EchoProcess(storage, tasks, agents=(agents := Hosted()))
    process.begin_again()
    assert isinstance(await ended(process.registry.find("e1", USER)), Cancelled)
    assert agents.runs == []


async def test_live_asks_go_first(tasks):
    storage = MemoryStorage(SESSION, other := SESSION.__class__("s2", USER, "Echo", "t", SESSION.updated_at))
    await cut(storage, tasks)
    agents = Hosted()
    limits = TurnLimits(max_turns=1, queue_length=5, queue_deadline_s=PATIENCE_S)
    process = EchoProcess(storage, tasks, agents=agents, limits=limits)
    await process.admission.enter("default")
    process.begin_again()
    turn = process.registry.find("e1", USER)
    await ticks(20)
    live = process.registry.submit(Ask(other.id, "Echo", "hi", "e9", USER, received_at=0.0))
    await ticks(20)
    assert len(turn.events) == 0  # it has no place in the line to be told of
    agents.gate.set()
    process.admission.leave("default")
    assert isinstance(await ended(live), Final)
    assert isinstance(await ended(turn), Final)
    assert [run.exchange_id for run in agents.runs] == ["e9", "e1"]
    assert process.admission.running == 0


async def waiting_exchange(storage: MemoryStorage, tasks: Any) -> None:
    """An exchange that waits for a person, in history."""
    agents = Hosted()
    agents.asks = True
    assert isinstance(await ended(EchoProcess(storage, tasks, agents=agents).ask("e1", "note it")), Awaiting)


async def continued(storage: MemoryStorage, tasks: Any, restart: Restart) -> AskRecord:
    """A person answers it, and the process dies in the run that follows; what is noted of that."""
    agents = Hosted(restart)
    process = EchoProcess(storage, tasks, agents=agents)
    process.ask("e1", "", human=HumanAnswer({"choice_id": "yes"}))
    await agents.began()
    return AskRecord.decode(storage.asks[-1].encode())


async def test_what_a_person_had_let_continue_never_runs_again_from_its_question(storage, tasks):
    await waiting_exchange(storage, tasks)
    record = await continued(storage, tasks, "from_question")
    assert record.earlier is not None
    assert record.rerun is None


async def test_what_a_person_had_let_continue_goes_on_from_its_checkpoint(storage, tasks):
    await waiting_exchange(storage, tasks)
    record = await continued(storage, tasks, "from_checkpoint")
    storage.left_over.append(record)
    agents = Hosted("from_checkpoint")
    process = EchoProcess(storage, tasks, agents=agents)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    agents.gate.set()
    final = await ended(turn)
    assert isinstance(final, Final)
    (run,) = agents.runs
    assert run.restarted
    assert run.resume is not None
    assert (run.resume.saved, run.resume.answer) == (SavedRun(()), {"choice_id": "yes"})
    assert [loads(row)["rank"] for row in storage.history()] == list(range(len(storage.history())))
    assert loads(storage.history()[-1])["parts"] == [text_part("Half")]
    # Who had followed the run before hears all of the exchange; its numbers go on from where it waited.
    told = [event.payload.message for event in turn.events if isinstance(event.payload, Whole)]
    assert tuple(told) == final.messages[: len(told)]
    assert [message.role for message in told[:1]] == ["user"]
    assert [type(event.payload) for event in turn.events][:2] == [Restarted, Accepted]
    assert turn.events[0].seq == RUN_SEQS + 1


async def test_an_exchange_that_ran_again_after_a_person_s_answer_and_had_ended_is_told(storage, tasks):
    await waiting_exchange(storage, tasks)
    record = await continued(storage, tasks, "from_checkpoint")
    before = EchoProcess(storage, tasks, agents=(agents := Hosted("from_checkpoint")))
    agents.gate.set()
    final = await ended(before.ask("e1", "", human=HumanAnswer({"choice_id": "yes"})))
    assert isinstance(final, Final)
    storage.left_over.append(record)
    process = EchoProcess(storage, tasks, agents=(agents := Hosted("from_checkpoint")))
    process.begin_again()
    assert (await ended(process.registry.find("e1", USER))).messages == final.messages
    assert agents.runs == []


async def test_a_model_that_is_gone_is_no_reason_not_to_answer(storage, tasks):
    record = AskRecord(SESSION, question_of("hello in parts"), rerun=Rerun("Echo", "gone"))
    storage.left_over.append(record)
    process = EchoProcess(storage, tasks, restart="from_question")
    process.begin_again()
    assert isinstance(await ended(process.registry.find("e1", USER)), Final)


async def test_one_of_an_agent_that_is_gone_is_left(storage, tasks):
    storage.left_over.append(AskRecord(SESSION, question_of("hello"), rerun=Rerun("Gone")))
    process = EchoProcess(storage, tasks)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    end = await ended(turn)
    assert [type(event.payload) for event in turn.events] == [Accepted, Whole, Cancelled]
    assert turn.events[0].seq == 1  # nothing runs again
    assert not isinstance(end, Failed)


async def test_one_whose_agent_cannot_be_built_is_left_too(storage, tasks):
    class Unbuildable(Hosted):
        def get(self, _agent_id: str) -> Hosted:
            raise ZeroDivisionError("in the agent's build")

    await cut(storage, tasks)
    process = EchoProcess(storage, tasks, agents=Unbuildable())
    process.begin_again()
    end = await ended(process.registry.find("e1", USER))
    assert (end.code, end.session) == (Code.INTERNAL, None)
    assert extras_of(storage.history()[-1]) == {"status": "interrupted", "interrupted_by": "restart"}
    assert process.registry.running == 0


def question_of(text: str) -> ChatMessage:
    return ChatMessage.build(
        session_id=SESSION.id, exchange_id="e1", rank=0, role="user", channel="final", parts=[text_part(text)]
    )
