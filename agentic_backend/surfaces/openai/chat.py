"""`POST /v1/chat/completions`."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.hub import RETRY_S
from agentic_backend.errors import Draining
from agentic_backend.session.stream import Payload
from agentic_backend.surfaces.openai.answering import EncodedStream, WholeAnswer
from agentic_backend.surfaces.openai.asked import is_task, session_id_of
from agentic_backend.surfaces.openai.asking import Wish, check_length, expect_page, prepare
from agentic_backend.surfaces.openai.chunks import Chunks, Completion
from agentic_backend.surfaces.openai.citations import page_of
from agentic_backend.surfaces.openai.request import ChatRequest, read_chat_request
from agentic_backend.surfaces.openai.telling import End, Failure, Telling, told_at_once
from agentic_backend.surfaces.services import DoorServices
from agentic_backend.surfaces.stream import turn_stream
from backend_kit.auth import Identity

_EVENTS: Final = "text/event-stream"
_NOTHING: Final = {"input_tokens": 0, "output_tokens": 0}


async def complete_chat(services: DoorServices, request: Request, identity: Identity) -> Response:
    """The answer to a chat completions request. Raises ServiceError where it cannot be answered."""
    asked = read_chat_request(await request.body())
    completion = Completion(f"chatcmpl-{uuid4().hex}", asked.model, int(time.time()))
    page = page_of(services.public_url, request.url.scheme, request.headers)
    if is_task(asked.conversation):
        expect_page(services, request)
        check_length(services, asked.conversation)
        return _at_once(completion, asked, await _task(services, asked, identity.uid), {})
    conversation = asked.conversation
    wish = Wish(asked.model, conversation, conversation.history, asked.tools, asked.ignored)
    session_id = session_id_of(identity.uid, request.headers, asked.metadata)
    prepared = await prepare(services, request, identity, wish, session_id)
    if prepared.instead is not None:
        return _at_once(completion, asked, End(prepared.instead, prepared.instead, spent=_NOTHING), prepared.headers)
    if not asked.stream:
        return WholeAnswer(prepared.begin, prepared.headers, partial(_whole, completion, page))
    chunks = Chunks(completion, Telling(page), include_usage=asked.include_usage)
    return turn_stream(services, request, identity.uid, prepared.begin, EncodedStream(chunks, prepared.headers))


def _whole(completion: Completion, page: str, payloads: Sequence[Payload]) -> bytes | Failure:
    """The completion in one piece of a turn that has ended, or why there is none."""
    reasoning, end = told_at_once(payloads, page)
    return end.failure or completion.whole(reasoning, end)


async def _task(services: DoorServices, asked: ChatRequest, user_id: str) -> End:
    """What the language model makes of a front end's task. Raises `TurnFailed`, `RateLimited` and `Draining`."""
    if services.registry.draining:
        raise Draining(retry_after_s=RETRY_S)
    services.admit_task(user_id)
    conversation = asked.conversation
    messages = [{"role": item.role, "content": item.text} for item in conversation.history]
    told = await services.answer_task([*messages, {"role": "user", "content": conversation.question}])
    return End(told.text, told.text, spent=told.usage or None)


def _at_once(completion: Completion, asked: ChatRequest, end: End, headers: Mapping[str, str]) -> Response:
    """An answer that no turn gave."""
    if not asked.stream:
        return Response(completion.whole("", end), 200, dict(headers), "application/json")
    chunks = Chunks(completion, Telling(""), include_usage=asked.include_usage)
    return Response(chunks.opening() + chunks.end(end), 200, {**headers, "cache-control": "no-store"}, _EVENTS)
