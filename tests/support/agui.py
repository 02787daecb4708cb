"""A client of the AG-UI door: what it sends, and what the events make of its messages, as strict as the official one.

`Thread` keeps the conversation as that client does: an event that the protocol forbids at its place fails the test.
"""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.support.following import stream_events
from tests.support.service import ServiceClient

Event = dict[str, Any]
Message = dict[str, Any]
ENDS = ("RUN_FINISHED", "RUN_ERROR")
_OPENERS = {
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
    "REASONING_START": ("span", "messageId"),
    "REASONING_MESSAGE_START": ("reasoning", "messageId"),
    "STEP_STARTED": ("step", "stepName"),
}
_CONTENTS = {
    "TEXT_MESSAGE_CONTENT": ("text", "messageId"),
    "TOOL_CALL_ARGS": ("call", "toolCallId"),
    "REASONING_MESSAGE_CONTENT": ("reasoning", "messageId"),
}
_CLOSERS = {
    "TEXT_MESSAGE_END": ("text", "messageId"),
    "TOOL_CALL_END": ("call", "toolCallId"),
    "REASONING_END": ("span", "messageId"),
    "REASONING_MESSAGE_END": ("reasoning", "messageId"),
    "STEP_FINISHED": ("step", "stepName"),
}
_ANYWHERE = ("CUSTOM", "TOOL_CALL_RESULT", "MESSAGES_SNAPSHOT", *ENDS)


@dataclass(slots=True)
class Heard:
    """An event with its position, as it came."""

    position: str
    event: Event


class Order:
    """What the official client's verifier demands of the order of a run's events."""

    def __init__(self) -> None:
        self._open: set[tuple[str, str]] = set()
        self._begun = False
        self.ended = False

    def see(self, event: Event) -> None:
        """Fail for an event that may not come here."""
        kind = event["type"]
        assert not self.ended, f"{kind} after the end"
        if kind == "RUN_STARTED":
            assert not self._begun, "begun twice"
            self._begun = True
            return
        assert self._begun or kind == "RUN_ERROR", f"{kind} first"
        if kind in _OPENERS:
            name, key = _OPENERS[kind]
            assert (name, event[key]) not in self._open, f"{kind} of what is open"
            self._open.add((name, event[key]))
        elif kind in _CONTENTS:
            name, key = _CONTENTS[kind]
            assert (name, event[key]) in self._open, f"{kind} of what is not open"
        elif kind in _CLOSERS:
            name, key = _CLOSERS[kind]
            self._open.remove((name, event[key]))
        else:
            assert kind in _ANYWHERE, kind
        if kind == "RUN_FINISHED":
            assert self._open == set(), f"left open: {self._open}"
        self.ended = kind in ENDS


@dataclass(slots=True)
class Thread:
    """A conversation as its client has it."""

    agent: str = "Georges"
    thread_id: str = field(default_factory=lambda: uuid4().hex)
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Add a message of the user's."""
        self.messages.append({"id": f"user-{len(self.messages)}", "role": "user", "content": text})

    def input(self, run_id: str, **more: Any) -> dict[str, Any]:
        """The RunAgentInput of a run."""
        return {
            "threadId": self.thread_id,
            "runId": run_id,
            "protocolVersion": "1.0",
            "state": {},
            "messages": deepcopy(self.messages),
            "tools": self.tools,
            "context": [],
            "forwardedProps": {},
            **self.more,
            **more,
        }

    def apply(self, events: Iterable[Event]) -> None:
        """Let the events change the messages."""
        for event in events:
            _APPLY.get(event["type"], _nothing)(self.messages, event)

    async def run(self, service: ServiceClient, run_id: str, *, most: int | None = None, **more: Any) -> list[Event]:
        """Ask for a run and apply it, to its end or to `most` events, after which the connection is cut."""
        heard = await hear(service, self.agent, self.input(run_id, **more), most=most)
        order = Order()
        for one in heard:
            order.see(one.event)
        assert order.ended or most is not None
        self.apply(one.event for one in heard)
        return [one.event for one in heard]

    def text(self, number: int = -1) -> str:
        """The text of a message."""
        return str(self.messages[number].get("content") or "")


async def hear(
    service: ServiceClient,
    agent: str,
    body: dict[str, Any],
    *,
    most: int | None = None,
    after: str | None = None,
    headers: dict[str, str] | None = None,
) -> list[Heard]:
    """The events of a run, after a position; the connection is cut after `most` of them."""
    taken: list[Heard] = []
    if most == 0:
        return taken
    async with aclosing(over_agui(service, agent, body, after=after, headers=headers)) as events:  # type: ignore[type-var]
        async for one in events:
            taken.append(one)
            if len(taken) == most:
                break
    return taken


async def over_agui(
    service: ServiceClient,
    agent: str,
    body: dict[str, Any],
    *,
    after: str | None = None,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Heard]:
    """The events as they come; closing the iterator cuts the connection."""
    sent = {**(headers or {}), **({} if after is None else {"Last-Event-ID": after})}
    async with service.http.post(f"/agui/{agent}", json=body, headers=sent) as response:
        try:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            async for event in stream_events(response):
                if "data" in event:
                    yield Heard(event["id"], json.loads(event["data"]))
        finally:
            response.close()


async def refused(
    service: ServiceClient, agent: str, body: Any, *, headers: dict[str, str] | None = None
) -> tuple[int, str, str | None]:
    """The status, the code and the field that stand against a run."""
    async with service.http.post(f"/agui/{agent}", json=body, headers=headers or {}) as response:
        detail = (await response.json())["detail"]
        return response.status, detail["code"], detail.get("field")


def kinds(events: Iterable[Event]) -> list[str]:
    """The types of the events, without what is custom, and each type once where it repeats."""
    found: list[str] = []
    for event in events:
        if event["type"] != "CUSTOM" and found[-1:] != [event["type"]]:
            found.append(event["type"])
    return found


def custom(events: Iterable[Event], name: str) -> list[Any]:
    """The values of the custom events of this name."""
    return [event["value"] for event in events if event["type"] == "CUSTOM" and event["name"] == f"turnwise.{name}"]


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with neighbouring fragments of one message as one: the same however a connection kept up."""
    told: list[Event] = []
    for event in events:
        last = told[-1] if told else {}
        same = all(last.get(key) == event.get(key) for key in ("type", "messageId", "toolCallId"))
        if same and event["type"] in _CONTENTS:
            told[-1] = {**last, "delta": last["delta"] + event["delta"]}
        else:
            told.append(event)
    return told


def _nothing(_messages: list[Message], _event: Event) -> None:
    pass


def _named(messages: list[Message], name: str) -> Message | None:
    return next((one for one in messages if one["id"] == name), None)


def _begin(messages: list[Message], event: Event) -> None:
    if _named(messages, event["messageId"]) is None:
        messages.append({"id": event["messageId"], "role": event["role"], "content": ""})


def _add(messages: list[Message], event: Event) -> None:
    message = _named(messages, event["messageId"])
    assert message is not None
    message["content"] = (message.get("content") or "") + event["delta"]


def _call(messages: list[Message], name: str) -> Message | None:
    calls = (call for one in messages for call in one.get("toolCalls", ()))
    return next((call for call in calls if call["id"] == name), None)


def _begin_call(messages: list[Message], event: Event) -> None:
    if _call(messages, event["toolCallId"]) is not None:
        return
    parent = _named(messages, event["parentMessageId"])
    if parent is None:
        parent = {"id": event["parentMessageId"], "role": "assistant"}
        messages.append(parent)
    function = {"name": event["toolCallName"], "arguments": ""}
    parent.setdefault("toolCalls", []).append({"id": event["toolCallId"], "type": "function", "function": function})


def _add_to_call(messages: list[Message], event: Event) -> None:
    call = _call(messages, event["toolCallId"])
    assert call is not None
    call["function"]["arguments"] += event["delta"]


def _result(messages: list[Message], event: Event) -> None:
    made = {key: event[key] for key in ("toolCallId", "content")} | {"id": event["messageId"], "role": "tool"}
    owners = (
        at for at, one in enumerate(messages) for call in one.get("toolCalls", ()) if call["id"] == event["toolCallId"]
    )
    place = next(owners, None)
    assert place is not None, "a result of no call"
    place += 1
    while place < len(messages) and messages[place]["role"] == "tool":
        place += 1
    messages.insert(place, made)


def _snapshot(messages: list[Message], event: Event) -> None:
    told = {one["id"]: one for one in event["messages"]}
    reasons = any(one["role"] == "reasoning" for one in event["messages"])
    kept = [one for one in messages if one["id"] in told or (one["role"] == "reasoning" and not reasons)]
    kept = [deepcopy(told.get(one["id"], one)) for one in kept]
    kept += [deepcopy(one) for name, one in told.items() if _named(kept, name) is None]
    messages[:] = kept


_APPLY = {
    "TEXT_MESSAGE_START": _begin,
    "TEXT_MESSAGE_CONTENT": _add,
    "REASONING_MESSAGE_START": _begin,
    "REASONING_MESSAGE_CONTENT": _add,
    "TOOL_CALL_START": _begin_call,
    "TOOL_CALL_ARGS": _add_to_call,
    "TOOL_CALL_RESULT": _result,
    "MESSAGES_SNAPSHOT": _snapshot,
}
