"""What langgraph and its savers keep of a run that waits for a person, and under which names."""

from dataclasses import fields
from typing import Any, TypedDict

import psycopg
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph._internal._runnable import RunnableCallable
from langgraph.channels.last_value import LastValue
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph._branch import BranchSpec
from langgraph.graph._node import StateNodeSpec
from langgraph.runtime import Runtime
from langgraph.types import Command, Interrupt, interrupt
from psycopg import sql

from agentic_backend.agent.hosted.state_writes import CheckpointPart, WritesPart
from agentic_backend.persist.graph_pool import TABLES
from agentic_backend.persist.graph_statements import encoded, execute_all
from tests.support.postgres import Database


class State(TypedDict, total=False):
    said: str


class Asked(TypedDict):
    topic: str


def asks(state: State) -> State:
    return {"said": interrupt("Are you sure?")}


def waiting_graph() -> Any:
    """A graph that asks, compiled without a saver."""
    graph = StateGraph(State)
    graph.add_node("asks", asks)
    graph.add_edge(START, "asks")
    graph.add_edge("asks", END)
    return graph.compile()


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


async def test_a_compiled_graph_takes_a_saver_and_says_what_it_waits_for() -> None:
    """agentic_backend/agent/catalog.py sets `checkpointer` on the graph that an agent's module has compiled, lets a run
    be saved at its end alone (`durability`), and finds under `__interrupt__` what a person is asked."""
    graph = waiting_graph()
    saver = graph.checkpointer = InMemorySaver()
    state = await graph.ainvoke({}, thread("t"), durability="exit")
    (asked,) = state["__interrupt__"]
    assert asked.value == "Are you sure?"
    assert len([one async for one in saver.alist(thread("t"))]) == 1


async def test_a_saved_run_goes_on_elsewhere_by_the_id_of_its_question() -> None:
    """agentic_backend/agent/interrupts.py carries checkpoints with their writes from one saver into another thread, and
    answers by the id that stands among the writes of the channel `__interrupt__`."""
    graph = waiting_graph()
    saver = graph.checkpointer = InMemorySaver()
    await graph.ainvoke({}, thread("t"), durability="exit")
    (kept,) = [one async for one in saver.alist(thread("t"))]
    assert kept.config["configurable"]["checkpoint_ns"] == ""
    assert kept.checkpoint["id"] == kept.config["configurable"]["checkpoint_id"]
    await saver.adelete_thread("t")
    assert [one async for one in saver.alist(thread("t"))] == []

    other = graph.checkpointer = InMemorySaver()
    config: RunnableConfig = {"configurable": {"thread_id": "u", "checkpoint_ns": ""}}
    put = await other.aput(config, kept.checkpoint, kept.metadata, kept.checkpoint["channel_versions"])
    for task_id, channel, value in kept.pending_writes or ():
        await other.aput_writes(put, [(channel, value)], task_id)
    (asked,) = [one for _, channel, value in kept.pending_writes or () if channel == "__interrupt__" for one in value]
    state = await graph.ainvoke(Command(resume={asked.id: "yes"}), thread("u"), durability="exit")
    assert state["said"] == "yes"
    assert "__interrupt__" not in state


async def test_postgres_has_these_tables_with_these_columns(empty_database: Database) -> None:
    """agentic_backend/persist/graph_pool.py ties each of TABLES to the sessions by `thread_id`, and
    agentic_backend/persist/checkpoints.py claims a run by the row of `checkpoints` with its `checkpoint_id` in the
    outermost `checkpoint_ns`."""
    async with AsyncPostgresSaver.from_conn_string(empty_database.dsn) as saver:
        await saver.setup()
        await saver.setup()
    with psycopg.connect(empty_database.dsn) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
        ).fetchall()
    tables = {table for table, _, _ in columns}
    assert tables == {*TABLES, "checkpoint_migrations"}
    assert {table for table, column, _ in columns if column == "thread_id"} == set(TABLES)
    assert {("checkpoints", name, "text") for name in ("thread_id", "checkpoint_ns", "checkpoint_id")} <= set(columns)


async def test_postgres_gives_back_what_a_saver_in_memory_had(empty_database: Database) -> None:
    """agentic_backend/persist/checkpoints.py stores what came out of one in memory and reads it back whole."""
    graph = waiting_graph()
    memory = graph.checkpointer = InMemorySaver()
    await graph.ainvoke({}, thread("t"), durability="exit")
    (kept,) = [one async for one in memory.alist(thread("t"))]
    async with AsyncPostgresSaver.from_conn_string(empty_database.dsn) as saver:
        await saver.setup()
        config: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        put = await saver.aput(config, kept.checkpoint, kept.metadata, kept.checkpoint["channel_versions"])
        for task_id, channel, value in kept.pending_writes or ():
            await saver.aput_writes(put, [(channel, value)], task_id)
        (found,) = [one async for one in saver.alist(thread("t"))]
    assert found.checkpoint["id"] == kept.checkpoint["id"]
    assert found.checkpoint["channel_values"] == kept.checkpoint["channel_values"]
    assert found.config["configurable"]["checkpoint_ns"] == ""
    assert found.parent_config is None
    assert sorted(found.pending_writes or (), key=str) == sorted(kept.pending_writes or (), key=str)


async def test_parts_of_a_state_are_the_rows_that_the_saver_itself_writes(empty_database: Database) -> None:
    """agentic_backend/persist/graph_statements.py sends the saver's statements, many in one round trip, and what stands
    in the row of a checkpoint and what beside it, also of a channel that stores only what was added."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {
        "messages": [HumanMessage("Hello", id="1")],
        "said": "yes",
        "times": 2.5,
        "nothing": None,
        "added": _DeltaSnapshot(["a"]),
        "unchanged": ["b"],
    }
    versions: Any = {"messages": "1.0", "said": "1.0", "times": "1.0", "nothing": "1.0", "added": "2.0", "gone": "2.0"}
    checkpoint["channel_versions"] = {**versions, "unchanged": "0.5"}
    begun: RunnableConfig = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "before", "user_id": "ada"},
        "metadata": {"exchange_id": "e"},
    }
    put: RunnableConfig = {"configurable": {**begun["configurable"], "checkpoint_id": checkpoint["id"]}}
    metadata: Any = {"source": "loop", "step": 1, "parents": {}}
    writes = [
        ("messages", [HumanMessage("How?", id="2")]),
        ("said", "no"),
        ("__interrupt__", (Interrupt("?", id="i"),)),
    ]
    asked = [("__interrupt__", (Interrupt("?", id="j"),))]
    async with AsyncPostgresSaver.from_conn_string(empty_database.dsn) as saver:
        await saver.setup()
        await saver.aput(begun, checkpoint, metadata, versions)
        await saver.aput_writes(put, writes, "a task", "path")
        await saver.aput_writes(put, asked, "another")
        by_itself = rows_of_all_tables(empty_database)
        await saver.adelete_thread("t")
        assert rows_of_all_tables(empty_database) == [[], [], []]
        parts = [
            CheckpointPart(begun, checkpoint, metadata, versions),
            WritesPart(put, writes, "a task", "path"),
            WritesPart(put, asked, "another", ""),
        ]
        await execute_all(saver.conn, await encoded(parts))  # type: ignore[arg-type] - no pool
        await execute_all(saver.conn, await encoded(parts))  # type: ignore[arg-type] - no pool
    assert rows_of_all_tables(empty_database) == by_itself
    assert all(by_itself)


def rows_of_all_tables(database: Database) -> list[list[Any]]:
    with psycopg.connect(database.dsn) as connection:
        query = sql.SQL("SELECT * FROM {} ORDER BY 1, 2, 3, 4, 5, 6")
        return [connection.execute(query.format(sql.Identifier(table))).fetchall() for table in TABLES]


def test_a_builder_says_what_a_graph_is_made_of() -> None:
    """agentic_backend/agent/straight.py reads nodes, edges, choices and channels from the builder of a compiled graph,
    and calls the functions behind its runnables."""
    graph = StateGraph(State)

    async def says(state: State, runtime: Runtime[None]) -> State:
        return {}

    def chooses(state: State) -> str:
        return END

    graph.add_node("says", says)
    graph.add_node("asks", asks)
    graph.add_edge(START, "says")
    graph.add_conditional_edges("says", chooses, [END, "asks"])
    builder = graph.compile().builder
    assert builder.edges == {(START, "says")}
    assert (builder.managed, builder.waiting_edges) == ({}, set())
    assert type(builder.channels["said"]) is LastValue
    spec = builder.nodes["says"]
    assert isinstance(spec.runnable, RunnableCallable)
    assert (spec.runnable.func, spec.runnable.afunc) == (None, says)
    assert (list(spec.runnable.func_accepts), spec.runnable.kwargs) == (["runtime"], {})
    blocking = builder.nodes["asks"].runnable
    assert isinstance(blocking, RunnableCallable)
    assert blocking.func is asks
    assert {field.name for field in fields(StateNodeSpec)} == {
        *("runnable", "metadata", "input_schema", "retry_policy", "cache_policy", "is_error_handler"),
        *("error_handler_node", "ends", "defer", "timeout", "trace_policy"),
    }, "a new field may be something that a straight graph must not have"
    (choice,) = builder.branches["says"].values()
    assert isinstance(choice, BranchSpec)
    assert isinstance(choice.path, RunnableCallable)
    assert (choice.path.func, choice.ends, choice.input_schema) == (chooses, {END: END, "asks": "asks"}, State)
    assert Runtime(context=1).context == 1


def test_a_builder_says_which_channels_its_graph_takes() -> None:
    """agentic_backend/agent/hosted/loading.py refuses a graph whose input has no messages; only the builder of a
    compiled `StateGraph` knows that, since its `input_channels` are one that is none of the state's."""
    graph = StateGraph(State, input_schema=Asked)
    graph.add_node("asks", asks)
    graph.add_edge(START, "asks")
    compiled = graph.compile()
    assert (compiled.input_channels, list(compiled.builder.schemas[compiled.builder.input_schema])) == (
        START,
        ["topic"],
    )
