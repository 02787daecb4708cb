"""The door of OpenAI's responses, by raw requests."""

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import aiohttp

from tests.doors.talk import Event, Heard, Refusal, Refusals, Talk
from tests.support.following import stream_events

RESPONSES = "/v1/responses"
_DELTAS = {"response.output_text.delta": "text", "response.reasoning_summary_text.delta": "reasoning"}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class Responses(Talk):
    """A client that streams its responses, each after the one before it."""

    row = "OpenAI, responses"
    refusals = Refusals(
        Refusal("model_not_found", 404, "model"),
        Refusal("message_too_long", 400, "input"),
        Refusal("llm_protocol", 200),
        Refusal("rate_limited", 429, later=True),
        Refusal("rate_limited", 429, later=True),
    )
    more: ClassVar[dict[str, Any]] = {}
    """What its requests have beside the question."""

    async def begin(self) -> None:
        self.id = ""
        self.body: dict[str, Any] = {}

    def ask(self, text: str) -> AsyncIterator[Event]:
        before = {"previous_response_id": self.id} if self.id else {}
        self.id = ""
        self.body = {"model": self.agent, "input": text, "stream": True, **before, **self.more}
        return self._over("POST", RESPONSES, self.body)

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:
        if not self.id:  # it was cut before it knew that there is one
            return self._over("POST", RESPONSES, self.body)
        after = f"&starting_after={heard[-1].position}" if heard else ""
        return self._over("GET", f"{RESPONSES}/{self.id}?stream=true{after}", None)

    def allow(self) -> AsyncIterator[Event]:
        return self.ask("1")

    async def cancel(self) -> None:
        path = f"{RESPONSES}/{self.id}/cancel"
        async with self.service.http.post(path) as response:
            self.wire.note(f"POST {path}", response.status, await response.text())
            assert response.status == 200

    async def _over(self, method: str, path: str, body: dict[str, Any] | None) -> AsyncIterator[Event]:
        self.wire.note(f"{method} {path}", json.dumps(body))
        said = ""
        async with self.service.http.request(method, path, json=body) as response:
            try:
                self.wire.note(response.status, *response.headers.items())
                if response.status != 200:
                    yield await self._refused(response)
                    return
                if method == "POST":
                    self.session_id = response.headers["X-Turnwise-Session-Id"]
                    self.exchange = response.headers["X-Turnwise-Exchange-Id"]
                async for event in stream_events(response):
                    if "data" not in event:
                        continue
                    self.wire.note(event["data"])
                    told = json.loads(event["data"])
                    if told["type"] == "response.created":
                        self.id = told["response"]["id"]
                    heard = tuple(_of_event(told))
                    said += "".join(one.value for one in heard if one.kind == "text")
                    if told["type"] in _ENDS and "\n1. " in said:  # a question is an answer like any other
                        heard = (*heard, Heard("question", said))
                    yield Event(heard, told["sequence_number"])
                    if told["type"] in _ENDS:
                        return
            finally:
                response.close()

    async def _refused(self, response: aiohttp.ClientResponse) -> Event:
        error = (await response.json())["error"]
        self.wire.note(json.dumps(error))
        later = "Retry-After" in response.headers
        return Event((Heard("refusal", Refusal(error["code"], response.status, error["param"], later)),))


class Background(Responses):
    """One whose turns run on when it leaves."""

    more = {"background": True}


def _of_event(event: dict[str, Any]) -> list[Heard]:
    kind = event["type"]
    if kind in _DELTAS:
        return [Heard(_DELTAS[kind], event["delta"])]  # type: ignore[arg-type] # of the table above
    if kind == "response.output_text.annotation.added":
        return [Heard("citation", event["annotation"]["url"])]
    if kind not in _ENDS:
        return []
    response = event["response"]
    if kind == "response.failed":
        return [Heard("refusal", Refusal(response["error"]["code"], 200))]
    usage = response.get("usage")
    tokens = [Heard("usage", (usage["input_tokens"], usage["output_tokens"]))] if usage else []
    return [*tokens, Heard("end", {"completed": "stop"}.get(response["status"], response["status"]))]
