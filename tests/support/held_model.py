"""A model that answers when the test says so: a turn runs for as long as the test has use for it, on any machine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, Write, finish, scripted, token


@dataclass(frozen=True, slots=True)
class HeldModel:
    """Every call streams what it begins with, waits until `go` is set, then streams `one two three`."""

    base_url: str
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ai(self) -> dict[str, Any]:
        """The section of the configuration that makes it the model of all agents."""
        return {"default_chat_model": self.named}

    @property
    def named(self) -> dict[str, Any]:
        """A model of the configuration."""
        return {"name": "held", "settings": {"base_url": self.base_url}}


@asynccontextmanager
async def held_model(begins: str = "") -> AsyncIterator[HeldModel]:
    """Serve it on a free port until the block ends. `begins` is what it says before it waits."""
    go = asyncio.Event()

    async def answer(write: Write) -> None:
        await write(SSE_HEAD)
        if begins:
            await write(token(begins))
        await go.wait()
        for piece in (token("one"), token(" two"), token(" three"), finish(), DONE):
            await write(piece)

    async with scripted(answer) as server:
        yield HeldModel(server.base_url, go)
