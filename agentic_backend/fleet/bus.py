"""The ways by which instances tell one another something (ADR 81)."""

from collections.abc import Callable
from typing import Protocol

from agentic_backend.fleet.messages import Message
from agentic_backend.fleet.statements import CHANNEL, NOTIFY
from agentic_backend.persist.queries import Queries


class Bus(Protocol):
    """Carries messages to the instances that run now. Nothing is kept for others, and one may come twice."""

    async def send(self, message: Message) -> None:
        """Tell it to the instance that it names, or to all. Raises `HistoryUnavailable` where that cannot be done."""


class PostgresBus:
    """NOTIFY, which each instance hears on the connection by which it renews (`Membership`)."""

    def __init__(self, queries: Queries, on_sent: Callable[[], None] = lambda: None) -> None:
        self._queries = queries
        self._on_sent = on_sent

    async def send(self, message: Message) -> None:
        """See `Bus`."""
        await self._queries.fetch("notify", NOTIFY, {"channel": CHANNEL, "message": message.encode()})
        self._on_sent()
