"""The doors of other people's protocols: OpenAI's chat completions and AG-UI, by raw requests."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from tests.doors.native import refused
from tests.doors.talk import Event, Heard, Refusal, Refusals, Talk
from tests.support.agui import Thread
from tests.support.following import stream_events

CHAT = "/v1/chat/completions"


class Chat(Talk):
    """OpenAI's chat completions, streamed, in a conversation that is kept."""

    row = "OpenAI, chat completions"
    refusals = Refusals(
        Refusal("model_not_found", 404, "model"),
        Refusal("message_too_long", 400, "messages[0].content"),
        Refusal("llm_protocol", 200),
        Refusal("rate_limited", 429, later=True),
        Refusal("rate_limited", 429, later=True),
    )
    hears_the_end = False

    async def begin(self) -> None:
        self.name = uuid4().hex
        self.messages: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}

    def ask(self, text: str) -> AsyncIterator[Event]:
        self.messages.append({"role": "user", "content": text})
        return self._over()

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:  # noqa: ARG002 - it knows no position
        self.messages.pop()
        return self._over()

    def allow(self) -> AsyncIterator[Event]:
        return self.ask("1")

    async def _over(self) -> AsyncIterator[Event]:
        asked = {"model": self.agent, "messages": self.messages, "stream": True}
        body = {**asked, "stream_options": {"include_usage": True}}
        headers = {"X-Turnwise-Session": self.name, **self.headers}
        self.wire.note(CHAT, json.dumps(body), headers)
        said: list[str] = []
        async with self.service.http.post(CHAT, json=body, headers=headers) as response:
            try:
                self.wire.note(response.status, *response.headers.items())
                self.session_id = response.headers.get("X-Turnwise-Session-Id", "")
                self.exchange = response.headers.get("X-Turnwise-Exchange-Id", "")
                if response.status != 200:
                    error = (await response.json())["error"]
                    self.wire.note(json.dumps(error))
                    later = "Retry-After" in response.headers
                    told = Refusal(error["code"], response.status, error["param"], later)
                    yield Event((Heard("refusal", told),))
                    return
                async for event in stream_events(response):
                    if "data" not in event:
                        continue
                    self.wire.note(event["data"])
                    if event["data"] == "[DONE]":
                        break
                    heard = tuple(_of_chunk(json.loads(event["data"])))
                    said += [one.value for one in heard if one.kind == "text"]
                    yield Event(self._asked_in("".join(said), heard))
            finally:
                response.close()
                self.messages.append({"role": "assistant", "content": "".join(said)})

    def _asked_in(self, said: str, heard: tuple[Heard, ...]) -> tuple[Heard, ...]:
        """A question to a person is an answer like any other: whoever reads it sees its choices."""
        ends = any(one.kind == "end" for one in heard)
        return (*heard, Heard("question", said)) if ends and "\n1. " in said else heard


def _of_chunk(chunk: dict[str, Any]) -> list[Heard]:
    if "error" in chunk:
        return [Heard("refusal", Refusal(chunk["error"]["code"], 200, chunk["error"]["param"]))]
    if not chunk["choices"]:
        usage = chunk["usage"]
        return [Heard("usage", (usage["prompt_tokens"], usage["completion_tokens"]))]
    choice = chunk["choices"][0]
    delta = choice["delta"]
    heard = [
        Heard(kind, delta[key])
        for key, kind in (("content", "text"), ("reasoning_content", "reasoning"))
        if delta.get(key)
    ]
    heard += [Heard("citation", one["url_citation"]["url"]) for one in delta.get("annotations", ())]
    return heard + ([Heard("end", choice["finish_reason"])] if choice.get("finish_reason") else [])


class AgUi(Talk):
    """AG-UI, by a client that keeps its position."""

    row = "AG-UI"
    refusals = Refusals(
        Refusal("agent_not_found", 404),
        Refusal("message_too_long", 422, "messages[0].content"),
        Refusal("llm_protocol", 200),
        Refusal("rate_limited", 429, later=True),
        Refusal("rate_limited", 429, later=True),
    )

    async def begin(self) -> None:
        self.thread = Thread(self.agent)
        self.runs = 0
        self.resumed: list[dict[str, Any]] | None = None
        self.interrupt = ""

    def ask(self, text: str) -> AsyncIterator[Event]:
        self.thread.say(text)
        self.runs += 1
        return self._over(None)

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:
        return self._over(heard[-1].position if heard else None)

    def allow(self) -> AsyncIterator[Event]:
        self.resumed = [{"interruptId": self.interrupt, "status": "resolved", "payload": {"approved": True}}]
        self.runs += 1
        return self._over(None)

    async def cancel(self) -> None:
        path = f"/agui/{self.agent}/runs/{self.exchange}"
        async with self.service.http.delete(path) as response:
            self.wire.note(f"DELETE {path}", response.status)
            assert response.status == 204

    async def _over(self, after: str | None) -> AsyncIterator[Event]:
        more = {} if self.resumed is None else {"resume": self.resumed}
        body = self.thread.input(f"{self.thread.thread_id[:8]}-{self.runs}", **more)
        headers = {} if after is None else {"Last-Event-ID": after}
        path = f"/agui/{self.agent}"
        self.wire.note(path, json.dumps(body), headers)
        async with self.service.http.post(path, json=body, headers=headers) as response:
            try:
                if response.status != 200:
                    yield await refused(self, response)
                    return
                async for event in stream_events(response):
                    if "data" in event:
                        self.wire.note(event["data"])
                        yield Event(self._of(json.loads(event["data"])), event["id"])
            finally:
                response.close()

    def _of(self, event: dict[str, Any]) -> tuple[Heard, ...]:
        kind = event["type"]
        if kind == "RUN_STARTED":
            about = event["metadata"]["turnwise"]
            self.session_id, self.exchange = about["session_id"], about["exchange_id"]
            return ()
        return tuple(_AGUI.get(kind, _nothing)(self, event))

    def ended(self, event: dict[str, Any]) -> list[Heard]:
        """What RUN_FINISHED says."""
        outcome = event["outcome"]
        if outcome["type"] == "interrupt":
            (asked,) = outcome["interrupts"]
            self.interrupt = asked["id"]
            return [Heard("question", asked["message"])]
        heard = [Heard("usage", (one["inputTokens"], one["outputTokens"])) for one in event.get("usage", ())]
        return [*heard, Heard("end", {"success": "stop"}.get(outcome["type"], outcome["type"]))]


def _nothing(_talk: AgUi, _event: dict[str, Any]) -> list[Heard]:
    return []


def _cited(_talk: AgUi, event: dict[str, Any]) -> list[Heard]:
    cited = event["value"] if event["name"] == "turnwise.citations" else ()
    return [Heard("citation", one["href"]) for one in cited]


_AGUI = {
    "TEXT_MESSAGE_CONTENT": lambda _talk, event: [Heard("text", event["delta"])],
    "REASONING_MESSAGE_CONTENT": lambda _talk, event: [Heard("reasoning", event["delta"])],
    "CUSTOM": _cited,
    "RUN_FINISHED": AgUi.ended,
    "RUN_ERROR": lambda _talk, event: [Heard("refusal", Refusal(event["code"], 200))],
}
