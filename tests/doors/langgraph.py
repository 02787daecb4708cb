"""The door of LangGraph's clients, by raw requests as `langgraph_sdk` sends them."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from tests.doors.talk import Event, Heard, Refusal, Refusals, Talk
from tests.support.following import stream_events

MODES = ["messages-tuple", "updates", "values"]


class LangGraph(Talk):
    """A thread of a client that streams its runs."""

    row = "LangGraph"
    refusals = Refusals(
        Refusal("bad_request", 422, "assistant_id"),
        Refusal("message_too_long", 422, "input.messages[0].content"),
        Refusal("llm_protocol", 200),
        Refusal("rate_limited", 429, later=True),
        Refusal("rate_limited", 429, later=True),
    )

    async def begin(self) -> None:
        self.run = ""
        self.body: dict[str, Any] = {}
        async with self.service.http.post("/threads", json={}, raise_for_status=True) as made:
            self.session_id = (await made.json())["thread_id"]

    def ask(self, text: str) -> AsyncIterator[Event]:
        return self._new({"input": {"messages": [{"role": "user", "content": text}]}})

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:
        if not self.run:  # it was cut before it knew that there is one
            return self._over("POST", self._runs("stream"), self.body, {})
        headers = {"Last-Event-ID": heard[-1].position if heard else "-1"}
        return self._over("GET", self._runs(f"{self.run}/stream"), None, headers)

    def allow(self) -> AsyncIterator[Event]:
        return self._new({"command": {"resume": {"decisions": [{"type": "approve"}]}}})

    async def cancel(self) -> None:
        path = self._runs(f"{self.run}/cancel")
        async with self.service.http.post(f"{path}?wait=0&action=interrupt") as response:
            self.wire.note(f"POST {path}", response.status, await response.text())
            assert response.status == 202

    def _runs(self, what: str) -> str:
        return f"/threads/{self.session_id}/runs/{what}"

    def _new(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        self.run = ""
        self.body = {"assistant_id": self.agent, "stream_mode": MODES, **body}
        return self._over("POST", self._runs("stream"), self.body, {})

    async def _over(
        self, method: str, path: str, body: dict[str, Any] | None, headers: Mapping[str, str]
    ) -> AsyncIterator[Event]:
        self.wire.note(f"{method} {path}", json.dumps(body), headers)
        async with self.service.http.request(method, path, json=body, headers=headers) as response:
            try:
                self.wire.note(response.status, *response.headers.items())
                if response.status != 200:
                    yield await self._refused(response)
                    return
                self.run = self.exchange = response.headers["Content-Location"].rpartition("/")[2]
                async for event in stream_events(response):
                    if "data" in event:
                        self.wire.note(f"event: {event['event']}", event["data"])
                        yield Event(tuple(_of(event["event"], json.loads(event["data"]))), event["id"])
            finally:
                response.close()

    async def _refused(self, response: aiohttp.ClientResponse) -> Event:
        error = await response.json()
        self.wire.note(json.dumps(error))
        later = "Retry-After" in response.headers
        told = Refusal(error["code"], response.status, error.get("field"), later)
        return Event((Heard("refusal", told),))


def _of(name: str, data: Any) -> list[Heard]:
    if name == "error":
        return [Heard("refusal", Refusal(data["error"], 200, data.get("field")))]
    if name == "updates":
        return [Heard("question", json.dumps(one["value"])) for one in data.get("__interrupt__", ())]
    if name != "messages" or data[0]["type"] not in ("AIMessageChunk", "ai"):
        return []
    said = data[0]
    more, ends = said["additional_kwargs"], said["response_metadata"].get("finish_reason")
    heard = [Heard("text", said["content"])] if said["content"] else []
    if not ends and more.get("reasoning_content"):  # the whole answer has all of it once more
        heard.append(Heard("reasoning", more["reasoning_content"]))
    heard += [Heard("citation", one["href"]) for one in more.get("citations", ())]
    if usage := said["usage_metadata"]:
        heard.append(Heard("usage", (usage["input_tokens"], usage["output_tokens"])))
    return heard + ([Heard("end", ends)] if ends else [])
