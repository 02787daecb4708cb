"""A graph whose builder opens something for as long as the service runs, and one whose builder fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.graph import MessagesState, StateGraph

log: list[str] = []


@asynccontextmanager
async def graph() -> AsyncIterator[Any]:
    """Logs when it opens and when it closes."""
    log.append("opened")
    yield StateGraph(MessagesState).add_node("say", lambda _: {}).set_entry_point("say")
    log.append("closed")


async def broken() -> Any:
    """As where something that it needs is down."""
    raise ConnectionError("nobody answers")
