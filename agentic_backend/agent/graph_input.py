"""What a client of LangGraph's own API may ask of a hosted graph, beyond a question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages

from agentic_backend.errors import BadRequest

GraphDurability = Literal["exit", "async", "sync"]
"""When LangGraph stores the state: at the end, while the next step runs, or before it."""
GraphMode = Literal["values", "updates"]
"""A mode of LangGraph's stream that a client may want to see: the state after each step, or what each node wrote.
What nodes write for clients (`custom`) every door says anyway."""

MESSAGES: Final = "messages"
"""The channel of a graph that can be served as chat."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a graph's state without a run, as if the node `as_node` had returned `values`; without a node, the
    one that wrote last."""

    values: Any = None
    as_node: str | None = None


@dataclass(frozen=True, slots=True)
class GraphInput:
    """How a run of a hosted graph begins, and what is to be said of it. All values are JSON.

    `input` fills the graph's input channels in place of the question; of its `messages` the last human one is the
    question of the exchange, which the ask repeats as its text. With `continues` the graph goes on from its state, with
    no input. `update` and `goto` are those of a `Command`, also beside a person's answer: nodes by their names, or
    `{"node": name, "input": value}`. Without any of these the question is passed on as in a chat.

    `change` changes the state, and runs nothing: the exchange has no text, and its answer names the new state.

    `checkpoint` is the state to begin from, by its id in `HostedAgent.state`; "": the newest that history names.
    `context` and `configurable` are those of LangGraph; what the operator has configured counts before them.
    `durability` may be stronger than the configured one, not weaker. `modes` and `subgraphs` select what is published
    of the run, as `GraphOutput`.
    """

    input: Mapping[str, Any] | None = None
    continues: bool = False
    update: Mapping[str, Any] | None = None
    goto: tuple[str | Mapping[str, Any], ...] = ()
    change: StateChange | None = None
    checkpoint: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    configurable: Mapping[str, Any] = field(default_factory=dict)
    durability: GraphDurability | None = None
    modes: frozenset[GraphMode] = frozenset()
    subgraphs: bool = False

    @property
    def commands(self) -> bool:
        """Whether it has a command beside a person's answer."""
        return self.update is not None or bool(self.goto)

    @property
    def beyond_question(self) -> str | None:
        """The first field that only a graph can take; None where there is none."""
        own = {key for key in self.input or () if key != MESSAGES}
        if own:
            return f"input.{min(own)[:64]}"
        asked = {"command": self.commands, "values": self.change is not None, "checkpoint": bool(self.checkpoint)}
        return next((name for name, given in {**asked, "input": self.continues}.items() if given), None)

    def stored(self) -> dict[str, Any]:
        """This input as a JSON object without the fields that have their default, for `of_stored`."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("modes", "change")}
        if self.change is not None:
            told["change"] = {"values": self.change.values, "as_node": self.change.as_node}
        told["modes"] = sorted(self.modes)
        return {name: value for name, value in told.items() if value not in (None, False, "", (), {}, [])} | (
            {} if self.input is None else {"input": self.input}
        )

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> "GraphInput":
        """The reverse of `stored`. What a later program has added is left out."""
        known = {one.name: stored[one.name] for one in fields(cls) if one.name in stored}
        change = known.pop("change", None)
        return cls(
            **{
                **known,
                "goto": tuple(known.get("goto", ())),
                "modes": frozenset(known.get("modes", ())),
                "change": None if change is None else StateChange(change.get("values"), change.get("as_node")),
            }
        )


def messages_of(given: Any, place: str) -> list[BaseMessage]:
    """The messages that a client sent: one, or a list, each in any form that LangChain reads. Raises `BadRequest` with
    `place` as its field."""
    said: Sequence[Any] = given if isinstance(given, list) else [given]
    try:
        return convert_to_messages(said)
    except (ValueError, TypeError, KeyError, NotImplementedError):
        raise BadRequest("no messages", field=place) from None


def question_in(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """The message that is the question: the last human one, else the last."""
    return next(
        (one for one in reversed(messages) if isinstance(one, HumanMessage)), messages[-1] if messages else None
    )
