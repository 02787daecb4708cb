"""Which checkpoints of a graph are stored: all that a later turn, a person's answer or a restart goes on from."""

import asyncio
import operator
from contextlib import contextmanager
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from agentic_backend.agent.hosted.current import CURRENT, HostedTurn
from agentic_backend.agent.hosted.state import StateSaver
from agentic_backend.testing import MemoryState

THREAD: Any = {"configurable": {"thread_id": "session/Agent/a"}}


@contextmanager
def turn():
    """The turn that a graph runs for."""
    made = HostedTurn(run=None, kit=None, observer=None, loop=None)  # none of which the saver uses
    token = CURRENT.set(made)
    try:
        yield made
    finally:
        CURRENT.reset(token)


def echo(state):
    """Answer."""
    return {"messages": [AIMessage(f"{len(state['messages'])}")]}


def echoing(schema=MessagesState):
    """A graph that answers."""
    return StateGraph(schema).add_node("echo", echo).add_edge(START, "echo").compile()


async def asked(graph, begin, durability="async"):
    """Run a turn; its newest checkpoint, and the texts of its messages."""
    with turn() as run:
        values = await graph.ainvoke(begin, THREAD, durability=durability)
    return run.checkpoint_id, [one.content for one in values["messages"]]


def question(text):
    return {"messages": [HumanMessage(text)]}


async def kept(state):
    """Source and parent of the checkpoints, oldest first."""
    found = [one async for one in state.kept.alist(THREAD)]
    return [
        (
            one.metadata["source"],
            one.checkpoint["id"],
            (one.parent_config or THREAD)["configurable"].get("checkpoint_id"),
        )
        for one in reversed(found)
    ]


@pytest.mark.parametrize("durability", ["async", "sync"])
async def test_of_a_later_turn_the_input_alone_is_no_state_of_its_own(durability):
    state, graph = MemoryState(), echoing()
    graph.checkpointer = StateSaver(state)
    first, _ = await asked(graph, question("A"), durability)
    second, texts = await asked(graph, question("B"), durability)
    assert texts == ["A", "1", "B", "3"]
    found = await kept(state)
    assert [source for source, _, _ in found] == ["input", "loop", "loop", "loop", "loop"]
    assert [parent for _, _, parent in found] == [None, *(checkpoint for _, checkpoint, _ in found[:-1])]
    assert (first, second) == (found[2][1], found[4][1])
    assert {checkpoint for (_, _, checkpoint) in state.kept.writes} <= {checkpoint for _, checkpoint, _ in found}


async def test_a_question_to_a_person_before_the_first_step_is_a_state():
    def ask_first(state):
        return interrupt("Which?") if state["messages"][-1].content == "B" else "echo"

    state = MemoryState()
    builder = StateGraph(MessagesState).add_node("echo", echo).add_edge("echo", END)
    graph = builder.add_conditional_edges(START, ask_first, ["echo"]).compile()
    graph.checkpointer = StateSaver(state)
    first, _ = await asked(graph, question("A"))
    with turn() as run:
        await graph.ainvoke(question("B"), THREAD)
        (open_question,) = (await graph.aget_state(THREAD)).interrupts  # LangGraph's values do not say so this early
    assert run.checkpoint_id not in (None, first)
    newest = await state.kept.aget_tuple(THREAD)
    assert newest.checkpoint["id"] == run.checkpoint_id
    assert newest.metadata["source"] == "input"
    _, texts = await asked(graph, Command(resume={open_question.id: "echo"}))
    assert texts == ["A", "1", "B", "3"]


async def test_a_channel_of_what_was_added_is_whole_in_each_later_turn():
    def joined(before, writes):
        return [*before, *(one for write in writes for one in write)]

    class Added(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(joined)]

    state, graph = MemoryState(), echoing(Added)
    graph.checkpointer = StateSaver(state)
    for number, text in enumerate("ABCD"):
        _, texts = await asked(graph, question(text))
        assert texts[-2:] == [text, str(2 * number + 1)]
    assert [source for source, _, _ in await kept(state)].count("input") == 4


async def test_what_nodes_wrote_in_the_step_of_the_input_is_not_done_again():
    """In a graph that nobody's builder has made, the input is the state of the first step."""
    done, handed_over = [], asyncio.Event()

    class Saver(StateSaver):
        async def aput_writes(self, config, writes, task_id, task_path=""):
            await super().aput_writes(config, writes, task_id, task_path)
            handed_over.set()

    async def works(_messages):
        done.append("worked")
        return ["a"]

    async def asks(messages):
        if len(messages) == 1:
            return ["b"]
        await handed_over.wait()
        return [interrupt("Which?")]

    nodes = {
        name: NodeBuilder().subscribe_only("messages").do(node).write_to("said").build()
        for name, node in (("works", works), ("asks", asks))
    }
    channels = {
        "messages": BinaryOperatorAggregate(list, operator.add),
        "said": BinaryOperatorAggregate(list, operator.add),
    }
    graph = Pregel(nodes=nodes, channels=channels, input_channels=["messages"], output_channels=["messages", "said"])
    graph.checkpointer = Saver(MemoryState())
    await asked(graph, question("A"))
    handed_over.clear()
    await asked(graph, question("B"))
    assert done == ["worked"] * 2
    (open_question,) = (await graph.aget_state(THREAD)).interrupts
    with turn():
        values = await graph.ainvoke(Command(resume={open_question.id: "c"}), THREAD)
    assert sorted(values["said"]) == ["a", "a", "b", "c"]
    assert done == ["worked"] * 2
