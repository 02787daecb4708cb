"""From which state a graph that keeps one goes on, where the last exchanges do not show it, and what that costs."""

from collections.abc import Callable

import pytest

from agentic_backend.agent import AgentKit, AgentRun, Catalog, MovesOn
from agentic_backend.agent.hosted import Hosting
from agentic_backend.session.stream import Awaiting, Failed, Final, HumanAnswer
from agentic_backend.session.turn import TurnRules
from agentic_backend.settings import AgentSettings, Restart
from agentic_backend.testing import USER, FakeModel, MemoryState, MemoryStorage, TurnProcess, session_of
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code
from tests.agentic_backend.session.gated_turns import ended

HERE = "tests.agentic_backend.session"
AGENTS = [
    AgentSettings(id="Keeps", name="Keeps", graph=f"{HERE}.keeping:graph"),
    AgentSettings(id="Keeps too", name="Keeps too", graph=f"{HERE}.keeping:graph"),
    AgentSettings(id="Echo", name="Echo", class_path=f"{HERE}.echo"),
]
Start = Callable[[], TurnProcess]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(session_of("Keeps"))


@pytest.fixture
def start(storage: MemoryStorage, tasks: TaskRegistry) -> Start:
    """Start a process over the storage whose agents see one exchange."""
    hosting, rules = Hosting(MemoryState()), TurnRules(30.0, restore_max_exchanges=1)
    return lambda: TurnProcess(storage, tasks, AGENTS, AgentKit(FakeModel(), "none"), hosting=hosting, rules=rules)


async def said(process: TurnProcess, question: str, agent_id: str = "Keeps") -> str:
    """The answer to a question, in an exchange of the same name."""
    final = await ended(process.ask(question, question, agent_id))
    assert isinstance(final, Final)
    return final.messages[-1].text


async def test_a_state_behind_the_last_exchanges_is_looked_up_and_no_other(
    storage: MemoryStorage, start: Start
) -> None:
    process = start()
    assert await said(process, "one") == "Known: nothing."
    assert await said(process, "two") == "Known: one."
    assert storage.reads["newest_checkpoint"] == 0, "nothing was asked before, or the last exchange names it"
    for number in range(3):
        await said(process, f"echo {number}", "Echo")
    assert storage.reads["newest_checkpoint"] == 0, "an agent of ours keeps none"
    assert await said(process, "three") == "Known: one, two, echo 2."
    assert storage.reads["newest_checkpoint"] == 1
    assert await said(process, "first", "Keeps too") == "Known: three."
    process = start()
    assert await said(process, "four") == "Known: one, two, echo 2, three, first."
    assert await said(process, "second", "Keeps too") == "Known: three, first, four."


async def test_a_state_that_cannot_be_looked_up_refuses_the_turn(storage: MemoryStorage, start: Start) -> None:
    process = start()
    await said(process, "one")
    await said(process, "echo", "Echo")
    storage.away = True
    refused = await ended(process.ask("two", "two", "Keeps"))
    assert isinstance(refused, Failed)
    assert (refused.code, refused.refused) == (Code.HISTORY_UNAVAILABLE, True)
    storage.away = False
    assert await said(process, "two") == "Known: one, echo."


async def test_an_answer_to_a_person_goes_on_from_its_question_alone(storage: MemoryStorage, start: Start) -> None:
    process = start()
    await said(process, "one")
    await said(process, "echo", "Echo")
    assert isinstance(await ended(process.ask("ask", "ask", "Keeps")), Awaiting)
    assert storage.reads["newest_checkpoint"] == 1
    process = start()
    final = await ended(process.ask("ask", "", "Keeps", human=HumanAnswer({"text": "yes"})))
    assert isinstance(final, Final)
    assert final.messages[-1].text == "Known: one, echo."
    assert storage.reads["newest_checkpoint"] == 1
    assert await said(process, "two") == "Known: one, echo, ask."


@pytest.mark.parametrize("restart", ["from_checkpoint", "from_question"])
async def test_only_a_graph_that_goes_on_from_its_steps_stops_behind_one(restart: Restart) -> None:
    """What would begin again from its question has the time of the drain to end."""
    entry = AgentSettings(id="Keeps", name="Keeps", graph=f"{HERE}.keeping:graph", restart=restart)
    agent = Catalog([entry], AgentKit(FakeModel(), "none"), hosting=Hosting(MemoryState())).get("Keeps")
    running = agent.run(AgentRun("s1", "e1", USER, "one", lambda _event: None, moves=lambda: True))
    if restart == "from_checkpoint":
        with pytest.raises(MovesOn):
            await running
    else:
        assert (await running).text == "Known: nothing."
