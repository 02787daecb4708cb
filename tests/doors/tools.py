"""The agents as tools of MCP, by its official client."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from mcp import MCPError
from mcp_types import CallToolResult, ElicitResult, ResourceLink

from tests.doors.talk import Event, Heard, Refusal, Refusals, Talk
from tests.support.mcp_client import mcp_client


class Mcp(Talk):
    """A client that waits for the result of its calls, in a conversation that it names."""

    row = "MCP"
    refusals = Refusals(
        Refusal("-32602"),
        Refusal("message_too_long", field="question"),
        Refusal("llm_protocol"),
        Refusal("rate_limited", later=True),
    )
    hears_the_end = False
    progress: ClassVar[bool] = False
    form: ClassVar[ElicitResult | None] = None
    """What the client's user answers in a form, None where it shows none."""

    async def begin(self) -> None:
        agent = "Georges" if self.agent == "Nobody" else self.agent
        self.session_id = await self.service.create_session(agent_id=agent)

    def ask(self, text: str) -> AsyncIterator[Event]:
        return self._over(text)

    def allow(self) -> AsyncIterator[Event]:
        return self._over("allow")

    async def _over(self, text: str) -> AsyncIterator[Event]:
        # In a task of its own: the client may be left from another one than it was entered in.
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        calling = asyncio.ensure_future(self._call(text, events))
        calling.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await calling
        finally:
            calling.cancel()
            await asyncio.wait([calling])

    async def _call(self, text: str, events: asyncio.Queue[Event | None]) -> None:
        said: list[str] = []

        async def note(_progress: float, _total: float | None, message: str | None) -> None:
            self.wire.note(f"notifications/progress {message}")
            said.append(message or "")
            events.put_nowait(Event((Heard("text", message or ""),)))

        async def fill(_context: Any, params: Any) -> ElicitResult:
            self.wire.note(f"elicitation {params}")
            assert self.form is not None
            return self.form

        more = {"progress_callback": note} if self.progress else {}
        shows = {"elicitation_callback": fill} if self.form is not None else {}
        async with mcp_client(self.service.port, **shows) as client:
            arguments = {"question": text, "session_id": self.session_id}
            name = f"ask_{self.agent}"
            self.wire.note(name, json.dumps(arguments), *(["progressToken"] if self.progress else []))
            try:
                result = await client.call_tool(name, arguments, **more)
            except MCPError as error:
                self.wire.note(error.error.code, error.error.message)
                events.put_nowait(Event((Heard("refusal", Refusal(str(error.error.code))),)))
                return
        self.wire.note(result.model_dump_json(by_alias=True))
        events.put_nowait(Event(tuple(_of_result(result, "".join(said)))))
        with contextlib.suppress(KeyError):
            self.exchange = result.structured_content["exchange_id"]


def _of_result(result: CallToolResult, said: str) -> list[Heard]:
    told = result.structured_content
    if result.is_error:
        return [Heard("refusal", Refusal(told["code"], 0, told.get("field"), "retry_after_s" in told))]
    if told["status"] == "awaiting_human":
        return [Heard("question", told["answer"])]
    links = [Heard("citation", str(block.uri)) for block in result.content if isinstance(block, ResourceLink)]
    rest = told["answer"].removeprefix(said)
    return [Heard("text", rest), *links, Heard("end", {"final": "stop"}.get(told["status"], told["status"]))]


class Following(Mcp):
    """One that is told what the agent says while it says it."""

    progress = True


class WithForms(Mcp):
    """One whose user answers forms."""

    form = ElicitResult(action="accept", content={"choice": "allow"})
