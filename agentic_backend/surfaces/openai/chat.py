"""`POST /v1/chat/completions`."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.session.stream import Payload
from agentic_backend.surfaces.follow import turn_stream
from agentic_backend.surfaces.openai.answering import EncodedStream, WholeAnswer
from agentic_backend.surfaces.openai.asked import is_task, session_id_of
from agentic_backend.surfaces.openai.asking import Wish, prepare, told_task
from agentic_backend.surfaces.openai.chunks import Chunks, Completion
from agentic_backend.surfaces.openai.citations import page_of
from agentic_backend.surfaces.openai.request import ChatRequest, read_chat_request
from agentic_backend.surfaces.openai.telling import End, Failure, Telling, told_at_once
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity

_EVENTS: Final = "text/event-stream"
_NOTHING: Final = {"input_tokens": 0, "output_tokens": 0}


async def complete_chat(services: DoorServices, request: Request, identity: Identity) -> Response:
    """The answer to a chat completions request. Raises ServiceError where it cannot be answered."""
    asked = read_chat_request(await request.body())
    completion = Completion(f"chatcmpl-{uuid4().hex}", asked.model, int(time.time()))
    page = page_of(services.public_url, request.scope["scheme"], request.headers)
    if is_task(asked.conversation):
        return _at_once(completion, asked, await told_task(services, request, identity, asked.conversation), {})
    conversation = asked.conversation
    wish = Wish(asked.model, conversation, conversation.history, asked.tools, asked.ignored)
    session_id = session_id_of(identity.uid, request.headers, asked.metadata)
    prepared = await prepare(services, request, identity, wish, session_id)
    if prepared.instead is not None:
        return _at_once(completion, asked, End(prepared.instead, prepared.instead, spent=_NOTHING), prepared.headers)
    if not asked.stream:
        return WholeAnswer(prepared.begin, prepared.headers, partial(_whole, completion, page))
    chunks = Chunks(completion, Telling(page), include_usage=asked.include_usage)
    return await turn_stream(services, request, identity.uid, prepared.begin, EncodedStream(chunks, prepared.headers))


def _whole(completion: Completion, page: str, payloads: Sequence[Payload]) -> bytes | Failure:
    """The completion in one piece of a turn that has ended, or why there is none."""
    reasoning, end = told_at_once(payloads, page)
    return end.failure or completion.whole(reasoning, end)


def _at_once(completion: Completion, asked: ChatRequest, end: End, headers: Mapping[str, str]) -> Response:
    """An answer that no turn gave."""
    if not asked.stream:
        return Response(completion.whole("", end), 200, dict(headers), "application/json")
    chunks = Chunks(completion, Telling(""), include_usage=asked.include_usage)
    return Response(chunks.opening() + chunks.end(end), 200, {**headers, "cache-control": "no-store"}, _EVENTS)
