"""Workers side by side, each of them a graph of its own, and one who sums up what they found."""

from operator import add
from typing import Annotated

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

from tests.hosted.graphs.models import model


class Worker(MessagesState):
    topic: str
    found: Annotated[list[str], add]


class Team(MessagesState):
    found: Annotated[list[str], add]


async def look(state: Worker) -> dict[str, object]:
    answer = await model.ainvoke([HumanMessage(f"Look up {state['topic']}")])
    return {"found": [answer.text], "messages": [answer]}


def note(state: Worker) -> dict[str, object]:
    return {"messages": [AIMessage(f"Noted {state['topic']}.")]}


worker = (
    StateGraph(Worker).add_node("look", look).add_node("note", note).add_edge(START, "look").add_edge("look", "note")
).compile()


def split(state: Team) -> list[Send]:
    return [Send("worker", {"topic": topic}) for topic in str(state["messages"][-1].content).split(" and ")]


async def join(state: Team) -> dict[str, object]:
    return {"messages": [await model.ainvoke([HumanMessage("Sum up: " + "; ".join(sorted(state["found"])))])]}


graph = (
    StateGraph(Team)
    .add_node("worker", worker)
    .add_node("join", join)
    .add_conditional_edges(START, split, ["worker"])
    .add_edge("worker", "join")
    .compile()
)
