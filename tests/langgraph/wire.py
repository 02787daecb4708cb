"""A raw client of the door's streams, which is cut where the test says."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from tests.support.following import stream_events
from tests.support.service import ServiceClient

MODES: Final = ["values", "updates", "messages-tuple", "custom"]
Most = int | str | None
"""A number of events, or the name of the last one; None for all of them."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An event as it stood in a stream."""

    name: str
    id: str
    data: Any


def asks(agent: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    """The body of a run."""
    question = {"messages": [{"role": "user", "content": text}]}
    given = {"assistant_id": agent, "input": question, "stream_mode": MODES, "stream_resumable": True}
    return {**given, "if_not_exists": "create", **more}


async def begin(
    service: ServiceClient, thread_id: str, body: dict[str, Any], most: Most = None, **headers: str
) -> list[Heard]:
    """The events of a new run, up to `most`; then the connection is cut."""
    path = f"/threads/{thread_id}/runs/stream"
    async with service.http.post(path, json=body, headers=headers) as response:
        return await _heard(response, most)


async def rejoin(
    service: ServiceClient, thread_id: str, run_id: str, after: str | None, most: Most = None, **headers: str
) -> list[Heard]:
    """The events of a run behind the one with this id, in all modes."""
    given = headers if after is None else {**headers, "Last-Event-ID": after}
    query = [("stream_mode", mode) for mode in MODES]
    path = f"/threads/{thread_id}/runs/{run_id}/stream"
    async with service.http.get(path, params=query, headers=given) as response:
        return await _heard(response, most)


async def _heard(response: aiohttp.ClientResponse, most: Most) -> list[Heard]:
    try:
        assert response.status == 200, await response.text()
        heard: list[Heard] = []
        if most == 0:
            return heard
        async for event in stream_events(response):
            if "event" not in event:
                continue  # a comment
            heard.append(Heard(event["event"], event.get("id", ""), json.loads(event["data"])))
            if most in (len(heard), heard[-1].name):
                break
        return heard
    finally:
        response.close()


def run_of(heard: list[Heard]) -> str:
    """The run that a stream is of."""
    assert heard[0].name == "metadata", heard[0]
    return str(heard[0].data["run_id"])


def joined(heard: Iterable[Heard]) -> list[tuple[str, Any]]:
    """The events with neighbouring fragments of one text joined: the same however a connection kept up."""
    told: list[tuple[str, Any]] = []
    for one in heard:
        before = told[-1] if told else ("", None)
        if _fragment(one.name, one.data) and _fragment(*before) and before[1][0]["id"] == one.data[0]["id"]:
            chunk, about = before[1]
            texts = [_reasoning(part) for part in (chunk, one.data[0])]
            if (texts[0] is None) == (texts[1] is None):
                glued = {**chunk, "content": chunk["content"] + one.data[0]["content"]}
                if texts[0] is not None:
                    glued["additional_kwargs"] = {"reasoning_content": texts[0] + (texts[1] or "")}
                told[-1] = (one.name, [glued, about])
                continue
        told.append((one.name, one.data))
    return told


def values_of(heard: Iterable[Heard]) -> list[dict[str, Any]]:
    """The values that were told."""
    return [one.data for one in heard if one.name == "values"]


def texts_of(heard: Iterable[Heard]) -> dict[str, str]:
    """The texts of messages by their ids, as hooks put them together of fragments."""
    texts: dict[str, str] = {}
    for one in heard:
        if one.name == "messages" and one.data[0]["type"] == "AIMessageChunk":
            message = one.data[0]
            texts[message["id"]] = texts.get(message["id"], "") + message["content"]
    return texts


def _fragment(name: str, data: Any) -> bool:
    """Whether an event is a piece of a text and nothing else."""
    if name != "messages" or data[0]["type"] != "AIMessageChunk":
        return False
    return (
        not data[0]["tool_call_chunks"] and data[0].get("chunk_position") is None and not data[0]["response_metadata"]
    )


def _reasoning(chunk: dict[str, Any]) -> str | None:
    text = chunk["additional_kwargs"].get("reasoning_content")
    return text if isinstance(text, str) else None
