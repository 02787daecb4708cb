"""What clients of LangGraph's own API may ask of a graph: inputs, commands, states to begin from and to change."""

from collections.abc import Callable
from typing import Any

import pytest

from agentic_backend.agent import AgentKit, GraphInput, StateChange
from agentic_backend.agent.hosted import Hosting
from agentic_backend.agent.hosted.beginning import stronger
from agentic_backend.peers.events import decode_events, encode_events
from agentic_backend.session.models import AskRecord, GraphRerun, graph_state_of
from agentic_backend.session.restarts import ask_of
from agentic_backend.session.stream import (
    Awaiting,
    Failed,
    Final,
    GraphPart,
    HumanAnswer,
    SpokenBy,
    TextDelta,
    Turn,
    Whole,
)
from agentic_backend.settings import AgentSettings
from agentic_backend.testing import USER, FakeModel, MemoryState, MemoryStorage, TurnProcess, says, session_of
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code, loads
from tests.agentic_backend.agent.hosted import desk
from tests.agentic_backend.llm.scripted import scripted
from tests.agentic_backend.session.gated_turns import ended
from tests.support.tool_model import says as speaks
from tests.support.tool_model import wants as calls

HERE = "tests.agentic_backend.agent.hosted.desk"
BOTH = frozenset({"values", "updates"})


class World:
    """A process, what it keeps, and the model of its graphs."""

    def __init__(self, tasks: TaskRegistry, *answers: Any, graph: str = "graph", **agent: Any) -> None:
        self.tasks = tasks
        self.model = FakeModel(*(answers or [f"Answer {number}." for number in range(9)]))
        self.state = MemoryState()
        self.storage = MemoryStorage(session_of("Desk"))
        settings = AgentSettings(id="Desk", name="Desk", graph=f"{HERE}:{graph}", **agent)
        self.start = lambda: TurnProcess(
            self.storage, tasks, [settings], AgentKit(self.model, "fake"), hosting=Hosting(self.state)
        )
        self.process = self.start()

    @property
    def agent(self) -> Any:
        return self.process.registry._runner._catalog.get("Desk")  # type: ignore[attr-defined]

    async def ask(self, exchange_id: str, message: str = "", human: Any = None, **given: Any) -> Any:
        """The end of a turn."""
        answer = None if human is None else HumanAnswer(human)
        return await ended(self.turn(exchange_id, message, human=answer, **given))

    def turn(self, exchange_id: str, message: str = "", human: HumanAnswer | None = None, **given: Any) -> Turn:
        return self.process.ask(exchange_id, message, human=human, graph=GraphInput(**given))

    def asked(self, call: int = -1) -> list[tuple[str, Any, str | None]]:
        return [(one.type, one.content, one.id) for one in self.model.asked[call].messages]

    def named(self, end: Any) -> str:
        """The state that an end names."""
        if isinstance(end, Awaiting):
            return str(end.payload["checkpoint_id"]).partition(":")[0]
        assert isinstance(end, Final), end
        return graph_state_of(end.messages[-1], "Desk")

    async def values(self, end: Any) -> dict[str, Any]:
        return dict((await self.snapshot(end))["values"])

    async def snapshot(self, end: Any, **how: Any) -> dict[str, Any]:
        found = await self.agent.state("s1", USER, self.named(end), **how)
        assert found is not None
        return dict(found)


@pytest.fixture
def world(tasks: TaskRegistry) -> Callable[..., World]:
    return lambda *answers, **how: World(tasks, *answers, **how)


def human(text: Any, message_id: str | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text} | ({"id": message_id} if message_id else {})


def said(turn: Turn, kind: type) -> list[Any]:
    return [event.payload for event in turn.events if isinstance(event.payload, kind)]


@pytest.mark.parametrize("graph", ["graph", "per_run"])
async def test_an_input_fills_the_channels_and_its_messages_keep_ids_roles_and_blocks(
    world: Callable[..., World], graph: str
) -> None:
    one = world(graph=graph, context={"place": "here"})
    blocks = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    messages = [
        human("Before", "h1"),
        {"type": "ai", "content": "", "id": "a1", "tool_calls": [{"name": "find", "args": {}, "id": "c1"}]},
        {"type": "tool", "content": "Found", "tool_call_id": "c1", "id": "t1"},
        human(blocks, "h2"),
    ]
    end = await one.ask(
        "e1",
        "Look",
        input={"messages": messages, "topic": "rain"},
        context={"tone": "kind", "place": "there"},
        configurable={"colour": "red", "user_id": "eve", "thread_id": "x", "__pregel_x": 1, "checkpoint_id": "y"},
    )
    assert isinstance(end, Final)
    assert one.asked() == [
        ("system", "kind about rain in here", None),
        ("human", "Before", "h1"),
        ("ai", "", "a1"),
        ("tool", "Found", "t1"),
        ("human", blocks, "h2"),
    ]
    # What the input holds is not what the graph says.
    assert [(message.role, message.text) for message in end.messages] == [("user", "Look"), ("assistant", "Answer 0.")]
    values = await one.values(end)
    assert values["notes"] == ["looked up rain", {"colour": "red", "user_id": USER}]
    assert [message["id"] for message in values["messages"]][:4] == ["h1", "a1", "t1", "h2"]


async def test_a_message_without_an_id_has_the_same_in_each_run_and_the_next_turn_goes_on(
    world: Callable[..., World],
) -> None:
    one = world()
    await one.ask("e1", "Hello", input={"messages": [human("Hello")]})
    second = await one.ask("e2", "More", input={"messages": human("More"), "topic": "sun"})
    third = await one.ask("e3", "Plain")
    assert [content for _, content, _ in one.asked()][1:] == ["Hello", "Answer 0.", "More", "Answer 1.", "Plain"]
    assert len({message["id"] for message in (await one.values(third))["messages"]}) == 6
    assert (await one.values(third))["messages"][2]["id"] == (await one.values(second))["messages"][2]["id"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"input": {"messages": [], "tpoic": 1}}, "input.tpoic"),
        ({"input": {"messages": [{"no": "role"}]}}, "input.messages"),
        ({"input": {"messages": 7}}, "input.messages"),
        ({"update": {"nots": []}}, "command.update.nots"),
        ({"update": {"messages": [3]}}, "command.update.messages"),
        ({"goto": ("nowhere",)}, "command.goto"),
        ({"goto": ({"node": "nowhere", "input": 1},)}, "command.goto"),
        ({"continues": True}, "input"),
        ({"checkpoint": "nonsense"}, "checkpoint"),
        ({"checkpoint": "1f1e67ab-be06-6a14-8001-305ee8eb27d8.0123"}, "checkpoint"),
        ({"change": StateChange({"topic": "x"}, "nowhere")}, "as_node"),
        ({"change": StateChange({"messages": [{"no": 1}]}, "think")}, "values"),
    ],
)
@pytest.mark.parametrize("graph", ["graph", "per_run"])
async def test_what_a_graph_cannot_take_is_refused_by_its_field(
    world: Callable[..., World], graph: str, given: dict[str, Any], field: str
) -> None:
    one = world(graph=graph)
    failed = await one.ask("e1", "Hello", **given)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (Code.BAD_REQUEST, field)
    assert not one.model.asked
    # Nothing of it is in the way of the next one.
    assert isinstance(await one.ask("e2", "Hello"), Final)


async def test_an_agent_of_ours_takes_messages_alone(tasks: TaskRegistry) -> None:
    storage = MemoryStorage(session_of("Georges"))
    agent = AgentSettings(id="Georges", name="Georges")
    process = TurnProcess(storage, tasks, [agent], AgentKit(FakeModel("Hi."), "fake"))
    refused = await ended(process.ask("e1", "Hello", graph=GraphInput(input={"messages": [], "topic": "x"})))
    assert (refused.code, refused.field, refused.refused) == (Code.BAD_REQUEST, "input.topic", True)
    told = await ended(process.ask("e2", "Hello", graph=GraphInput(input={"messages": []}, modes=BOTH)))
    assert isinstance(told, Final)


async def test_its_steps_are_told_where_that_is_wanted_and_here_alone(world: Callable[..., World]) -> None:
    one = world(says("Let ", "us see."))
    turn = one.turn("e1", "Hello", input={"messages": [human("Hello", "h1")], "topic": "rain"}, modes=BOTH)
    end = await ended(turn)
    told = said(turn, GraphPart)
    assert {one.namespace for one in told} == {()}
    first, *_, last = [loads(one.json) for one in told if one.mode == "values"]
    assert first["messages"] == [
        {
            "content": "Hello",
            "additional_kwargs": {},
            "response_metadata": {},
            "type": "human",
            "name": None,
            "id": "h1",
        }
    ]
    assert last == await one.values(end)
    updates = [loads(one.json) for one in told if one.mode == "updates"]
    assert [next(iter(update)) for update in updates] == ["within", "think", "sure", "close"]
    (answer,) = updates[1]["think"]["messages"]
    assert (answer["type"], answer["content"]) == ("ai", "Let us see.")
    assert answer.keys() >= {"tool_calls", "invalid_tool_calls", "usage_metadata", "response_metadata"}
    # Whose text it is stands before it, under the id that it has in the state, and in history.
    (by,) = said(turn, SpokenBy)
    kinds = [type(event.payload) for event in turn.events]
    assert kinds.index(SpokenBy) + 1 == kinds.index(TextDelta)
    assert (by.message_id, by.node, by.namespace) == (answer["id"], "think", ())
    assert by.rank == end.messages[-1].rank
    extras = end.messages[-1].metadata["extras"]
    assert (extras["message_id"], extras["node"]) == (answer["id"], "think")
    assert turn.bytes_held > sum(len(one.json) for one in told)
    # A mirror of another instance has the same.
    assert decode_events(encode_events(turn.events)) == list(turn.events)
    # A turn that asks for nothing of it has no such event.
    plain = one.process.ask("e2", "Hello")
    await ended(plain)
    assert said(plain, GraphPart) + said(plain, SpokenBy) == []


async def test_what_graphs_within_it_do_is_told_with_their_namespace(world: Callable[..., World]) -> None:
    one = world()
    asked = {"input": {"messages": [human("Hello")], "topic": "rain"}, "modes": frozenset({"updates"})}
    turn = one.turn("e1", "Hello", **asked, subgraphs=True)
    await ended(turn)
    within = [one for one in said(turn, GraphPart) if one.namespace]
    assert [loads(one.json) for one in within] == [{"look": {"notes": ["looked up rain"]}}]
    assert within[0].namespace[0].startswith("within:")
    assert {one.mode for one in said(turn, GraphPart)} == {"updates"}


async def test_a_question_is_told_and_answered_with_a_command_beside(world: Callable[..., World]) -> None:
    one = world()
    given = {"messages": [human("Hello", "h1")], "topic": "ask me"}
    turn = one.turn("e1", "Hello", input=given, modes=BOTH)
    asks = await ended(turn)
    assert isinstance(asks, Awaiting)
    asked = [loads(one.json)["__interrupt__"] for one in said(turn, GraphPart) if b"__interrupt__" in one.json]
    assert [one["value"] for (one,) in asked] == [{"sure": "ask me"}] * len(asked)
    waits = await one.snapshot(asks)
    assert (waits["next"], waits["interrupts"]) == (
        ["sure"],
        [{"id": asks.payload["interrupt_id"], "value": {"sure": "ask me"}}],
    )
    assert waits["tasks"][0]["interrupts"] == waits["interrupts"]
    end = await one.ask("e1", human={"value": {"yes": 1}}, update={"topic": "ask no more"}, modes=BOTH)
    assert isinstance(end, Final)
    values = await one.values(end)
    assert (values["topic"], values["notes"][1:]) == ("ask no more", [{"yes": 1}, {"user_id": USER}])
    assert [message.text for message in end.messages] == ["Hello", "Answer 0.", '{"value": {"yes": 1}}', "Answer 0."]


async def test_a_command_updates_the_state_and_goes_to_a_node(world: Callable[..., World]) -> None:
    one = world()
    await one.ask("e1", "Hello", input={"messages": [human("Hello")]})
    end = await one.ask("e2", "Again", update={"messages": [human("Again", "h2")], "topic": "snow"}, goto=("think",))
    assert [content for _, content, _ in one.asked()] == [
        "plain about snow in nowhere",
        "Hello",
        "Answer 0.",
        "Again",
    ]
    values = await one.values(end)
    assert [message.text for message in end.messages] == ["Again", "Answer 1."]
    assert [note for note in values["notes"] if isinstance(note, str)] == ["looked up nothing"]
    silent = await one.ask("e3", goto=({"node": "close", "input": {"topic": "x"}},))
    # It has said nothing, and what it had said before is not its answer.
    assert [message.text for message in silent.messages] == ["", ""]


async def test_a_run_begins_at_an_older_state_and_the_next_one_behind_it(world: Callable[..., World]) -> None:
    one = world()
    first = await one.ask("e1", "One", input={"messages": [human("One", "h1")]})
    await one.ask("e2", "Two", input={"messages": [human("Two", "h2")]})
    at = (await one.snapshot(first))["checkpoint_id"]
    assert at == f"{one.named(first).partition('.')[0]}.{one.named(first).rpartition('/')[2]}"
    forked = await one.ask("e3", "Other", input={"messages": [human("Other", "h3")]}, checkpoint=at)
    assert [content for _, content, _ in one.asked()][1:] == ["One", "Answer 0.", "Other"]
    assert (await one.snapshot(forked))["parent_checkpoint_id"] != at  # the state of its question is between
    await one.ask("e4", "Plain")
    assert [content for _, content, _ in one.asked()][1:] == ["One", "Answer 0.", "Other", "Answer 2.", "Plain"]


async def test_a_run_without_an_input_goes_on_from_the_state_before_an_answer(world: Callable[..., World]) -> None:
    """As pages do that have the answer made again."""
    one = world()
    first = await one.ask("e1", "One", input={"messages": [human("One", "h1")], "topic": "rain"})
    states = await one.agent.states("s1", USER, one.named(first))
    assert [state["next"] for state in states] == [[], ["close"], ["sure"], ["think"], ["within"], ["__start__"]]
    before = next(state for state in states if state["next"] == ["think"])
    end = await one.ask("e2", "One", continues=True, checkpoint=before["checkpoint_id"])
    assert [message.text for message in end.messages] == ["One", "Answer 1."]
    values = await one.values(end)
    assert [message["content"] for message in values["messages"]] == ["One", "Answer 1."]
    assert values["notes"][0] == "looked up rain"


async def test_a_state_is_changed_and_the_next_turn_goes_on_from_it(world: Callable[..., World]) -> None:
    one = world()
    end = await one.ask("e1", "Hello", input={"messages": [human("Hello")], "topic": "ask me"})
    assert isinstance(end, Awaiting)
    waits = (await one.snapshot(end))["checkpoint_id"]
    change = StateChange({"topic": "changed", "notes": ["by hand"]}, "sure")
    changed = await one.ask("e2", change=change, checkpoint=waits)
    assert isinstance(changed, Final)
    assert [message.text for message in changed.messages] == ["", ""]
    assert changed.messages[-1].metadata["extras"]["state"] == "changed"
    state = await one.snapshot(changed)
    assert (state["next"], state["interrupts"], state["metadata"]["source"]) == (["close"], [], "update")
    assert state["parent_checkpoint_id"] == waits
    # Nobody waits any longer, and the graph goes on behind the node that was stood in for.
    refused = await one.ask("e1", human={"value": 1})
    assert refused.code is Code.NOT_AWAITING
    gone_on = await one.ask("e3", continues=True)
    values = await one.values(gone_on)
    assert (values["topic"], values["notes"][1:]) == ("changed", ["by hand", {"user_id": USER}])
    assert len(one.model.asked) == 1
    # In a new process, too; and without a node the one that wrote last has written.
    one.process = one.start()
    again = await one.ask("e4", change=StateChange({"topic": "once more"}))
    assert (await one.values(again))["topic"] == "once more"
    await one.ask("e5", "Plain")
    assert one.asked()[0][1] == "plain about once more in nowhere"
    entered = await one.ask("e6", change=StateChange({"topic": "entered"}, "__start__"))
    assert (await one.snapshot(entered))["next"] == ["within"]
    given = await one.ask("e8", change=StateChange({"topic": "given"}, "__input__"))
    assert (await one.snapshot(given))["metadata"]["source"] == "input"
    cleared = await one.ask("e7", change=StateChange(None, "__end__"))
    assert (await one.snapshot(cleared))["next"] == []


async def test_a_state_may_be_made_before_there_is_any(world: Callable[..., World]) -> None:
    one = world()
    made = await one.ask("e1", change=StateChange({"messages": [human("Earlier", "h1")]}, "__start__"))
    assert [message["id"] for message in (await one.values(made))["messages"]] == ["h1"]
    await one.ask("e2", "Now")
    assert [content for _, content, _ in one.asked()][1:] == ["Earlier", "Now"]


async def test_states_of_the_exchanges_that_count_are_listed(world: Callable[..., World]) -> None:
    one = world("One.", ValueError("broken"), "Three.")
    first = await one.ask("e1", "A", input={"messages": [human("A")]})
    assert isinstance(await one.ask("e2", "B", input={"messages": [human("B")]}), Failed)
    third = await one.ask("e3", "C", input={"messages": [human("C")]})
    listed = await one.agent.states("s1", USER, one.named(third), limit=100)
    assert {state["metadata"]["run_id"] for state in listed} == {"e1", "e2", "e3"}
    shown = await one.agent.states("s1", USER, one.named(third), limit=100, exchanges={"e1", "e3"})
    assert {state["metadata"]["run_id"] for state in shown} == {"e1", "e3"}
    assert shown[0] == await one.agent.state("s1", USER, shown[0]["checkpoint_id"])
    assert shown[0]["checkpoint_id"].partition(".")[0] == one.named(third).partition(".")[0]
    by_id = {state["checkpoint_id"]: state for state in shown}
    for state in shown[:-1]:
        assert state["parent_checkpoint_id"] in by_id
        assert state["checkpoint"] == {
            "thread_id": "s1",
            "checkpoint_ns": "",
            "checkpoint_id": state["checkpoint_id"],
        }
    assert await one.agent.states("s1", USER, one.named(third), limit=2) == shown[:2]
    rest = await one.agent.states(
        "s1", USER, one.named(third), limit=100, before=shown[1]["checkpoint_id"], exchanges={"e1", "e3"}
    )
    assert rest == shown[2:]
    of_first = await one.agent.states("s1", USER, one.named(third), limit=100, metadata={"run_id": "e1"})
    assert of_first[0]["checkpoint_id"] == (await one.snapshot(first))["checkpoint_id"]
    # Only what is of this session and this agent.
    for other in ("", "x", one.named(third).replace("s1/", "s2/"), one.named(third).replace("/Desk/", "/Other/")):
        assert await one.agent.state("s1", USER, other) is None
        assert await one.agent.states("s1", USER, other) == []


async def test_the_operators_values_are_not_in_what_is_told_of_a_state(world: Callable[..., World]) -> None:
    one = world(context={"secret": "s3cret", "tone": "calm"}, graph="stepping")
    desk.steps.go.set()
    end = await one.ask("e1", "Hello", input={"messages": [human("Hello")], "topic": "x"}, modes=BOTH)
    state = await one.snapshot(end, subgraphs=True)
    assert "s3cret" not in str(state)
    assert state["metadata"] == {
        "graph_id": "Desk",
        "thread_id": "s1",
        "run_id": "e1",
        "source": "loop",
        "step": 2,
        "parents": {},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"input": {"messages": [human("Go", "h1")], "topic": "T"}}, ["First of T.", "Second after 5."]),
        ({"update": {"topic": "U"}, "goto": ("first",)}, ["First of U.", "Second after 4."]),
    ],
)
async def test_a_turn_that_was_cut_off_goes_on_with_all_that_it_was_asked_with(
    world: Callable[..., World], given: dict[str, Any], expected: list[str]
) -> None:
    desk.steps = desk.Steps()
    one = world(graph="stepping")
    desk.steps.go.set()
    await one.ask("e0", "Start", input={"messages": [human("Start", "h0")], "topic": "S"})
    desk.steps = desk.Steps()
    asked = {**given, "modes": BOTH, "subgraphs": True, "context": {"tone": "x"}, "configurable": {"colour": 1}}
    dead = one.turn("e1", "Go", **asked)
    await desk.steps.reached.wait()
    record = AskRecord.decode(one.storage.asks[-1].encode())
    assert isinstance(record.rerun, GraphRerun)
    assert ask_of(record).graph == dead.ask.graph
    assert AskRecord.decode(record.begun_again().encode()).rerun == record.begun_again().rerun
    dead.abandon()
    first = desk.steps.done
    desk.steps.go.set()
    one.storage.left_over.append(record)
    one.process = one.start()
    one.process.begin_again()
    turn = one.process.registry.find("e1", USER)
    assert turn is not None
    end = await ended(turn)
    assert isinstance(end, Final), end
    assert desk.steps.done == first == 1
    assert [message.text for message in end.messages if message.role == "assistant"] == expected
    assert said(turn, GraphPart)[-1].mode == "values"
    assert [message["content"] for message in loads(said(turn, GraphPart)[-1].json)["messages"]][-2:] == expected
    assert [one.message.text for one in said(turn, Whole)] == ["Go", expected[0]]


async def test_an_input_that_is_too_long_for_the_spool_is_not_run_again(world: Callable[..., World]) -> None:
    one = world()
    await one.ask("e1", "Hello", input={"messages": [human("Hello")], "topic": "x" * 70_000})
    assert AskRecord.decode(one.storage.asks[-1].encode()).rerun is None


def test_it_is_stored_with_what_was_given_alone() -> None:
    assert GraphInput().stored() == {}
    given = GraphInput(
        input={},
        update={"a": 0},
        goto=("x", {"node": "y", "input": [1]}),
        change=StateChange(None, "__end__"),
        checkpoint="c",
        durability="sync",
        modes=BOTH,
        subgraphs=True,
        continues=True,
    )
    assert GraphInput.of_stored(given.stored()) == given
    assert GraphInput.of_stored({"later": 1, "input": {"a": None}}) == GraphInput(input={"a": None})


async def test_the_state_of_a_graph_within_it_that_waits(world: Callable[..., World]) -> None:
    one = world(graph="nested")
    asks = await one.ask("e1", "Hello", input={"messages": [human("Hello")], "topic": "rain"})
    (task,) = (await one.snapshot(asks))["tasks"]
    assert (task["name"], task["state"], task["interrupts"][0]["value"]) == ("ask", None, "Really?")
    assert task["checkpoint"] == {"thread_id": "s1", "checkpoint_ns": f"ask:{task['id']}"}
    (task,) = (await one.snapshot(asks, subgraphs=True))["tasks"]
    within = task["state"]
    assert (within["values"]["notes"], within["next"]) == (["looked up rain"], ["doubt"])
    assert within["checkpoint"]["checkpoint_ns"] == f"ask:{task['id']}"
    assert (within["metadata"]["run_id"], within["metadata"]["parents"].keys()) == ("e1", {""})
    assert isinstance(await one.ask("e1", human={"value": "yes"}), Final)


async def test_a_run_of_which_nothing_is_kept_takes_an_input_and_no_state(world: Callable[..., World]) -> None:
    one = world()
    asked = GraphInput(input={"messages": [human("Hello", "h1")], "topic": "rain"}, modes=BOTH)
    turn = one.process.ask("e1", "Hello", kept=False, session_id="none", graph=asked)
    assert isinstance(await ended(turn), Final)
    assert one.asked()[-1] == ("human", "Hello", "h1")
    assert loads(said(turn, GraphPart)[-1].json)["topic"] == "rain"
    for given in ({"continues": True}, {"goto": ("think",)}, {"change": StateChange({}, "think")}):
        refused = await ended(one.process.ask("e2", kept=False, session_id="none", graph=GraphInput(**given)))
        assert (refused.code, refused.field) == (Code.BAD_REQUEST, "input")


@pytest.mark.servers
async def test_what_is_streamed_has_the_id_that_the_message_has_in_the_state(world: Callable[..., World]) -> None:
    """Of langchain's client for OpenAI, too."""
    async with scripted(
        calls(("c1", "find", '{"what": "it"}'), text="Let me look."), speaks("It is ", "here.")
    ) as server:
        one = world(graph="of_openai", context={"url": server.base_url})
        turn = one.turn("e1", "Hello", input={"messages": [human("Hello", "h1")]})
        end = await ended(turn)
    values = await one.values(end)
    _, calling, result, answer = [message["id"] for message in values["messages"]]
    assert [(by.message_id, by.node, by.step) for by in said(turn, SpokenBy)] == [
        (calling, "chat", 1),
        (answer, "chat", 3),
    ]
    named = [
        (one.channel, one.metadata["extras"]["message_id"], one.metadata["extras"]["node"]) for one in end.messages[1:]
    ]
    assert named == [
        ("thought", calling, "chat"),
        ("tool_call", calling, "chat"),
        ("tool_result", result, "tools"),
        ("final", answer, "chat"),
    ]


@pytest.mark.parametrize("configured", ["exit", "async", "sync"])
def test_a_client_may_have_the_state_stored_earlier_and_not_later(configured: str) -> None:
    stored = [stronger(configured, wanted) for wanted in (None, "exit", "async", "sync")]
    assert stored == [configured, configured, "async" if configured == "exit" else configured, "sync"]


async def test_a_run_id_of_its_clients_does_not_make_a_run_the_rest_of_another(world: Callable[..., World]) -> None:
    one = world()
    for number in range(2):
        asked = {"messages": [human(f"Question {number}")]}
        end = await one.ask(f"e{number}", input=asked, configurable={"run_id": "same"}, durability="sync")
        assert isinstance(end, Final)
    assert [content for _, content, _ in one.asked()][1:] == ["Question 0", "Answer 0.", "Question 1"]
