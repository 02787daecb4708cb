"""Graphs made from a seed: nodes that read, write, fail and wait, joined by edges and choices, one active at a time."""

import asyncio
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime


class Whole(TypedDict, total=False):
    """The state. Two keys are reduced, one of them from a list."""

    message: str
    a: Any
    b: Any
    total: Annotated[int, operator.add]
    said: Annotated[list[str], operator.add]
    answer: Any


class Narrow(TypedDict, total=False):
    """What some nodes and choices are given of it."""

    message: str
    a: Any
    said: Annotated[list[str], operator.add]


class Begin(TypedDict, total=False):
    """The input."""

    message: str
    total: int


class Ends(TypedDict, total=False):
    """What some graphs give back."""

    answer: Any
    total: Annotated[int, operator.add]


@dataclass
class Journey:
    """The context of a run: what its functions were given, in order, and what each does next."""

    seed: int
    seen: list[tuple[str, Any]] = field(default_factory=list)

    def note(self, name: str, state: Any) -> random.Random:
        """Note a call. Returns the dice of its visit, the same for the same visit of any run."""
        self.seen.append((name, {key: list(value) if type(value) is list else value for key, value in state.items()}))
        return random.Random(f"{self.seed}/{name}/{len(self.seen)}")  # noqa: S311 - which update, no secret


FAILURES: tuple[Callable[[], Exception], ...] = (
    lambda: ValueError("no"),
    lambda: KeyError("a"),
    lambda: RuntimeError("broken"),
    TimeoutError,
)


def update_of(dice: random.Random) -> Any:
    """What a node returns: mostly some keys, also of others' state; sometimes nothing, or what is no update."""
    kind = dice.random()
    if kind < 0.1:
        return None
    if kind < 0.13:
        return 7
    made: dict[str, Any] = {
        "a": dice.randrange(9),
        "b": str(dice.random()),
        "total": dice.randrange(5),
        "said": [str(dice.randrange(100))],
        "answer": dice.randrange(1000),
        "unknown": dice.randrange(9),
        "message": "again",
    }
    return {key: made[key] for key in dice.sample(sorted(made), dice.randrange(len(made) + 1))}


def node_of(name: str, reads: Any, *, with_runtime: bool, fails: float, journeys: list[Journey]) -> Any:
    """An async node. One without a runtime notes in the newest journey."""

    async def work(state: Any, journey: Journey) -> Any:
        dice = journey.note(name, state)
        if dice.random() < 0.5:
            await asyncio.sleep(0)
        if dice.random() < fails:
            raise dice.choice(FAILURES)()
        return update_of(dice)

    async def aware(state: Any, runtime: Runtime[Journey]) -> Any:
        return await work(state, runtime.context)

    async def plain(state: Any) -> Any:
        return await work(state, journeys[-1])

    function = aware if with_runtime else plain
    function.__annotations__["state"] = reads
    return function


def choice_of(name: str, answers: list[Any], reads: Any, *, awaited: bool, journeys: list[Journey]) -> Any:
    """A function that says where to go; the last of `answers` is one that nobody declared."""

    def choose(state: Any, runtime: Runtime[Journey]) -> Any:
        dice = runtime.context.note(name, state)
        assert runtime.context is journeys[-1]
        said = answers[-1] if dice.random() < 0.03 else dice.choice(answers[:-1])
        return [said] if dice.random() < 0.2 else said

    async def choose_later(state: Any, runtime: Runtime[Journey]) -> Any:
        await asyncio.sleep(0)
        return choose(state, runtime)

    function = choose_later if awaited else choose
    if reads is not None:
        function.__annotations__["state"] = reads
    else:
        function.__annotations__.pop("state")
    return function


def graph_of(seed: int, journeys: list[Journey]) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of a seed. `journeys` are the contexts of its runs, the newest last."""
    dice = random.Random(seed)  # noqa: S311 - which graph, no secret
    names = [f"n{number}" for number in range(dice.randint(1, 5))]
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(
        Whole, context_schema=Journey, input_schema=Begin, output_schema=dice.choice([Whole, Ends])
    )
    for name in names:
        reads = dice.choice([Whole, Narrow])
        with_runtime = dice.random() < 0.7
        fails = dice.choice([0, 0, 0.1])
        graph.add_node(name, node_of(name, reads, with_runtime=with_runtime, fails=fails, journeys=journeys))
    for name in (START, *names):
        if name == START or dice.random() < 0.6:
            graph.add_edge(name, dice.choice(names) if name == START else dice.choice([*names, END]))
        elif dice.random() < 0.8:
            ends = dice.sample([*names, END], dice.randint(1, len(names) + 1))
            choice = choice_of(
                f"after {name}",
                [*ends, "nowhere"],
                dice.choice([None, Whole, Narrow]),
                awaited=dice.random() < 0.5,
                journeys=journeys,
            )
            graph.add_conditional_edges(name, choice, {end: end for end in ends})
    return graph.compile()


def kind_of(failure: BaseException) -> tuple[type[BaseException], str]:
    """What two runs must agree on: the type, and the text where it is the node's own."""
    engines_own = isinstance(failure, GraphRecursionError | InvalidUpdateError)
    return type(failure), "" if engines_own else str(failure)
