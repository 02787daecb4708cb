"""How a run of a graph begins: LangGraph's input, made of what a client of its API asked for. Functions without I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid5

from langchain_core.messages import BaseMessage
from langgraph.types import Command, Send

from agentic_backend.agent.graph_input import MESSAGES, GraphInput, messages_of, question_in
from agentic_backend.agent.hosted.loading import AnyGraph, input_channels
from agentic_backend.errors import BadRequest

_ID_SPACE: Final = UUID("5f1c2b1e-9d0a-5c5b-8a55-5d5e0f6f2a11")
_NO_NODES: Final = frozenset({"__start__", "__end__"})
_OURS: Final = ("__", "checkpoint", "thread_id", "run_id")
"""How the keys of `configurable` begin that say where LangGraph finds its state. A run with the `run_id` of the one
before would be taken for the rest of that, and its input be dropped."""
_STRENGTH: Final = ("exit", "async", "sync")


@dataclass(frozen=True, slots=True)
class Beginning:
    """The input of a run, and the id of the message in it that is the question; None where it has none.

    `addressed`: the run has to name its checkpoint. What a command writes would else be stored with the newest, which
    a later run may go on from even if this one is stopped.
    """

    told: Any
    question_id: str | None
    addressed: bool = False


def question_id_of(exchange_id: str) -> str:
    """The id of the message that is the question of an exchange, where its client has given it none."""
    return str(uuid5(_ID_SPACE, exchange_id))


def beginning_of(given: GraphInput, exchange_id: str, since: Sequence[BaseMessage]) -> Beginning | None:
    """The input of a run that begins otherwise than with its question; None for one that does not. `since` are messages
    that the graph has not seen, which come before those of the input. Raises `BadRequest`."""
    if given.input is not None:
        told = dict(given.input)
        asked, question_id = _identified(told.get(MESSAGES), exchange_id, f"input.{MESSAGES}")
        if since or asked:
            told[MESSAGES] = [*since, *asked]
        return Beginning(told, question_id)
    if given.commands:
        command, question_id = command_of(given, exchange_id)
        return Beginning(command, question_id, addressed=True)
    if given.continues or given.change is not None:
        return Beginning(None, None, addressed=True)
    return None


def command_of(given: GraphInput, exchange_id: str, **resume: Any) -> tuple[Command[Any], str | None]:
    """The command of an input, and the id of the question in it. Raises `BadRequest`."""
    update, question_id = given.update, None
    if update is not None and MESSAGES in update:
        asked, question_id = _identified(update[MESSAGES], exchange_id, f"command.update.{MESSAGES}")
        update = {**update, MESSAGES: asked}
    return Command(update=update, goto=[_to(one) for one in given.goto], **resume), question_id


def expect_readable(given: GraphInput) -> None:
    """Raise `BadRequest` for what no graph can take."""
    beginning_of(given, "", ())


def expect_taken(given: GraphInput, graph: AnyGraph) -> None:
    """Raise `BadRequest` with the field that this graph does not have."""
    if unknown := (given.input or {}).keys() - set(input_channels(graph)):
        raise BadRequest("no such input", field=f"input.{min(unknown)[:64]}")
    if unknown := (given.update or {}).keys() - graph.channels.keys():
        raise BadRequest("no such channel", field=f"command.update.{min(unknown)[:64]}")
    if not {_name(one) for one in given.goto} <= graph.nodes.keys() - _NO_NODES | {"__end__"}:
        raise BadRequest("no such node", field="command.goto")


def own_keys(configurable: Mapping[str, Any]) -> dict[str, Any]:
    """What a client may set of a run's configuration: nothing that says where its state is."""
    return {key: value for key, value in configurable.items() if not key.startswith(_OURS)}


def stronger(configured: str, wanted: str | None) -> str:
    """When the state is stored: as configured, or earlier."""
    return max(configured, wanted or configured, key=_STRENGTH.index)


def _identified(given: Any, exchange_id: str, place: str) -> tuple[list[BaseMessage], str | None]:
    """The messages, each with an id that it has again in a rerun, and the id of the question."""
    if given is None:
        return [], None
    messages = messages_of(given, place)
    question = question_in(messages)
    for number, one in enumerate(messages):
        if not one.id:
            one.id = question_id_of(exchange_id if one is question else f"{exchange_id}/{number}")
    return messages, None if question is None else question.id


def _name(goto: str | Mapping[str, Any]) -> str:
    return goto if isinstance(goto, str) else str(goto.get("node", ""))


def _to(goto: str | Mapping[str, Any]) -> str | Send:
    return goto if isinstance(goto, str) else Send(_name(goto), goto.get("input"))
