import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import set_config_context, var_child_runnable_config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy

from agentic_backend.agent import Agent, AgentAnswer, AgentKit, AgentRun, plain, rag, tools
from agentic_backend.agent.catalog import STRAIGHT
from agentic_backend.agent.hosted.check import HandlerUnusable, load_handlers
from agentic_backend.agent.run import AgentState
from agentic_backend.agent.straight import NotStraight, StraightGraph
from agentic_backend.testing import FakeModel
from tests.agentic_backend.agent.graphs import Journey, Whole, graph_of, kind_of
from tests.agentic_backend.agent.helpers import Turn, settings_for

LIMIT = 9
GRAPHS = 600


async def outcome(run: Awaitable[Any]) -> Any:
    """The result of a run, or what it raised."""
    try:
        return await run
    except Exception as failure:  # noqa: BLE001 - any two engines must raise the same
        return kind_of(failure)


@pytest.mark.parametrize("hundred", range(GRAPHS // 100))
async def test_runs_any_straight_graph_as_the_engine_does(hundred: int) -> None:
    ends = set()
    for seed in range(hundred * 100, hundred * 100 + 100):
        journeys: list[Journey] = []
        graph = graph_of(seed, journeys)
        straight = StraightGraph(graph)
        begin = {"message": "Hi", "total": seed % 3, "b": "not of the input"}
        journeys.append(engines := Journey(seed))
        wanted = await outcome(graph.ainvoke(begin, {"recursion_limit": LIMIT}, context=engines))
        journeys.append(ours := Journey(seed))
        found = await outcome(straight.run(begin, context=ours, recursion_limit=LIMIT))
        assert (found, ours.seen) == (wanted, engines.seen), f"seed {seed}"
        ends.add(type(wanted) if isinstance(wanted, dict) else wanted[0])
    assert {dict, GraphRecursionError} < ends, "the graphs are too much alike"


async def test_its_state_is_the_run_s_own() -> None:
    journeys = [Journey(3)]
    straight = StraightGraph(graph_of(3, journeys))
    first = await outcome(straight.run({"message": "Hi"}, context=journeys[-1], recursion_limit=LIMIT))
    journeys.append(Journey(3))
    assert await outcome(straight.run({"message": "Hi"}, context=journeys[-1], recursion_limit=LIMIT)) == first
    assert journeys[0].seen == journeys[1].seen != []


def two_nodes(second: Callable[..., Any]) -> Any:
    async def first(state: Whole) -> Whole:
        return {"a": 1}

    graph = StateGraph(Whole)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    return graph.compile()


@pytest.mark.parametrize("straight", [True, False])
async def test_a_cancelled_run_cancels_the_node_that_runs(straight: bool) -> None:
    events: list[str] = []
    reached = asyncio.Event()

    async def waits(state: Whole) -> Whole:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append(f"cancelled with {state['a']}")
            raise
        finally:
            events.append("left")
        return {}

    graph = two_nodes(waits)
    run = StraightGraph(graph).run({}, context=None, recursion_limit=LIMIT) if straight else graph.ainvoke({"a": 0})
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run)
        await reached.wait()
        task.cancel()
    assert task.cancelled()
    assert events == ["cancelled with 1", "left"]


async def test_a_failure_names_its_node() -> None:
    async def fails(state: Whole) -> Whole:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        await StraightGraph(two_nodes(fails)).run({}, context=None, recursion_limit=LIMIT)
    assert raised.value.__notes__ == ["in node 'second'"]


def noop(state: Whole) -> Whole:
    return {}


async def anoop(state: Whole) -> Whole:
    return {}


class Messages(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], add_messages]


class Limited(TypedDict, total=False):
    left: RemainingSteps


class Point:
    """A state that is no TypedDict."""

    x: int = 0


def one_node(schema: Any = Whole, node: Any = anoop, **how: Any) -> StateGraph[Any, Any, Any, Any]:
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(schema)
    graph.add_node("node", node, input_schema=schema, **how)
    graph.add_edge(START, "node")
    return graph


def fan_out() -> Any:
    graph = one_node()
    graph.add_node("left", anoop)
    graph.add_node("right", anoop)
    graph.add_edge("node", "left")
    graph.add_edge("node", "right")
    return graph.compile()


def joined() -> Any:
    graph = one_node()
    graph.add_node("other", anoop)
    graph.add_node("after", anoop)
    graph.add_edge(START, "other")
    graph.add_edge(["node", "other"], "after")
    return graph.compile()


def undeclared_choice() -> Any:
    graph = one_node()
    graph.add_conditional_edges("node", lambda _state: END)
    return graph.compile()


def chosen_by_a_runnable() -> Any:
    graph = one_node()
    graph.add_conditional_edges("node", RunnableLambda(lambda _state: END, name="chooses"), [END])
    return graph.compile()


def wants_config() -> Any:
    async def node(state: Whole, store: Any) -> Whole:
        return {}

    from langgraph.store.base import BaseStore

    node.__annotations__["store"] = BaseStore
    return one_node(node=node).compile()


async def goes_elsewhere(state: Whole) -> Command[Any]:
    return Command(goto=END)


REFUSED = {
    "checkpointer": lambda: one_node().compile(checkpointer=InMemorySaver()),
    "interrupts": lambda: one_node().compile(interrupt_before=["node"]),
    "managed values": lambda: one_node(Limited).compile(),
    "waits for several": joined,
    "leads to several": fan_out,
    "retry_policy": lambda: one_node(retry_policy=RetryPolicy()).compile(),
    "defer": lambda: one_node(defer=True).compile(),
    "timeout": lambda: one_node(timeout=3).compile(),
    "no async function": lambda: one_node(node=noop).compile(),
    "store": wants_config,
    "not declared": undeclared_choice,
    "RunnableLambda": chosen_by_a_runnable,
    "ends": lambda: one_node(node=goes_elsewhere, destinations=(END,)).compile(),
    "TypedDict": lambda: one_node(Point).compile(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_what_only_the_engine_runs(what: str) -> None:
    with pytest.raises(NotStraight, match=what):
        StraightGraph(REFUSED[what]())


async def test_never_takes_two_ways_at_once() -> None:
    graph = one_node()
    graph.add_node("other", anoop)
    graph.add_conditional_edges("node", lambda _state: ["other", END], ["other", END])
    with pytest.raises(InvalidUpdateError, match="several"):
        await StraightGraph(graph.compile()).run({}, context=None, recursion_limit=LIMIT)


async def test_reduces_by_any_plain_function() -> None:
    async def says(state: Messages) -> Messages:
        return {"messages": [("human", f"after {len(state['messages'])}")]}  # type: ignore[list-item]

    graph = one_node(Messages, says).compile()
    begin = {"messages": [("human", "Hi")]}
    found = await StraightGraph(graph).run(begin, context=None, recursion_limit=LIMIT)
    wanted = await graph.ainvoke(begin)
    assert [said.text for said in found["messages"]] == [said.text for said in wanted["messages"]] == ["Hi", "after 1"]


@pytest.mark.parametrize("module", [plain, rag])
def test_our_own_agents_are_named(module: ModuleType) -> None:
    assert module.__name__ in STRAIGHT
    assert tools.__name__ not in STRAIGHT, "it asks people, which needs checkpoints"


class Watcher(AsyncCallbackHandler):
    """Notes the names of the chains that begin."""

    def __init__(self) -> None:
        self.began: list[Any] = []

    async def on_chain_start(self, serialized: Any, inputs: Any, **about: Any) -> None:  # noqa: ARG002 - its names
        self.began.append(about.get("name"))


def agent_of(*, straight: bool) -> tuple[Agent, list[bool]]:
    """An agent of one node, and for each run whether it was LangGraph's engine that ran it."""
    by_engine: list[bool] = []

    async def answer(state: AgentState, runtime: Runtime[AgentRun]) -> AgentState:
        by_engine.append(var_child_runnable_config.get() is not None)
        assert runtime.context.message == state["message"]
        return {"answer": AgentAnswer("said")}

    graph = StateGraph(AgentState, context_schema=AgentRun)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return Agent(settings_for(), graph.compile(name="Georges"), 40, straight=straight), by_engine


async def test_a_team_s_graph_is_run_by_the_engine() -> None:
    agent, by_engine = agent_of(straight=False)
    assert (await agent.run(Turn().run)).text == "said"
    assert by_engine == [True]


async def test_a_handler_hears_what_it_would_hear_of_the_engine() -> None:
    agent, by_engine = agent_of(straight=True)
    heard = []
    for one in (agent, agent_of(straight=False)[0]):
        handler = Watcher()
        with set_config_context({"callbacks": [handler]}) as context:
            async with asyncio.TaskGroup() as group:
                group.create_task(one.run(Turn().run), context=context)
        heard.append(handler.began)
    assert heard[0] == heard[1] == ["Georges", "answer"]
    assert (await agent.run(Turn().run)).text == "said"
    assert by_engine == [True, False]


async def test_a_configured_handler_hears_every_run() -> None:
    handler = Watcher()
    graph = StateGraph(AgentState, context_schema=AgentRun)

    async def answer(_state: AgentState) -> AgentState:
        return {"answer": AgentAnswer("said")}

    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    agent = Agent(settings_for(), graph.compile(name="Georges"), 40, straight=True, callbacks=[handler])
    assert (await agent.run(Turn().run)).text == "said"
    assert handler.began == ["Georges", "answer"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("langchain_core.callbacks", "must be package.module:Class"),
        ("no_such_module:Handler", "ModuleNotFoundError"),
        ("langchain_core.callbacks:NoSuchHandler", "AttributeError"),
        ("collections:OrderedDict", "makes no BaseCallbackHandler"),
        ("pathlib:PurePath.x", "AttributeError"),
    ],
)
def test_a_handler_that_cannot_be_made_is_named(path: str, reason: str) -> None:
    with pytest.raises(HandlerUnusable, match=f"tracing.callbacks: {path} .*{reason}"):
        load_handlers((path,))


def test_a_handler_is_made_of_its_class() -> None:
    (made,) = load_handlers(("langchain_core.callbacks:StdOutCallbackHandler",))
    assert type(made).__name__ == "StdOutCallbackHandler"


def test_an_agent_of_ours_that_is_not_straight_does_not_compile() -> None:
    kit = AgentKit(FakeModel("x"), "m")
    with pytest.raises(NotStraight, match="managed values"):
        Agent(settings_for(), tools.build(settings_for(), kit), 40, straight=True)
