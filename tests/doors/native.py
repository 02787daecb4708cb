"""The doors of our own protocols: sockets of both dialects, event streams, and REST, which reads."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar
from uuid import uuid4

import aiohttp
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.doors.talk import Event, Heard, Refusal, Refusals, Talk, hear, spent
from tests.support.following import TERMINAL, ask_frame, resume_frame, stream_events
from tests.support.patience import PATIENCE_S
from tests.support.schema import validate_compatible, validate_native
from tests.support.service import BASE, hear_raw, say

Frame = dict[str, Any]
ENDS = TERMINAL | {"awaiting_human"}
STREAM = f"{BASE}/chatbot/query/stream"


def of_messages(messages: list[Frame]) -> list[Heard]:
    """What the messages of an exchange say at its end."""
    answer = messages[-1]
    links = [part["href"] for part in answer["parts"] if part["type"] == "link" and part.get("kind") == "citation"]
    heard = [Heard("citation", link) for link in links]
    if "usage" in answer["metadata"].get("extras", {}):
        heard.append(Heard("usage", spent(answer)))
    return [*heard, Heard("end", answer["metadata"]["finish_reason"])]


def of_native(frame: Frame, status: int = 0) -> tuple[Heard, ...]:
    """What a native frame says."""
    kind = frame["type"]
    if kind in ("delta", "thought"):
        return (Heard("text" if kind == "delta" else "reasoning", frame["text"]),)
    if kind == "error":
        told = Refusal(frame["code"], status, frame.get("field"), "retry_after_ms" in frame)
        return (Heard("refusal", told),)
    if kind == "awaiting_human":
        return (Heard("question", frame["payload"]["question"]),)
    return tuple(of_messages(frame["messages"])) if kind in ("final", "cancelled") else ()


class Native(Talk):
    """A WebSocket that speaks turnwise.v1."""

    row = "WebSocket, native"
    refusals = Refusals(
        Refusal("agent_not_found"),
        Refusal("message_too_long", field="message"),
        Refusal("llm_protocol"),
        Refusal("rate_limited", later=True),
        Refusal("", 4409),
    )
    newest_wins = True
    more: ClassVar[Frame] = {}
    """What its asks have beside the question."""

    async def begin(self) -> None:
        agent = "Georges" if self.agent == "Nobody" else self.agent
        self.session_id = await self.service.create_session(agent_id=agent)
        self._asked: Frame = {}

    def ask(self, text: str) -> AsyncIterator[Event]:
        self.exchange = uuid4().hex
        self._asked = {**ask_frame(self.session_id, self.exchange, text), "agent_id": self.agent, **self.more}
        return self._over(self._asked)

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:
        if not heard:
            return self._over(self._asked)
        return self._over(resume_frame(self.session_id, self.exchange, heard[-1].position))

    def allow(self) -> AsyncIterator[Event]:
        answer = {"type": "human_resume", "payload": {"choice_id": "allow"}, "agent_id": self.agent}
        return self._over({**answer, "session_id": self.session_id, "exchange_id": self.exchange})

    async def cancel(self) -> None:
        async with self.service.native() as other:
            frame = {"type": "cancel", "exchange_id": self.exchange}
            self.wire.note(json.dumps(frame))
            await say(other, **frame)
            await (await other.ping())

    async def _over(self, frame: Frame) -> AsyncIterator[Event]:
        self.wire.note(json.dumps(frame))
        async with self.service.native() as socket:
            try:
                await say(socket, **frame)
                while (text := await self._next(socket)) is not None:
                    self.wire.note(text)
                    heard = json.loads(text)
                    validate_native(heard)
                    if heard["type"] in ("heartbeat", "session"):
                        continue  # a session's title reaches the sockets of its user out of turn
                    yield Event(of_native(heard), heard.get("seq", 0))
                    if heard["type"] in ENDS:
                        return
                yield _closed(socket)
            finally:
                socket.transport.abort()

    async def _next(self, socket: ClientConnection) -> str | None:
        """The next frame, None where the service has closed the socket."""
        try:
            return await hear_raw(socket)
        except ConnectionClosed:
            self.wire.note(socket.close_code)
            return None


def _closed(socket: ClientConnection) -> Event:
    return Event((Heard("refusal", Refusal("", socket.close_code or 0)),))


class Compatible(Native):
    """A WebSocket of the compatible protocol."""

    row = "WebSocket, compatible"
    from_the_beginning = True
    refusals = Refusals(
        Refusal("agent_not_found", 1011),
        Refusal("message_too_long", 1011),
        Refusal("llm_protocol"),
        Refusal("rate_limited", 1011),
        Refusal("", 4409),
    )

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:  # noqa: ARG002 - told from the beginning
        return self._over(self._asked)

    async def cancel(self) -> None:
        self.wire.note(4000)
        await self._socket.close(4000, "client_stop")

    hears_the_end = False

    async def _over(self, frame: Frame) -> AsyncIterator[Event]:
        self.wire.note(json.dumps(frame))
        async with self.service.compatible() as socket:
            self._socket: ClientConnection = socket
            try:
                await say(socket, **frame)
                while (text := await self._next(socket)) is not None:
                    self.wire.note(text)
                    heard = json.loads(text)
                    validate_compatible(heard)
                    if heard["type"] == "error":
                        async with asyncio.timeout(PATIENCE_S):
                            await socket.wait_closed()
                        self.wire.note(socket.close_code)
                    yield Event(_of_compatible(heard, socket.close_code or 0))
                    if heard["type"] in ENDS:
                        return
                yield _closed(socket)
            finally:
                socket.transport.abort()


def _of_compatible(frame: Frame, closed: int) -> tuple[Heard, ...]:
    kind = frame["type"]
    if kind == "stream":
        message = frame["message"]
        if message["role"] != "assistant" or message["channel"] != "final":
            return ()
        return (Heard("text", "".join(part["text"] for part in message["parts"] if part["type"] == "text")),)
    if kind == "error":
        return (Heard("refusal", Refusal(frame["code"], closed)),)
    if kind == "awaiting_human":
        return (Heard("question", frame["payload"]["question"]),)
    if kind != "final":
        return ()
    failure = frame["messages"][-1]["metadata"].get("extras", {}).get("error")
    return tuple(of_messages(frame["messages"])) if failure is None else (Heard("refusal", Refusal(failure)),)


class Stream(Native):
    """The native events as an event stream over HTTP."""

    row = "Event stream"
    refusals = Refusals(
        Refusal("agent_not_found", 404),
        Refusal("message_too_long", 422, "message"),
        Refusal("llm_protocol", 200),
        Refusal("rate_limited", 429, later=True),
        Refusal("rate_limited", 429, later=True),
    )
    newest_wins = False

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:
        after = heard[-1].position if heard else None
        return self._over(self._asked, **({} if after is None else {"Last-Event-ID": str(after)}))

    async def _over(self, frame: Frame, **headers: str) -> AsyncIterator[Event]:
        self.wire.note(json.dumps(frame), headers)
        async with self.service.http.post(STREAM, json=frame, headers=headers) as response:
            try:
                if response.status != 200:
                    yield await refused(self, response)
                    return
                async for event in stream_events(response):
                    if "data" not in event:
                        continue
                    self.wire.note(f"event: {event['event']}", event["data"])
                    heard = json.loads(event["data"])
                    validate_native(heard)
                    yield Event(of_native(heard, response.status), heard.get("seq", 0))
            finally:
                response.close()


class LeavingStream(Stream):
    """The same, by a client whose leaving stops its turn."""

    more = {"on_disconnect": "cancel"}
    hears_the_end = False


async def refused(talk: Talk, response: aiohttp.ClientResponse) -> Event:
    """What an HTTP error in REST's form says."""
    talk.wire.note(response.status, *response.headers, await response.text())
    detail = (await response.json())["detail"]
    later = "Retry-After" in response.headers
    return Event((Heard("refusal", Refusal(detail["code"], response.status, detail.get("field"), later)),))


class Rest(Native):
    """REST, which reads what the other doors keep. Its question is asked by another client's event stream."""

    row = "REST"

    async def events(self) -> list[Event]:
        """What history says of the conversation's newest exchange."""
        path = f"{BASE}/chatbot/session/{self.session_id}/history"
        async with self.service.http.get(path) as response:
            self.wire.note(path, await response.text())
            messages = await response.json()
        if not messages:
            return []
        answer = messages[-1]
        heard = [Heard("text", "".join(part["text"] for part in answer["parts"] if part["type"] == "text"))]
        extras = answer["metadata"].get("extras", {})
        if "awaiting" in extras:
            heard = [Heard("question", extras["awaiting"]["payload"]["question"])]
        if "error" in extras:
            heard.append(Heard("refusal", Refusal(extras["error"], response.status)))
        thoughts = [one for one in messages if one["metadata"].get("extras", {}).get("reasoning")]
        heard += [Heard("reasoning", part["text"]) for one in thoughts for part in one["parts"]]
        return [Event((*heard, *of_messages(messages)))] if "awaiting" not in extras else [Event(tuple(heard))]

    async def _over(self, frame: Frame) -> AsyncIterator[Event]:
        """What REST has of it once it has ended; another client, which is not of this door, asks."""
        asking = Stream(self.service, self.agent, type(self.wire)())
        async with aclosing(asking._over(frame)) as events:  # type: ignore[type-var]
            heard = await hear(events)
        if any(one.kind == "refusal" and one.value.status != 200 for event in heard for one in event.heard):
            return
        for event in await self.events():
            yield event
