"""`POST /v1/chat/completions`: a turn's events as one completion, or as its chunks.

A token costs the joining of four pieces: what all chunks of an answer share is encoded once.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.session.stream import Payload, Restarted, Terminal, TextDelta, ThoughtDelta, Whole
from agentic_backend.surfaces.follow import follow_of, turn_stream
from agentic_backend.surfaces.openai.answer_reader import (
    BROKEN_OFF,
    AnswerReader,
    Citation,
    End,
    Failure,
    page_of,
    read_whole_answer,
)
from agentic_backend.surfaces.openai.answering import EncodedStream, WholeAnswer
from agentic_backend.surfaces.openai.asked import is_task, session_id_of
from agentic_backend.surfaces.openai.asking import Wish, prepare, run_task
from agentic_backend.surfaces.openai.chat_request import ChatRequest, read_chat_request
from agentic_backend.surfaces.openai.errors import error_json
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import dumps

_EVENTS: Final = "text/event-stream"
_NOTHING: Final = {"input_tokens": 0, "output_tokens": 0}
DONE: Final = b"data: [DONE]\n\n"


class Completion:
    """What every chunk of one completion repeats. `created` is in seconds since the epoch."""

    def __init__(self, completion_id: str, model: str, created: int) -> None:
        self.head: dict[str, Any] = {"id": completion_id, "created": created, "model": model}

    def whole(self, reasoning: str, end: End) -> bytes:
        """The whole completion of a turn that has its answer."""
        message: dict[str, Any] = {"role": "assistant", "content": end.answer, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        message["annotations"] = annotations(end.citations)
        if end.calls:
            message["tool_calls"] = end.calls
            message["content"] = end.answer or None
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.reason}
        return dumps({**self.head, "object": "chat.completion", "choices": [choice], "usage": usage(end.spent)})


class Chunks:
    """The chunks of one answer, in the order of its events."""

    def __init__(self, completion: Completion, telling: AnswerReader, *, include_usage: bool) -> None:
        """`include_usage` adds the chunk with the usage, and `usage` to all others, where it is null."""
        self.over = False
        """Whether the answer ended before its turn: what was sent cannot be retracted when the turn runs again."""
        self._said = False
        self._telling = telling
        self._include_usage = include_usage
        self._opening = b"data: %b" % dumps({**completion.head, "object": "chat.completion.chunk"})[:-1]
        self._delta = b'%b,"choices":[{"index":0,"delta":' % self._opening
        self._content = b'%b{"content":' % self._delta
        self._reasoning = b'%b{"reasoning_content":' % self._delta
        self._usage = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._close = b'},"logprobs":null,"finish_reason":null}]%b' % self._usage

    def opening(self) -> bytes:
        """The first chunk: the assistant speaks."""
        return b'%b{"role":"assistant","content":""%b' % (self._delta, self._close)

    def encode(self, payload: Payload) -> bytes:
        """The chunks of an event; none for what this protocol cannot express."""
        if isinstance(payload, TextDelta):
            self._said = True
            return b"%b%b%b" % (self._content, dumps(self._telling.text(payload)), self._close)
        if isinstance(payload, ThoughtDelta):
            return self._thought(self._telling.thought(payload.text))
        if isinstance(payload, Whole):
            return self._thought(self._telling.step(payload.message))
        if isinstance(payload, Terminal):
            return self.end(self._telling.end(payload))
        if isinstance(payload, Restarted) and self._said:
            self.over = True
            return self.end(End(failure=BROKEN_OFF))
        return b""

    def end(self, end: End) -> bytes:
        """The last chunks. Clients take an `error` in place of a chunk for the failure of the request."""
        if end.failure is not None:
            failure = end.failure
            error = error_json(failure.status, failure.message, failure.code, failure.param)
            return b"%bdata: %b\n\n%b" % (self._spent(end.spent), error, DONE)
        pieces = [b"%b%b%b" % (self._content, dumps(end.rest), self._close)] if end.rest else []
        if end.citations:
            pieces.append(b'%b{"annotations":%b%b' % (self._delta, dumps(annotations(end.citations)), self._close))
        for index, call in enumerate(end.calls):
            pieces.append(b'%b{"tool_calls":%b%b' % (self._delta, dumps([{"index": index, **call}]), self._close))
        finish = b'%b{},"logprobs":null,"finish_reason":"%b"}]%b' % (self._delta, end.reason.encode(), self._usage)
        return b"".join([*pieces, finish, self._spent(end.spent), DONE])

    def _thought(self, text: str) -> bytes:
        if not text:
            return b""
        self._said = True
        return b"%b%b%b" % (self._reasoning, dumps(text), self._close)

    def _spent(self, spent: Mapping[str, Any] | None) -> bytes:
        if not self._include_usage or spent is None:
            return b""
        return b'%b,"choices":[],"usage":%b}\n\n' % (self._opening, dumps(usage(spent)))


def annotations(citations: tuple[Citation, ...]) -> list[dict[str, Any]]:
    """Citations as chat completions have them."""
    return [{"type": "url_citation", "url_citation": citation} for citation in citations]


def usage(spent: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The `usage` of a chat completion, None where no model reported any."""
    if spent is None:
        return None
    took, gave = spent["input_tokens"], spent["output_tokens"]
    return {
        "prompt_tokens": took,
        "completion_tokens": gave,
        "total_tokens": took + gave,
        "prompt_tokens_details": {"cached_tokens": spent.get("cached_tokens", 0)},
        "completion_tokens_details": {"reasoning_tokens": spent.get("reasoning_tokens", 0)},
    }


async def complete_chat(services: DoorServices, request: Request, identity: Identity) -> Response:
    """The response to a chat completions request. Raises ServiceError if it cannot be answered."""
    asked = read_chat_request(await request.body())
    completion = Completion(f"chatcmpl-{uuid4().hex}", asked.model, int(time.time()))
    page = page_of(services.public_url, request.scope["scheme"], request.headers)
    if is_task(asked.conversation):
        return _at_once(completion, asked, await run_task(services, request, identity, asked.conversation), {})
    conversation = asked.conversation
    wish = Wish(asked.model, conversation, conversation.history, asked.tools, asked.ignored)
    session_id = session_id_of(identity.uid, request.headers, asked.metadata)
    prepared = await prepare(services, request, identity, wish, session_id)
    if prepared.instead is not None:
        return _at_once(completion, asked, End(prepared.instead, prepared.instead, spent=_NOTHING), prepared.headers)
    if not asked.stream:
        return WholeAnswer(prepared.begin, prepared.headers, partial(_whole, completion, page))
    chunks = Chunks(completion, AnswerReader(page), include_usage=asked.include_usage)
    stream = EncodedStream(chunks, prepared.headers)
    return await turn_stream(services, request, identity.uid, lambda: follow_of(prepared.begin()), stream)


def _whole(completion: Completion, page: str, payloads: Sequence[Payload]) -> bytes | Failure:
    """The whole completion of a turn that has ended, or why there is none."""
    reasoning, end = read_whole_answer(payloads, page)
    return end.failure or completion.whole(reasoning, end)


def _at_once(completion: Completion, asked: ChatRequest, end: End, headers: Mapping[str, str]) -> Response:
    """An answer without a turn."""
    if not asked.stream:
        return Response(completion.whole("", end), 200, dict(headers), "application/json")
    chunks = Chunks(completion, AnswerReader(""), include_usage=asked.include_usage)
    return Response(chunks.opening() + chunks.end(end), 200, {**headers, "cache-control": "no-store"}, _EVENTS)
