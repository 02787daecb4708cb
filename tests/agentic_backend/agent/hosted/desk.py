"""A graph with channels beyond its messages, a context, a graph within it and a question to a person."""

import asyncio
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel

from agentic_backend.sdk import TurnModel

model = TurnModel()


@dataclass
class Manner:
    """How the desk speaks."""

    tone: str = "plain"
    place: str = "nowhere"


class Desk(MessagesState):
    topic: str
    notes: Annotated[list[Any], add]


async def look(state: Desk) -> dict[str, Any]:
    return {"notes": [f"looked up {state.get('topic', 'nothing')}"]}


looking = StateGraph(Desk).add_node("look", look).add_edge(START, "look").compile()


async def within(state: Desk) -> dict[str, Any]:
    found = await looking.ainvoke({"topic": state.get("topic", "nothing"), "messages": [], "notes": []})
    return {"notes": found["notes"]}


async def think(state: Desk, runtime: Runtime[Manner]) -> dict[str, Any]:
    told = SystemMessage(f"{runtime.context.tone} about {state.get('topic', 'nothing')} in {runtime.context.place}")
    return {"messages": [await model.ainvoke([told, *state["messages"]])]}


def sure(state: Desk) -> dict[str, Any]:
    if "ask" not in state.get("topic", ""):
        return {}
    return {"notes": [interrupt({"sure": state["topic"]})]}


def close(state: Desk, config: RunnableConfig) -> dict[str, Any]:
    where = config["configurable"]
    return {"notes": [{key: where[key] for key in ("colour", "user_id") if key in where}]}


def _built(sub: Any) -> StateGraph[Any, Any, Any, Any]:
    flow = StateGraph(Desk, context_schema=Manner)
    flow.add_node("within", sub)
    flow.add_node("think", think)
    flow.add_node("sure", sure)
    flow.add_node("close", close)
    flow.add_edge(START, "within")
    flow.add_edge("within", "think")
    flow.add_edge("think", "sure")
    flow.add_edge("sure", "close")
    flow.add_edge("close", END)
    return flow


graph = _built(looking).compile()


def per_run(config: RunnableConfig) -> Any:
    """The same, made for each run."""
    assert config["configurable"]["user_id"]
    return _built(within).compile()


class Steps:
    """What holds the second step of `stepping` until the test lets it go, and how often the first was done."""

    def __init__(self) -> None:
        self.done = 0
        self.reached = asyncio.Event()
        self.go = asyncio.Event()


steps = Steps()


async def first(state: Desk) -> dict[str, Any]:
    steps.done += 1
    return {"messages": [AIMessage(f"First of {state['topic']}.")]}


async def second(state: Desk) -> dict[str, Any]:
    steps.reached.set()
    await steps.go.wait()
    return {"messages": [AIMessage(f"Second after {len(state['messages'])}.")]}


stepping = (
    StateGraph(Desk)
    .add_node("first", first)
    .add_node("second", second)
    .add_edge(START, "first")
    .add_edge("first", "second")
    .compile()
)


def doubt(state: Desk) -> dict[str, Any]:
    return {"notes": [interrupt("Really?")]}


asking = (
    StateGraph(Desk).add_node("look", look).add_node("doubt", doubt).add_edge(START, "look").add_edge("look", "doubt")
)
nested = StateGraph(Desk).add_node("ask", asking.compile()).add_edge(START, "ask").compile()


class Card(BaseModel):
    """A value of the author's own."""

    title: str
    tags: set[str] = set()


class Cards(MessagesState):
    cards: Annotated[list[Card], add]


def deal(state: Cards) -> dict[str, Any]:
    made = Card(title=state["messages"][-1].text, tags={"new"})
    return {"cards": [made], "messages": [AIMessage(f"Card {len(state.get('cards') or []) + 1}.")]}


dealing = StateGraph(Cards).add_node("deal", deal).add_edge(START, "deal").compile()


def of_openai(config: RunnableConfig) -> Any:
    """A graph whose model is a team's own, at the operator's address."""
    own = ChatOpenAI(model="scripted", api_key="none", base_url=config["configurable"]["url"], stream_usage=True)

    async def chat(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await own.bind_tools([find]).ainvoke(state["messages"])]}

    flow = StateGraph(MessagesState).add_node("chat", chat).add_node("tools", ToolNode([find]))
    return flow.add_edge(START, "chat").add_conditional_edges("chat", tools_condition).add_edge("tools", "chat")


@tool
def find(what: str) -> str:
    """Find it."""
    return f"found {what}"
