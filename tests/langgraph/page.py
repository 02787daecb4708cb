"""A chat page on LangGraph's hook for React, in a process of Node."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from tests.checks.source import ROOT
from tests.langgraph.stage import BEARER, url_of
from tests.page.__main__ import install
from tests.support.patience import PATIENCE_S
from tests.support.service import ServiceClient

HERE: Final = Path("tests/langgraph")
Told = dict[str, Any]


@dataclass(slots=True)
class Page:
    """What a person does on it; each answer has what it shows then."""

    process: asyncio.subprocess.Process
    options: dict[str, Any] = field(default_factory=dict)

    async def do(self, what: str, warns: bool = False, **given: Any) -> Told:
        """Let it do something. It has nothing to warn of, unless it `warns`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"does": what, **given}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_S):
            line = await self.process.stdout.readline()
        done: Told = json.loads(line)
        assert "failed" not in done, done["failed"]
        assert warns or done["warnings"] == [], done["warnings"]
        return done

    async def open(self, service: ServiceClient, agent: str, **options: Any) -> None:
        """A new page."""
        headers = options.pop("headers", BEARER)
        self.options = {"url": url_of(service), "assistant": agent, "headers": headers, **options}
        await self.do("open", **self.options)
        await self.do("until", fetched=True)

    async def reload(self, thread_id: str) -> None:
        """The same tab again, on this thread."""
        await self.do("open", reload=True, **{**self.options, "threadId": thread_id})

    async def say(self, text: str, **options: Any) -> str:
        """Send a message; its id. What comes of it is waited for by `until`."""
        message_id = str(uuid4())
        await self.do("say", message=human_message(text, message_id), options=options)
        return message_id

    async def until(self, **what: Any) -> Told:
        """What it shows once this holds: `loading`, a `count` of messages, a line that `contains`, a question."""
        return await self.do("until", **what)

    async def asked(self, text: str) -> Told:
        """What it shows after a message is answered."""
        await self.say(text)
        return await self.until(loading=False)


def human_message(text: str, message_id: str | None = None) -> Told:
    """A message as agent-chat-ui sends it."""
    return {"id": message_id or str(uuid4()), "type": "human", "content": [{"type": "text", "text": text}]}


@asynccontextmanager
async def chat_page() -> AsyncIterator[Page]:
    """The page, until the block ends."""
    install(folder=HERE)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", "hook.mjs", cwd=ROOT / HERE, stdin=pipe, stdout=pipe, limit=2**24
    )
    try:
        yield Page(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
