"""Clients that follow a turn over a socket or as an event stream, are cut where the test says, and are compared."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp

from tests.support.schema import validate_native
from tests.support.service import BASE, ServiceClient, hear_raw, say

TERMINAL = {"final", "error", "cancelled"}
FRAGMENTS = {"delta", "thought"}


def ask_frame(session_id: str, exchange_id: str = "e1", message: str = "Hello", **more: Any) -> dict[str, Any]:
    """An ask as a client sends it."""
    head = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": message}
    return {**head, "client_exchange_id": exchange_id, **more}


def resume_frame(session_id: str, exchange_id: str = "e1", after_seq: int = 0) -> dict[str, Any]:
    """What goes on with an exchange."""
    return {"type": "resume", "session_id": session_id, "exchange_id": exchange_id, "after_seq": after_seq}


async def over_socket(service: ServiceClient, frame: dict[str, Any]) -> AsyncIterator[str]:
    """The turn's frames as they come, until its end; closing the iterator cuts the connection without a word."""
    async with service.native() as socket:
        try:
            await say(socket, **frame)
            while True:
                text = await hear_raw(socket)
                frame = json.loads(text)
                if frame["type"] == "heartbeat" or (frame["type"] == "session" and "seq" not in frame):
                    continue  # of no turn
                yield text
                if frame["type"] in TERMINAL:
                    return
        finally:
            socket.transport.abort()


async def heard(frames: AsyncIterator[str], up_to: int | None = None) -> list[str]:
    """The frames up to the one with number `up_to` or above (None: all of them); then the connection is cut."""
    taken: list[str] = []
    async with aclosing(frames):  # type: ignore[type-var] # an async generator
        if up_to == 0:
            return taken
        async for text in frames:
            validate_native(json.loads(text))
            taken.append(text)
            if up_to is not None and seq_of(text) >= up_to:
                break
    return taken


def seq_of(frame: str) -> int:
    """The number of an event, 0 where it has none."""
    return int(json.loads(frame).get("seq", 0))


def last_seq(frames: list[str]) -> int:
    """What a client that heard these has to say as `after_seq`."""
    return seq_of(frames[-1]) if frames else 0


def after(heard_frames: list[str], ask: dict[str, Any]) -> dict[str, Any] | None:
    """What a client sends that was cut after these frames of an ask; None where it has the end."""
    if not heard_frames:
        return ask  # it cannot know whether the ask arrived
    if json.loads(heard_frames[-1])["type"] in TERMINAL:
        return None
    return resume_frame(ask["session_id"], ask["client_exchange_id"], last_seq(heard_frames))


def transcript(frames: list[str]) -> list[str]:
    """The frames with neighbouring fragments of one message, or of reasoning, joined: the same however a connection
    kept up."""
    joined: list[str] = []
    open_delta: dict[str, Any] | None = None
    for text in frames:
        frame = json.loads(text)
        if frame["type"] not in FRAGMENTS:
            open_delta = None
            joined.append(text)
        elif open_delta is not None and all(
            open_delta.get(key) == frame.get(key) for key in ("type", "rank", "channel")
        ):
            open_delta |= {"seq": frame["seq"], "text": open_delta["text"] + frame["text"]}
            joined[-1] = json.dumps(open_delta)
        else:
            open_delta = frame
            joined.append(json.dumps(frame))
    return joined


async def over_stream(
    service: ServiceClient, frame: dict[str, Any], *, last_event_id: int | None = None
) -> AsyncIterator[str]:
    """As `over_socket`, over the event stream: the frames are its data, whose number and type must say the same."""
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    async with service.http.post(f"{BASE}/chatbot/query/stream", json=frame, headers=headers) as response:
        try:
            assert response.status == 200, await response.text()
            async for event in stream_events(response):
                if "data" not in event:
                    continue  # a comment
                frame = json.loads(event["data"])
                assert event["event"] == frame["type"]
                assert event.get("id") == (str(frame["seq"]) if "seq" in frame else None)
                yield event["data"]
        finally:
            response.close()  # an open connection is cut, one whose answer is whole is kept


async def stream_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """The events of a text/event-stream by their fields; comments stand under ""."""
    event: dict[str, str] = {}
    async for line in response.content:
        if line == b"\n":
            yield event
            event = {}
        else:
            name, _, value = line.decode().removesuffix("\n").partition(": ")
            event[name] = value
    assert event == {}
