"""One call of a model of another provider, with deadlines, bounds and retries around its stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from agentic_backend.llm import failures
from agentic_backend.llm.guard import Guard, first_token_within
from agentic_backend.llm.providers.faults import as_ours
from agentic_backend.llm.providers.reading import ChunkText, brings, reason_in, storable, text_in, use_in

Opened = AsyncGenerator[ChatGenerationChunk, None]
ParsedChunk = tuple[AIMessageChunk, ChunkText]


class GuardedCall:
    """One streamed call, to be used once. Raises the `TurnFailed` family of `agentic_backend.errors` and nothing else.

    `open_stream` begins an attempt, whose iteration sends the request. Only attempts before the first token are
    repeated. `ends_with_reason`: whether the provider says why each answer ended, so that one without has been cut.
    `whole`: whether the answer is wanted as a whole, within the endpoint's deadline for that.
    """

    def __init__(
        self,
        guard: Guard,
        open_stream: Callable[[], AsyncIterator[ChatGenerationChunk]],
        *,
        ends_with_reason: bool,
        whole: bool = False,
    ) -> None:
        self._guard = guard
        self._open = open_stream
        self._ends_with_reason = ends_with_reason
        self._whole = whole
        self._call = guard.call(streamed=True)
        self._stream: Opened | None = None
        self._room = guard.endpoint.max_answer_chars
        self._thought_room = guard.endpoint.max_reasoning_chars
        self._reason: str | None = None
        self._calls = False
        self._cut = False

    async def chunks(self) -> AsyncGenerator[ParsedChunk]:
        """The chunks of the answer, each with what it says. The last of them has `finish_reason` in its metadata.

        Leaving the iteration, cancellation and any error close the provider's connection.
        """
        deadlines = self._guard.endpoint.deadlines
        try:
            with self._call:
                limit_s = first_token_within(deadlines.first_token_s)
                told = await self._within(limit_s, "no first token", self._begin())
                self._call.begun()
                while told:
                    for one in told:
                        yield one
                    if self._cut:
                        break
                    told = await self._within(deadlines.inter_token_s, "no next token", self._next(begun=True))
                if self._reason is None and self._ends_with_reason:
                    raise failures.broken("stream ended early")
        finally:
            await self._close()

    async def _within(self, limit_s: float, silent: str, coming: Any) -> list[ParsedChunk]:
        """What `coming` brings before the deadline, and before that of the whole answer."""
        if self._whole:
            left_s = self._guard.endpoint.deadlines.answer_s - self._call.seconds
            if left_s < limit_s:
                limit_s, silent = left_s, "no answer"
        try:
            async with asyncio.timeout(limit_s):
                told: list[ParsedChunk] = await coming
                return told
        except TimeoutError:
            raise failures.silent(silent) from None

    async def _begin(self) -> list[ParsedChunk]:
        return await self._guard.retrying(self._attempt)

    async def _attempt(self) -> list[ParsedChunk]:
        """One attempt up to and with its first token."""
        await self._close()
        self._reason, self._call.use, self._calls = None, None, False
        with as_ours(begun=False):
            self._stream = self._open()  # type: ignore[assignment] # an async generator, as langchain's are
        told = await self._next(begun=False)
        if not told:
            raise failures.broken("empty stream")
        return told

    async def _next(self, *, begun: bool) -> list[ParsedChunk]:
        """The next chunks up to and with one that brings something; nothing at the end."""
        assert self._stream is not None, "an attempt has begun"
        told: list[ParsedChunk] = []
        with as_ours(begun=begun):
            async for generation in self._stream:
                one = self._take(generation)
                told.append(one)
                if self._cut or brings(*one):
                    break
        return told

    def _take(self, generation: ChatGenerationChunk) -> ParsedChunk:
        """The chunk as it may be passed on: within the bounds, with texts that can be stored, and the finish reason."""
        chunk = generation.message
        if not isinstance(chunk, AIMessageChunk):
            raise failures.broken("not a chunk")
        chunk.content = storable(chunk.content)
        if generation.generation_info:
            chunk.response_metadata = {**chunk.response_metadata, **generation.generation_info}
        said = text_in(chunk)
        said = ChunkText(said.text, storable(said.thought))
        self._call.use = use_in(chunk) or self._call.use
        self._calls = self._calls or bool(chunk.tool_call_chunks)
        if (reason := reason_in(chunk)) is not None:
            # Some providers have no word of their own for that.
            self._reason = "tool_calls" if reason == "stop" and self._calls else reason
            chunk.response_metadata["finish_reason"] = self._reason
        calls = sum(len(call["args"] or "") for call in chunk.tool_call_chunks)
        self._room -= len(said.text) + calls or (0 if said.thought else 1)
        self._thought_room -= len(said.thought)
        if self._room >= 0 and self._thought_room >= 0:
            return chunk, said
        # An answer without an end is cut where its bound is, and says so.
        self._cut, self._reason = True, "length"
        text = said.text[: self._room] if self._room < 0 else said.text
        ended = AIMessageChunk(
            content=text, response_metadata={"finish_reason": "length"}, usage_metadata=chunk.usage_metadata
        )
        return ended, ChunkText(text, "")

    async def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            async with aclosing(stream):
                pass
