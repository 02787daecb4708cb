"""Turns that begin behind an earlier message than the newest: what agents are told, and what becomes of the rest."""

import asyncio
from typing import Any

import pytest

from agentic_backend.agent import AgentKit
from agentic_backend.agent.hosted import Hosting
from agentic_backend.session.models import AskRecord, DoorRerun, Rerun
from agentic_backend.session.restarts import ask_of
from agentic_backend.session.stream import Awaiting, Cancelled, Failed, Final, HumanAnswer, Turn
from agentic_backend.session.turn import TurnRules
from agentic_backend.settings import AgentSettings
from agentic_backend.testing import USER, FakeModel, MemoryState, MemoryStorage, TurnProcess, session_of
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended
from tests.agentic_backend.session.hosted import Hosted
from tests.agentic_backend.session.test_restarts import cut


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(session_of("A"))


def chatting(storage: MemoryStorage, tasks: TaskRegistry, model: FakeModel) -> TurnProcess:
    return TurnProcess(storage, tasks, [AgentSettings(id="A", name="A")], AgentKit(model, "fake"))


def told(model: FakeModel) -> list[str]:
    """What the model was told last, without instructions."""
    return [message.text for message in model.asked[-1].messages if message.type != "system"]


def live(storage: MemoryStorage, session_id: str = "s1") -> list[tuple[int, str]]:
    """Rank and exchange of each message on the live line."""
    return [(loads(row)["rank"], loads(row)["exchange_id"]) for row in storage.line(session_id)]


def refusal(end: Any) -> tuple[Code, str | None]:
    assert isinstance(end, Failed)
    assert end.refused
    return end.code, end.field


async def final(turn: Turn) -> Final:
    end = await ended(turn)
    assert isinstance(end, Final), end
    return end


async def test_an_edit_is_told_what_stood_before_the_question(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    model = FakeModel("one", "two", "three", "four")
    turns = chatting(storage, tasks, model)
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    end = await final(turns.ask("e3", "second, edited", after_rank=1))
    assert told(model) == ["first", "one", "second, edited"]
    assert [message.rank for message in end.messages] == [4, 5]
    assert end.messages[0].metadata == {"extras": {"after_rank": 1}}
    assert live(storage) == [(0, "e1"), (1, "e1"), (4, "e3"), (5, "e3")]
    assert len(storage.history()) == 6, "nothing is lost"
    await final(turns.ask("e4", "fourth"))
    assert told(model) == ["first", "one", "second, edited", "three", "fourth"]


async def test_a_regenerated_answer_is_one_to_the_same_question(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    model = FakeModel("one", "two", "three", "four", "five")
    turns = chatting(storage, tasks, model)
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    end = await final(turns.ask("e3", "", regenerate="e2"))
    assert told(model) == ["first", "one", "second"]
    assert end.messages[0].text == "second"
    assert end.messages[0].metadata == {"extras": {"after_rank": 1, "regenerates": "e2"}}
    # What stood before a regenerated one is not the message before it in storage.
    await final(turns.ask("e4", "", regenerate="e3"))
    assert told(model) == ["first", "one", "second"]
    assert live(storage) == [(0, "e1"), (1, "e1"), (6, "e4"), (7, "e4")]
    end = await final(turns.ask("e5", "", regenerate="e1"))
    assert told(model) == ["first"]
    assert end.messages[0].metadata == {"extras": {"after_rank": -1, "regenerates": "e1"}}
    assert live(storage) == [(8, "e5"), (9, "e5")]


async def test_a_fork_of_a_fork(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    model = FakeModel(*"abcdefg")
    turns = chatting(storage, tasks, model)
    for number, after_rank in enumerate((None, None, 1, None, 5, 1, -1)):
        await final(turns.ask(f"e{number}", f"q{number}", after_rank=after_rank))
    asked = [[one.text for one in call.messages if one.type != "system"] for call in model.asked]
    assert asked == [
        ["q0"],
        ["q0", "a", "q1"],
        ["q0", "a", "q2"],
        ["q0", "a", "q2", "c", "q3"],
        ["q0", "a", "q2", "c", "q4"],
        ["q0", "a", "q5"],
        ["q6"],
    ]
    assert live(storage) == [(12, "e6"), (13, "e6")]


async def test_behind_the_newest_message_it_is_an_ask_as_any_other(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    model = FakeModel("one", "two")
    turns = chatting(storage, tasks, model)
    await final(turns.ask("e1", "first", after_rank=-1))
    await final(turns.ask("e2", "second", after_rank=1))
    assert told(model) == ["first", "one", "second"]
    assert storage.reads["standing"] == 0
    assert len(storage.line()) == 4


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        ({"after_rank": 0}, "after_rank"),
        ({"after_rank": 2}, "after_rank"),
        ({"after_rank": 3}, "after_rank"),
        ({"after_rank": 6}, "after_rank"),
        ({"after_rank": 2**31 - 2}, "after_rank"),
        ({"regenerate": "e2"}, "regenerate"),
        ({"regenerate": "unknown"}, "regenerate"),
        ({"regenerate": "e9"}, "regenerate"),
    ],
)
async def test_only_the_live_line_can_be_forked_behind_an_end(
    storage: MemoryStorage, tasks: TaskRegistry, ask: dict[str, Any], field: str
) -> None:
    turns = chatting(storage, tasks, FakeModel("one", "two", "three", "four"))
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    await final(turns.ask("e3", "third", after_rank=1))
    before = storage.history()
    for process in (turns, chatting(storage, tasks, FakeModel("four"))):
        message = "" if "regenerate" in ask else "fourth"
        assert refusal(await ended(process.ask("e9", message, **ask))) == (Code.BAD_REQUEST, field)
    assert storage.history() == before
    await final(turns.ask("e9", "fourth"))
    assert len(storage.line()) == 6


async def test_where_any_branch_will_do_its_line_is_live_again(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    model = FakeModel(*"abcdef")
    turns = chatting(storage, tasks, model)
    for number, after_rank in enumerate((None, None, 1)):
        await final(turns.ask(f"e{number}", f"q{number}", after_rank=after_rank))
    await final(turns.ask("e3", "q3", after_rank=3, any_branch=True))
    assert told(model) == ["q0", "a", "q1", "b", "q3"]
    assert [rank for rank, _ in live(storage)] == [0, 1, 2, 3, 6, 7]
    await final(turns.ask("e4", "", regenerate="e2", any_branch=True))
    assert told(model) == ["q0", "a", "q2"]
    assert [rank for rank, _ in live(storage)] == [0, 1, 8, 9]
    refused = await ended(turns.ask("e5", "q5", after_rank=2, any_branch=True))
    assert refusal(refused) == (Code.BAD_REQUEST, "after_rank")


@pytest.mark.parametrize("ask", [{"after_rank": 0}, {"regenerate": "e1"}])
async def test_where_nothing_is_kept_there_is_nothing_to_fork(
    storage: MemoryStorage, tasks: TaskRegistry, ask: dict[str, Any]
) -> None:
    turns = chatting(storage, tasks, FakeModel("one"))
    assert refusal(await ended(turns.ask("e2", "", kept=False, **ask)))[0] is Code.BAD_REQUEST


@pytest.mark.parametrize(("question", "kind"), [("fail", Failed), ("fail late", Failed), ("wait", Cancelled)])
async def test_however_it_ends_it_supersedes_what_it_was_to_replace(
    tasks: TaskRegistry, question: str, kind: type
) -> None:
    storage = MemoryStorage(SESSION)
    turns = EchoProcess(storage, tasks)
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    line = storage.line()
    turn = turns.ask("e3", question, after_rank=2)
    if question == "wait":
        async with asyncio.timeout(30):
            while not turn.has_published or len(turn.events) < 4:  # noqa: ASYNC110 - what it says has no event of ours
                await asyncio.sleep(0)
        assert storage.line() == line, "while it runs, history has the line as it was"
        turn.cancel()
    assert isinstance(await ended(turn), kind)
    assert [id_ for _, id_ in live(storage)][:3] == ["e1"] * 3
    assert {id_ for _, id_ in live(storage)} == {"e1", "e3"}


def asking(storage: MemoryStorage, tasks: TaskRegistry, state: MemoryState) -> TurnProcess:
    """A process of a graph that keeps a state, says which questions are in it, and asks a person at `ask`."""
    keeps = AgentSettings(id="A", name="A", graph="tests.agentic_backend.session.keeping:graph")
    rules = TurnRules(30.0, restore_max_exchanges=1)
    return TurnProcess(storage, tasks, [keeps], AgentKit(FakeModel(), "none"), hosting=Hosting(state), rules=rules)


async def text_of(turn: Turn) -> str:
    return (await final(turn)).messages[-1].text


async def test_a_graph_goes_on_from_the_state_that_it_had_there(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    state = MemoryState()
    turns = asking(storage, tasks, state)
    for question, knows in (("one", "nothing"), ("two", "one"), ("three", "one, two")):
        assert await text_of(turns.ask(question, question)) == f"Known: {knows}."
    assert await text_of(turns.ask("zwei", "zwei", after_rank=1)) == "Known: one."
    turns = asking(storage, tasks, state)
    assert await text_of(turns.ask("drei", "drei")) == "Known: one, zwei."
    assert await text_of(turns.ask("again", "", regenerate="zwei")) == "Known: one."
    assert await text_of(turns.ask("four", "four")) == "Known: one, zwei."
    assert await text_of(turns.ask("eins", "eins", after_rank=-1)) == "Known: nothing."
    assert await text_of(turns.ask("five", "five")) == "Known: eins."
    assert storage.reads["newest_checkpoint"] == 0


async def test_what_waits_for_a_person_can_be_forked_away_from(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    state = MemoryState()
    turns = asking(storage, tasks, state)
    await final(turns.ask("e1", "first"))
    assert isinstance(await ended(turns.ask("e2", "ask")), Awaiting)
    assert await text_of(turns.ask("e3", "instead", after_rank=1)) == "Known: first."
    assert live(storage) == [(0, "e1"), (1, "e1"), (4, "e3"), (5, "e3")]
    for process in (turns, asking(storage, tasks, state)):
        end = await ended(process.ask("e2", "", human=HumanAnswer({"text": "yes"})))
        assert refusal(end)[0] is Code.NOT_AWAITING


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_fork_that_waited_for_a_person_goes_on_as_the_same_fork(
    storage: MemoryStorage, tasks: TaskRegistry, restarted: bool
) -> None:
    state = MemoryState()
    turns = asking(storage, tasks, state)
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    assert isinstance(await ended(turns.ask("e3", "ask", after_rank=1)), Awaiting)
    assert live(storage) == [(0, "e1"), (1, "e1"), (4, "e3"), (5, "e3")]
    if restarted:
        turns = asking(storage, tasks, state)
    turn = turns.ask("e3", "", human=HumanAnswer({"text": "yes"}))
    assert await text_of(turn) == "Known: first."
    assert [id_ for _, id_ in live(storage)] == ["e1"] * 2 + ["e3"] * 3
    assert turn.ask.after_rank == 1
    assert turns.ask("e3", "ask", after_rank=1) is turn
    assert refusal(await ended(turns.ask("e3", "ask")))[0] is Code.CONFLICT
    assert await text_of(turns.ask("e4", "next")) == "Known: first, ask."


ASKED = [
    ({"message": "second", "after_rank": 1}, True),
    ({"message": "second"}, False),
    ({"message": "second", "after_rank": -1}, False),
    ({"message": "other", "after_rank": 1}, False),
    ({"message": "", "regenerate": "e1"}, False),
]


async def expect_repeated(turns: Any, end: Final, ask: dict[str, Any], *, same: bool) -> None:
    """Ask again under the id of the exchange that ended so: it is told again, or refused where the ask is another."""
    again = await ended(turns.ask("e3", **ask))
    if same:
        assert isinstance(again, Final)
        assert [message.json for message in again.messages] == [message.json for message in end.messages]
    else:
        assert refusal(again)[0] is Code.CONFLICT


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("ask", "same"), ASKED)
async def test_the_same_ask_again_is_the_same_turn_only_in_the_same_place(
    storage: MemoryStorage, tasks: TaskRegistry, ask: dict[str, Any], same: bool, restarted: bool
) -> None:
    turns = chatting(storage, tasks, FakeModel("one", "two", "three"))
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "between"))
    end = await final(turns.ask("e3", "second", after_rank=1))
    await expect_repeated(chatting(storage, tasks, FakeModel()) if restarted else turns, end, ask, same=same)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("ask", "same"),
    [
        ({"message": "", "regenerate": "e2"}, True),
        ({"message": "", "regenerate": "e1"}, False),
        ({"message": "second", "after_rank": 1}, False),
    ],
)
async def test_the_same_regenerating_ask_again_is_the_same_turn(
    storage: MemoryStorage, tasks: TaskRegistry, ask: dict[str, Any], same: bool, restarted: bool
) -> None:
    turns = chatting(storage, tasks, FakeModel("one", "two", "three"))
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    end = await final(turns.ask("e3", "", regenerate="e2"))
    await expect_repeated(chatting(storage, tasks, FakeModel()) if restarted else turns, end, ask, same=same)


@pytest.mark.parametrize("asked", [{"message": "why?", "after_rank": 1}, {"message": "", "regenerate": "e0"}])
async def test_a_cut_off_fork_runs_again_as_the_same_fork(tasks: TaskRegistry, asked: dict[str, Any]) -> None:
    storage = MemoryStorage(SESSION)
    before = EchoProcess(storage, tasks)
    for exchange_id in ("e", "e0"):
        await final(before.ask(exchange_id, exchange_id))
    # The dead process had the same conversation.
    died_with = MemoryStorage(*storage.sessions.values())
    died_with.rows = {key: dict(rows) for key, rows in storage.rows.items()}
    agents = Hosted()
    place = {"after_rank": 2} if "after_rank" in asked else {"regenerate": "e0"}
    EchoProcess(died_with, tasks, agents=agents).ask("e1", asked["message"], **place)
    await agents.began()
    record = AskRecord.decode(died_with.asks[-1].encode())
    assert (ask_of(record).after_rank, ask_of(record).regenerate) == (2, place.get("regenerate"))
    storage.left_over.append(record)
    line = storage.line()
    again = Hosted()
    process = EchoProcess(storage, tasks, agents=again)
    process.begin_again()
    turn = process.registry.find("e1", USER)
    assert turn is not None
    await again.began()
    assert again.runs[0].message == (asked["message"] or "e0")
    assert [item.text for item in again.runs[0].history] == ["e", "E"]
    assert storage.line() == line
    assert process.ask("e1", asked["message"], **place) is turn
    again.gate.set()
    await final(turn)
    assert {id_ for _, id_ in live(storage)} == {"e", "e1"}


async def test_a_fork_that_is_left_interrupted_is_asked_again_in_its_place(tasks: TaskRegistry) -> None:
    storage = MemoryStorage(SESSION)
    turns = EchoProcess(storage, tasks)
    await final(turns.ask("e1", "first"))
    await final(turns.ask("e2", "second"))
    session = storage.sessions["s1", USER]
    cut_off = await cut(MemoryStorage(session), tasks, message="third", after_rank=-1)
    await storage.append(cut_off.interrupted())
    assert {id_ for _, id_ in live(storage)} == {"e1"}, "of e1: that of the fork"
    assert [rank for rank, _ in live(storage)] == [6, 7]


def test_records_of_older_programs_begin_behind_the_newest_message() -> None:
    fields = {"agent_id": "A", "restarts": 0}
    assert DoorRerun.decode(fields) == Rerun("A")
