"""Asks that bring their own conversation and tools, and turns of which nothing is kept."""

from typing import Any

import pytest

from agentic_backend.agent import AgentKit, AgentUnusable
from agentic_backend.agent.hosted import Hosting
from agentic_backend.errors import TurnDeadline
from agentic_backend.events import arguments_of
from agentic_backend.llm.prompt import EarlierCall, HistoryItem
from agentic_backend.session.models import AskRecord, DoorRerun, Rerun
from agentic_backend.session.restarts import ask_of
from agentic_backend.session.stream import Awaiting, Cancelled, Final, HumanAnswer
from agentic_backend.settings import AgentSettings
from agentic_backend.testing import FakeModel, MemoryState, MemoryStorage, TurnProcess, session_of, wants
from backend_kit.aio import TaskRegistry
from backend_kit.wire import loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended
from tests.agentic_backend.testing import chatty

GIVEN = (
    HistoryItem("system", "Rhyme."),
    HistoryItem("user", "I am Ada."),
    HistoryItem("assistant", "Hello Ada."),
)
WEATHER = {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
CALLED = HistoryItem("assistant", "", calls=(EarlierCall("c1", "weather", "{}"),))
RESULT = HistoryItem("tool", "Rain.", call_id="c1")


def process(
    storage: MemoryStorage, tasks: TaskRegistry, model: FakeModel, hosting: Hosting | None = None, **agent: Any
) -> TurnProcess:
    settings = AgentSettings(id="A", name="A", **agent)
    return TurnProcess(storage, tasks, [settings], AgentKit(model, "fake"), hosting=hosting)


def asked(model: FakeModel, call: int = -1) -> list[tuple[str, str]]:
    return [(message.type, message.text) for message in model.asked[call].messages]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(session_of("A"))


async def test_the_agent_sees_what_the_client_gave_and_the_session_records_the_turn(
    storage: MemoryStorage, tasks: TaskRegistry
) -> None:
    model = FakeModel("First.", "Ada.", "Third.")
    turns = process(storage, tasks, model)
    await ended(turns.ask("e1", "Stored?"))
    await ended(turns.ask("e2", "Who am I?", given=GIVEN))
    system, *rest = asked(model)
    assert system[1].endswith("\n\nRhyme.")
    assert rest == [("human", "I am Ada."), ("ai", "Hello Ada."), ("human", "Who am I?")]
    # The next one without is told what the session has: both turns.
    await ended(turns.ask("e3", "And now?"))
    assert [text for _, text in asked(model)[1:]] == ["Stored?", "First.", "Who am I?", "Ada.", "And now?"]
    assert [loads(row)["exchange_id"] for row in storage.history()] == ["e1"] * 2 + ["e2"] * 2 + ["e3"] * 2


async def test_an_empty_conversation_is_one_too(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    model = FakeModel("First.", "Second.")
    turns = process(storage, tasks, model)
    await ended(turns.ask("e1", "Stored?"))
    await ended(turns.ask("e2", "New?", given=()))
    assert asked(model)[1:] == [("human", "New?")]


async def test_calls_of_the_clients_tools_end_the_answer_and_are_parts_of_it(
    storage: MemoryStorage, tasks: TaskRegistry
) -> None:
    model = FakeModel(wants(("weather", {"city": "Oslo"}), text="Let me see."), "It rains.")
    turns = process(storage, tasks, model, client_tools=True)
    final = await ended(turns.ask("e1", "Weather?", client_tools=(WEATHER,)))
    assert isinstance(final, Final)
    assert model.asked[0].tools == ("weather",)
    answer = loads(storage.history()[-1])
    text, call = answer["parts"]
    assert (answer["metadata"]["finish_reason"], text["text"]) == ("tool_calls", "Let me see.")
    assert (call["type"], call["name"], call["args"]) == ("tool_call", "weather", {"city": "Oslo"})
    assert loads(arguments_of(call)) == {"city": "Oslo"}
    # The client's next request has the result, and no new question.
    given = (HistoryItem("user", "Weather?"), CALLED, RESULT)
    await ended(turns.ask("e2", "", given=given, client_tools=(WEATHER,)))
    assert asked(model)[1:] == [("human", "Weather?"), ("ai", ""), ("tool", "Rain.")]
    question, answer = map(loads, storage.history()[-2:])
    result = {"type": "tool_result", "call_id": "c1", "ok": None, "latency_ms": None, "content": "Rain."}
    assert (question["role"], question["parts"], answer["parts"][0]["text"]) == ("user", [result], "It rains.")
    # Sent again, it is told.
    assert turns.ask("e2", "", given=given) is turns.registry.find("e2", "ann")


async def test_only_an_agent_that_takes_them_is_offered_tools_of_clients(
    storage: MemoryStorage, tasks: TaskRegistry
) -> None:
    model = FakeModel("No idea.")
    await ended(process(storage, tasks, model).ask("e1", "Weather?", client_tools=(WEATHER,)))
    assert model.asked[0].tools == ()


@pytest.mark.parametrize(
    "source", [{"class_path": "Rico"}, {"class_path": "Sammy"}, {"graph": "tests.agentic_backend.testing.chatty:graph"}]
)
async def test_an_agent_that_cannot_offer_them_is_refused(
    storage: MemoryStorage, tasks: TaskRegistry, source: dict[str, str]
) -> None:
    with pytest.raises(AgentUnusable, match="client_tools"):
        process(storage, tasks, FakeModel(), client_tools=True, **source)


async def test_a_turn_may_have_a_deadline_of_its_own(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    storage = MemoryStorage(SESSION)
    failed = await ended(EchoProcess(storage, tasks).ask("e1", "wait", turn_s=0.01))
    assert failed.code is TurnDeadline.code


async def test_a_graph_begins_from_what_was_given_on_a_state_of_its_own(
    storage: MemoryStorage, tasks: TaskRegistry
) -> None:
    state = MemoryState()
    graph = "tests.agentic_backend.testing.chatty:graph"
    turns = process(storage, tasks, FakeModel(), Hosting(state), graph=graph)
    await ended(turns.ask("e1", "2 and 3"))
    final = await ended(turns.ask("e2", "What did I ask?", given=GIVEN))
    assert isinstance(final, Final)
    model = chatty.models[-1]
    assert asked(model)[1:] == [
        ("system", "Rhyme."),
        *[("human", "I am Ada."), ("ai", "Hello Ada.")],
        ("human", "What did I ask?"),
    ]
    # Its state is kept under the answer, and the next ask without a conversation goes on from there.
    threads = {entry.config["configurable"]["thread_id"] for entry in state.kept.list(None)}
    assert len(threads) == 2
    checkpoint = loads(storage.history()[-1])["metadata"]["extras"]["checkpoint"]
    assert any(thread in checkpoint for thread in threads)


async def test_a_graph_goes_on_from_the_result_of_a_clients_tool(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    graph = "tests.agentic_backend.testing.chatty:graph"
    turns = process(storage, tasks, FakeModel(), Hosting(MemoryState()), graph=graph)
    final = await ended(turns.ask("e1", "", given=(HistoryItem("user", "Weather?"), CALLED, RESULT)))
    assert isinstance(final, Final)
    assert asked(chatty.models[-1], 0)[1:] == [("human", "Weather?"), ("ai", ""), ("tool", "Rain.")]
    # What was given is no part of what it says.
    assert final.messages[-1].text == "It is 5."
    assert [message.text for message in final.messages if message.channel == "thought"] == ["Let me see."]


async def test_nothing_is_left_of_an_unkept_turn(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    state = MemoryState()
    graph = "tests.agentic_backend.testing.chatty:graph"
    turns = process(storage, tasks, FakeModel(), Hosting(state), graph=graph)
    final = await ended(turns.ask("e1", "2 and 3", session_id="none", kept=False, given=GIVEN))
    assert isinstance(final, Final)
    assert (final.durable, final.messages[-1].text) == ("none", "It is 5.")
    assert (storage.history(), storage.asks, list(storage.reads)) == ([], [], [])
    assert (list(state.kept.list(None)), state.remembered.search(())) == ([], [])
    assert turns.unkept.find("e1", "ann") is None
    # The graph is shared: the next turn that is kept keeps its state.
    assert isinstance(await ended(turns.ask("e2", "And now?")), Final)
    assert list(state.kept.list(None))


async def test_unkept_turns_count_among_those_of_their_user(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    turns = EchoProcess(MemoryStorage(SESSION), tasks)
    turn = turns.ask("e1", "wait", kept=False)
    assert (turns.unkept.running, turns.registry.running) == (1, 0)
    turn.cancel()
    assert isinstance(await ended(turn), Cancelled)


async def test_an_unkept_turn_asks_a_person_and_keeps_no_run(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    state = MemoryState()
    graph = "tests.agentic_backend.session.wondering:graph"
    turns = process(storage, tasks, FakeModel(), Hosting(state), graph=graph)
    asks = await ended(turns.ask("e1", kept=False))
    assert isinstance(asks, Awaiting)
    assert "Sure?" in asks.payload["question"]
    assert list(state.kept.list(None)) == []
    # One that is kept still waits for the answer.
    assert isinstance(await ended(turns.ask("e2")), Awaiting)
    told = await ended(turns.ask("e2", "", human=HumanAnswer({"text": "yes"})))
    assert told.messages[-1].text == "You said yes."


async def test_what_a_door_sent_is_there_when_the_turn_runs_again(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    turns = process(storage, tasks, FakeModel("Rain."))
    given = (*GIVEN, CALLED, RESULT)
    await ended(turns.ask("e1", "And?", given=given, client_tools=(WEATHER,), turn_s=3600.0))
    record = AskRecord.decode(storage.asks[0].encode())
    assert isinstance(record.rerun, DoorRerun)
    ask = ask_of(record)
    assert (ask.given, ask.client_tools, ask.turn_s) == (given, (WEATHER,), 3600.0)
    again = AskRecord.decode(record.begun_again().encode())
    assert (again.rerun, ask_of(again).given) == (record.begun_again().rerun, given)


async def test_an_ask_of_our_own_is_noted_as_before(storage: MemoryStorage, tasks: TaskRegistry) -> None:
    await ended(process(storage, tasks, FakeModel("Hi.")).ask("e1"))
    noted = loads(storage.asks[0].encode())["rerun"]
    assert set(noted) == {"agent_id", "model", "runtime_context", "language", "request_id", "human", "restarts"}
    assert type(AskRecord.decode(storage.asks[0].encode()).rerun) is Rerun


async def test_a_conversation_too_large_for_the_spool_is_not_run_again(
    storage: MemoryStorage, tasks: TaskRegistry
) -> None:
    turns = process(storage, tasks, FakeModel("Hi."))
    await ended(turns.ask("e1", given=(HistoryItem("user", "x" * 70_000),)))
    assert storage.asks[0].rerun is None
