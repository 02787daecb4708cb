"""`RemoteGraph` of LangGraph, unmodified: an agent of ours or a hosted graph, used as if it were a local graph."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import uuid4

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_sync_client

from tests.langgraph.graphs import QUESTION
from tests.langgraph.stage import AGENTS, BEARER, client_of, human, told, url_of

EACH = pytest.mark.parametrize("agent", ["agent", "Georges"], ids=["hosted", "ours"])
NODES = {"agent": "model"}


@asynccontextmanager
async def remote(service, agent):
    """With clients of the test's: it never closes those that it makes from a URL."""
    url = url_of(service)
    sync_client = get_sync_client(url=url, api_key=None, headers=BEARER)
    async with client_of(service) as client:
        with sync_client:
            yield RemoteGraph(agent, client=client, sync_client=sync_client)


def on_thread(thread_id=None):
    return {"configurable": {"thread_id": thread_id or str(uuid4())}}


@EACH
async def test_it_is_invoked_with_and_without_a_thread(start_service, agent):
    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, agent) as graph:
        config = on_thread()
        first = await graph.ainvoke(human("one"), config)
        assert [kind for kind, _ in told(first)] == ["human", "ai"]
        second = await graph.ainvoke(human("two"), config)
        assert told(second)[:2] == told(first)
        assert len(second["messages"]) == 4
        alone = await graph.ainvoke(human("alone"))
        assert [kind for kind, _ in told(alone)] == ["human", "ai"]


@EACH
async def test_it_streams_in_each_mode(start_service, agent):
    async with start_service("mock;tokens=5;gap=20", **AGENTS) as service, remote(service, agent) as graph:
        config = on_thread()
        values = [part async for part in graph.astream(human("one"), config, stream_mode="values")]
        assert [len(part["messages"]) for part in values] == [1, 2]
        answer = told(values[-1])[-1][1]
        assert answer

        updates = [part async for part in graph.astream(human("two"), config, stream_mode="updates")]
        (node,) = updates[-1]
        assert node == NODES.get(agent, node)
        (update,) = updates[-1].values()
        assert update["messages"][-1]["type"] == "ai"

        pieces, ids, about = "", set(), []
        async for message, metadata in graph.astream(human("three"), config, stream_mode="messages"):
            pieces += message["content"]
            ids.add(message["id"])
            about.append(metadata)
        state = await graph.aget_state(config)
        final = state.values["messages"][-1]
        assert (pieces, ids) == (final["content"], {final["id"]})
        for one in about:
            assert {"langgraph_node", "langgraph_step", "run_id", "thread_id"} <= set(one)
            assert one["thread_id"] == config["configurable"]["thread_id"]

        several = graph.astream(human("four"), config, stream_mode=["values", "messages", "updates"])
        assert {part.event async for part in several} >= {"values", "messages", "updates"}


async def test_custom_events_come_through(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, "agent") as graph:
        custom = [part async for part in graph.astream(human("x"), stream_mode="custom")]
        assert custom == [{"step": "model"}]


async def test_custom_events_of_an_agent_of_ours_come_through(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, "Teller") as graph:
        custom = [part async for part in graph.astream(human("tell"), stream_mode="custom")]
        assert custom[0] == {"looking": [1, None, {"for": "Zimtschnecke"}]}
        assert custom[1:] in ([], ["Zimtschnecke"])


@EACH
async def test_state_and_history(start_service, agent):
    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, agent) as graph:
        config = on_thread()
        one = await graph.ainvoke(human("one"), config)
        two = await graph.ainvoke(human("two"), config)
        state = await graph.aget_state(config)
        assert told(state.values) == told(two)
        assert (state.next, state.tasks, state.interrupts) == ((), (), ())
        assert state.config["configurable"]["thread_id"] == config["configurable"]["thread_id"]
        assert state.config["configurable"]["checkpoint_id"]

        history = [snapshot async for snapshot in graph.aget_state_history(config)]
        assert history[0].config == state.config
        lengths = [len(snapshot.values.get("messages", [])) for snapshot in history]
        assert lengths == sorted(lengths, reverse=True)
        assert {1, 2, 3, 4} <= set(lengths)
        at = next(snapshot for snapshot in history if len(snapshot.values["messages"]) == 2)
        assert told((await graph.aget_state(at.config)).values) == told(one)
        # What a checkpoint says it follows is the next one of the list.
        for younger, older in pairwise(history):
            assert (
                younger.parent_config["configurable"]["checkpoint_id"] == older.config["configurable"]["checkpoint_id"]
            )


async def test_an_older_checkpoint_is_gone_on_from(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, "agent") as graph:
        config = on_thread()
        one = await graph.ainvoke(human("one"), config)
        await graph.ainvoke(human("two"), config)
        history = [snapshot async for snapshot in graph.aget_state_history(config)]
        at = next(snapshot for snapshot in history if len(snapshot.values["messages"]) == 2)
        # Of its configuration alone it would send the thread's id.
        checkpoint = {"checkpoint_id": at.config["configurable"]["checkpoint_id"], "checkpoint_ns": ""}
        forked = await graph.ainvoke(human("another two"), config, checkpoint=checkpoint)
        assert told(forked)[:2] == told(one)
        assert told(forked)[2] == ("human", "another two")
        assert len(forked["messages"]) == 4


async def test_a_state_is_updated(start_service):
    async with start_service(**AGENTS) as service, remote(service, "asker") as graph:
        config = on_thread()
        await graph.ainvoke(human("one"), config)
        await graph.ainvoke(Command(resume="yes"), config)
        changed = await graph.aupdate_state(config, {"verdict": "changed"}, as_node="ask")
        assert changed["configurable"]["checkpoint_id"]
        state = await graph.aget_state(config)
        assert (state.values["verdict"], state.next) == ("changed", ("finish",))


async def test_the_graph_is_drawn(start_service):
    async with (
        start_service(**AGENTS) as service,
        remote(service, "asker") as asker,
        remote(service, "Georges") as georges,
    ):
        drawn = await asker.aget_graph()
        assert list(drawn.nodes) == ["__start__", "draft", "ask", "finish", "__end__"]
        edges = {(edge.source, edge.target) for edge in drawn.edges}
        assert edges == {("__start__", "draft"), ("draft", "ask"), ("ask", "finish"), ("finish", "__end__")}
        ours = await georges.aget_graph()
        assert {"__start__", "__end__"} < set(ours.nodes)


async def test_a_question_is_asked_and_answered(start_service):
    async with start_service(**AGENTS) as service, remote(service, "asker") as graph:
        config = on_thread()
        asked = await graph.ainvoke(human("one"), config)
        (question,) = asked["__interrupt__"]
        assert question["value"] == QUESTION
        state = await graph.aget_state(config)
        assert state.next == ("ask",)
        assert [one.value for one in state.interrupts] == [QUESTION]
        assert state.interrupts[0].id == question["id"]
        done = await graph.ainvoke(Command(resume="yes"), config)
        assert told(done)[-1] == ("ai", "done yes")
        assert "__interrupt__" not in done
        assert (await graph.aget_state(config)).interrupts == ()


async def test_a_question_of_an_agent_of_ours_is_asked_and_answered(start_service):
    async with start_service(**AGENTS) as service, remote(service, "Teller") as graph:
        config = on_thread()
        asked = await graph.ainvoke(human("review"), config)
        (question,) = asked["__interrupt__"]
        decisions = {"decisions": [{"type": "approve"}] * len(question["value"]["action_requests"])}
        assert [one.id for one in (await graph.aget_state(config)).interrupts] == [question["id"]]
        # By the id of the question, as LangGraph takes it of several.
        done = await graph.ainvoke(Command(resume={question["id"]: decisions}), config)
        assert "approve" in told(done)[-1][1]


@EACH
async def test_it_is_a_node_of_a_local_graph(start_service, agent):
    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, agent) as graph:
        local = StateGraph(MessagesState).add_node("there", graph).add_edge(START, "there").compile()
        done = await local.ainvoke(human("one"))
        assert [one.type for one in done["messages"]] == ["human", "ai"]
        modes = local.astream(human("one"), stream_mode=["messages", "values"], subgraphs=True)
        places = {(mode, bool(place)) async for place, mode, _ in modes}
        assert {("values", False), ("messages", True)} <= places


@EACH
async def test_without_asyncio(start_service, agent):
    def runs(graph):
        config = on_thread()
        first = graph.invoke(human("one"), config)
        values = list(graph.stream(human("two"), config, stream_mode="values"))
        assert told(values[-1])[:2] == told(first)
        assert told(graph.get_state(config).values) == told(values[-1])
        assert len(list(graph.get_state_history(config))) >= 4
        assert "__start__" in graph.get_graph().nodes
        local = StateGraph(MessagesState).add_node("there", graph).add_edge(START, "there").compile()
        return [one.type for one in local.invoke(human("one"))["messages"]]

    async with start_service("mock;tokens=3", **AGENTS) as service, remote(service, agent) as graph:
        assert await asyncio.to_thread(runs, graph) == ["human", "ai"]
