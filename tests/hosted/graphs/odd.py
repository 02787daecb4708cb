"""Nodes that do not simply return what a model has streamed, and states that are no `MessagesState`."""

from dataclasses import dataclass, field
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command
from pydantic import BaseModel

from tests.hosted.graphs.models import model


def _of_one_node(node: object, state: type = MessagesState) -> object:
    return StateGraph(state).add_node("node", node).add_edge(START, "node").compile()


def by_hand(_state: MessagesState) -> dict[str, object]:
    return {"messages": AIMessage("By hand.")}


by_hand_graph = _of_one_node(by_hand)


async def wrapped(state: MessagesState) -> dict[str, object]:
    answer = await model.ainvoke(state["messages"])
    return {"messages": [AIMessage(answer.text, name="wrapped")]}


wrapped_graph = _of_one_node(wrapped)


async def quiet(state: MessagesState) -> dict[str, object]:
    silent = model.with_config(tags=["nostream"])
    topic = await silent.ainvoke([HumanMessage("Which topic?")])
    return {"messages": [await model.ainvoke([SystemMessage(topic.text), *state["messages"]])]}


quiet_graph = _of_one_node(quiet)


async def quiet_answer(state: MessagesState) -> dict[str, object]:
    return {"messages": [await model.with_config(tags=["nostream"]).ainvoke(state["messages"])]}


quiet_answer_graph = _of_one_node(quiet_answer)


async def forgets(state: MessagesState) -> dict[str, object]:
    answer = await model.ainvoke(state["messages"])
    summary = SystemMessage(f"There were {len(state['messages'])} messages.")
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), summary, answer]}


forgets_graph = _of_one_node(forgets)


async def trims(state: MessagesState) -> dict[str, object]:
    answer = await model.ainvoke(state["messages"])
    return {"messages": [*(RemoveMessage(id=str(one.id)) for one in state["messages"][:-1]), answer]}


trims_graph = _of_one_node(trims)


class Typed(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    count: int


async def counts(state: Typed) -> Typed:
    return {"messages": [await model.ainvoke(state["messages"])], "count": state.get("count", 0) + 1}


typed_graph = _of_one_node(counts, Typed)


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    count: int = 0


async def counts_in_model(state: Model) -> dict[str, object]:
    return {"messages": [await model.ainvoke(state.messages)], "count": state.count + 1}


pydantic_graph = _of_one_node(counts_in_model, Model)


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    count: int = 0


async def counts_in_data(state: Data) -> dict[str, object]:
    return {"messages": [await model.ainvoke(state.messages)], "count": state.count + 1}


dataclass_graph = _of_one_node(counts_in_data, Data)


class Note(BaseModel):
    text: str


class Notes(MessagesState):
    notes: Annotated[list[Note], lambda old, new: (old or []) + new]


async def notes(state: Notes) -> dict[str, object]:
    """A state with values of a type of the author's own."""
    seen = ", ".join(note.text for note in state.get("notes") or [])
    return {"messages": [AIMessage(f"Seen: {seen}.")], "notes": [Note(text=str(state["messages"][-1].content))]}


notes_graph = _of_one_node(notes, Notes)


def chat(config: RunnableConfig) -> StateGraph:  # type: ignore[type-arg]
    """A factory, which makes the graph for each run."""
    user = config["configurable"].get("user_id", "nobody")

    async def answer(state: MessagesState) -> dict[str, object]:
        return {"messages": [await model.ainvoke([SystemMessage(f"You talk to {user}."), *state["messages"]])]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")


def blocking(state: MessagesState) -> dict[str, object]:
    """A node that is not asynchronous, whose model is none either."""
    return {"messages": [model.invoke(state["messages"])]}


blocking_graph = _of_one_node(blocking)


def blocking_outer(state: MessagesState) -> dict[str, object]:
    """A graph that is called within a node."""
    get_stream_writer()({"step": "outer"})
    return {"messages": blocking_graph.invoke({"messages": state["messages"]})["messages"][-1]}  # type: ignore[attr-defined]


blocking_outer_graph = _of_one_node(blocking_outer)


async def progress(_state: MessagesState) -> Command[str]:
    write = get_stream_writer()
    for done in range(3):
        write({"done": done})
    return Command(goto="end", update={"messages": [AIMessage("Begun.")]})


def end(_state: MessagesState) -> dict[str, object]:
    get_stream_writer()("the end")
    return {"messages": [AIMessage("Done.")]}


progress_graph = StateGraph(MessagesState).add_node("progress", progress).add_node("end", end)
progress_graph.add_edge(START, "progress")


async def streams_itself(state: MessagesState) -> dict[str, object]:
    """A node that streams, and leaves before the model has ended."""
    pieces = []
    async for chunk in model.astream(state["messages"]):
        pieces.append(chunk.text)
        if "stop" in chunk.text:
            break
    return {"messages": [AIMessage("".join(pieces))]}


leaves_graph = _of_one_node(streams_itself)


def silent(_state: MessagesState) -> dict[str, object]:
    return {}


silent_graph = _of_one_node(silent)


many_graph = StateGraph(MessagesState)
for number in range(36):
    many_graph.add_node(f"Node {number}", silent)
    many_graph.add_edge(f"Node {number - 1}" if number else START, f"Node {number}")
