"""The HTTP side of a chat model: chat completions as dicts, with deadlines, bounds and retries.

This is what `ChatOpenAI` calls as its `async_client`. Handing it dicts keeps langchain-openai's own code for tools,
usage and finish reasons and saves the SDK's response models: about a fifth of the CPU per token
(`python -m tests.bench.llm_client`).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import perf_counter
from typing import Any, Self

import aiohttp
from yarl import URL

from agentic_backend.llm import body as answer_body
from agentic_backend.llm import chunks as wire
from agentic_backend.llm import failures
from agentic_backend.llm.coalescing import Coalescer
from agentic_backend.llm.decoding import AnswerDecoder
from agentic_backend.llm.endpoint import Endpoint
from agentic_backend.llm.failures import AttemptFailed
from agentic_backend.llm.guard import Guard, first_token_within
from agentic_backend.llm.observer import LlmObserver
from agentic_backend.llm.thinking import take_block
from agentic_backend.tracing.traceparent import trace_headers
from backend_kit.client.connections import body_of
from backend_kit.wire import dumps, loads

logger = logging.getLogger(__name__)

_SETTLE_S = 0.1
_NOBODY_WAITS = float("inf")
_SDK_ONLY = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
_STREAM_TYPE = "text/event-stream"
_WHOLE_TYPE = "application/json"
_MALFORMED = frozenset({400, 422})
"""Statuses with which servers refuse a parameter that they do not know."""


class CompletionsClient:
    """Chat completions of one endpoint. Raises the `TurnFailed` family of `agentic_backend.errors` and nothing else.

    Has the methods of the OpenAI SDK's `chat.completions` that langchain-openai uses. The session is shared with
    other endpoints and not closed here. The API key is in no attribute that `repr` shows. `coalescer` is the one of
    all clients of the loop, by default one of its own. `clock` (monotonic, seconds) times calls, retries and the
    circuit breaker; `sleep` is how a retry is waited for.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        observer: LlmObserver,
        *,
        coalescer: Coalescer | None = None,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.coalescer = coalescer or Coalescer()
        self.guard = Guard(endpoint, observer, clock=clock, sleep=sleep)
        self._session = session
        self._url = URL(endpoint.base_url.rstrip("/") + "/chat/completions")
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if endpoint.api_key is not None:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key.get_secret_value()}"
        bounds = session.timeout
        self._timeout = aiohttp.ClientTimeout(
            connect=bounds.connect, sock_connect=bounds.sock_connect, sock_read=endpoint.deadlines.read_s
        )
        self._takes_options: bool | None = None
        """Whether the server takes `stream_options`; None until it has shown it."""

    @property
    def counted(self) -> bool:
        """Whether a stream is asked to count its tokens: as long as the server has not refused that."""
        return self._takes_options is not False

    def encode(self, payload: dict[str, Any]) -> bytes:
        """The body of a request with these parameters of the SDK's `create`, as this server calls them."""
        extra = payload.get("extra_body") or {}
        fields = {key: value for key, value in payload.items() if key not in _SDK_ONLY} | extra
        # langchain-openai knows the new name only.
        if (most := fields.pop("max_completion_tokens", None)) is not None:
            fields[self.endpoint.max_tokens_name] = most
        return dumps(fields)

    @property
    def with_raw_response(self) -> "RawCompletions":
        """The same calls, their result behind `.parse()`: how langchain-openai makes a non-streamed call."""
        return RawCompletions(self)

    async def create(self, **payload: Any) -> "CompletionStream | dict[str, Any]":
        """Call the model with the parameters of its chat completions API.

        With `stream=True` nothing is sent before the returned stream is iterated.
        """
        if payload.get("stream") and not self.counted:
            payload.pop("stream_options", None)
        body = self.encode(payload)
        if payload.get("stream"):
            return CompletionStream(self, body)
        return await self._complete(body)

    def stream_text(
        self, body: bytes, on_text: Callable[[str], None], on_thought: Callable[[str], None] | None = None
    ) -> "CompletionStream":
        """Call the model with an encoded request to stream. `on_text` gets chunks of nothing but text as that text,
        `on_thought` all reasoning."""
        return CompletionStream(self, body, on_text, on_thought)

    async def open_stream(self, body: bytes) -> aiohttp.ClientResponse:
        """One attempt at a streamed answer up to its headers. Its type may be that of a whole answer: some servers do
        not stream calls of tools.

        A server that refuses the request is asked once more without `stream_options`, until one attempt or the other
        has shown whether it knows them. Raises as `post`.
        """
        try:
            response = await self.post(body, _STREAM_TYPE, _WHOLE_TYPE)
        except AttemptFailed as failure:
            plain = _without_options(body) if self._takes_options is None and failure.status in _MALFORMED else None
            if plain is None:
                raise
            response = await self.post(plain, _STREAM_TYPE, _WHOLE_TYPE)
            self._takes_options = False
            logger.warning("model %s takes no stream_options: asked without from now on", self.endpoint.model)
        else:
            if self._takes_options is None:
                self._takes_options = True
        return response

    async def post(self, body: bytes, *content_types: str) -> aiohttp.ClientResponse:
        """One attempt up to the headers of a good answer. Raises `AttemptFailed`, `aiohttp.ClientError`, `OSError`."""
        data = body_of(body, self.endpoint.deadlines.write_s)
        # Redirects are not followed: they would carry the prompt to an address that nobody configured.
        headers = self._headers | trace_headers()
        response = await self._session.post(
            self._url, data=data, headers=headers, allow_redirects=False, timeout=self._timeout
        )
        if response.status != 200:
            response.release()
            raise failures.of_status(response.status, response.headers)
        if response.content_type not in content_types:
            response.close()
            raise failures.broken("content type")
        return response

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """A whole body within its bound. Raises as `post`."""
        data = bytearray()
        while piece := await response.content.readany():
            data += piece
            if len(data) > self.endpoint.max_body_bytes:
                response.close()
                raise failures.broken("body too large")
        return bytes(data)

    async def _complete(self, body: bytes) -> dict[str, Any]:
        with self.guard.call(streamed=False) as call:
            try:
                async with asyncio.timeout(self.endpoint.deadlines.answer_s):
                    answer = await self.guard.retrying(lambda: self._whole(body))
            except TimeoutError:
                raise failures.silent("no answer") from None
            call.use = wire.usage_of(answer)
        return answer

    async def _whole(self, body: bytes) -> dict[str, Any]:
        """One attempt at a non-streamed answer."""
        try:
            async with await self.post(body, _WHOLE_TYPE) as response:
                answer = wire.parse_answer(await self.read(response))
            take_block(answer["choices"][0]["message"])
            return answer
        except wire.BrokenChunk as failure:
            raise failures.broken(f"broken answer: {failure}") from failure
        except (aiohttp.ClientError, OSError) as failure:
            raise failures.of_exception(failure) from failure


class RawCompletions:
    """`CompletionsClient` behind the shape of the SDK's `with_raw_response`."""

    def __init__(self, client: CompletionsClient) -> None:
        self._client = client

    async def create(self, **payload: Any) -> "RawCompletion":
        """Call the model; the result comes from `.parse()`."""
        return RawCompletion(await self._client.create(**payload))


class RawCompletion:
    """A result that has to be asked for."""

    def __init__(self, result: "CompletionStream | dict[str, Any]") -> None:
        self._result = result
        self.headers: dict[str, str] = {}

    def parse(self) -> "CompletionStream | dict[str, Any]":
        """The result."""
        return self._result


class CompletionStream:
    """One streamed call: an async context manager and iterator of checked chunk dicts, to be used once.

    `on_text` gets the text of each chunk that is nothing else, and `on_thought` then all reasoning, in their place
    between the other chunks. They are called while the iteration waits, by the event loop and not by the task: for a
    token, a task would be woken through all that it stands in. They must be quick; what they raise, the iteration
    raises. Without `on_text` all is in the chunks, reasoning as `reasoning_content`.

    The request is sent by the first iteration. Leaving the context, cancellation and any error close the upstream
    connection at once; a stream read to its end gives it back for the next call.
    """

    def __init__(
        self,
        client: CompletionsClient,
        body: bytes,
        on_text: Callable[[str], None] | None = None,
        on_thought: Callable[[str], None] | None = None,
    ) -> None:
        self._client = client
        self._endpoint = client.endpoint
        self._text_only = on_text is not None
        self._on_text = on_text or _nobody
        self._on_thought = on_thought or _nobody
        self._body = body
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since = _NOBODY_WAITS
        self._begun = False
        self._rest: asyncio.Future[list[wire.Piece]] | None = None
        """What the iteration waits for: pieces that are more than text to be passed on at once, or nothing at the
        end."""
        self._waiter: asyncio.Future[None] | None = None
        self._held = False
        self._reset()
        self._iterator = self._run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._iterator.aclose()

    def __aiter__(self) -> AsyncGenerator[wire.Chunk]:
        return self._iterator

    def _reset(self) -> None:
        self._response: aiohttp.ClientResponse | None = None
        self._content: aiohttp.StreamReader | None = None
        self._decoder = AnswerDecoder(self._endpoint, text_only=self._text_only)
        self._failure: Exception | None = None

    async def _run(self) -> AsyncGenerator[wire.Chunk]:
        with self._client.guard.call(streamed=True) as call:
            try:
                pieces = await self._begin()
                call.begun()
                while True:
                    for piece in pieces:
                        if isinstance(piece, str):
                            self._publish_piece(piece)
                        else:
                            yield piece
                    if self._decoder.ended:
                        break
                    pieces = await self._read()
                await self._drain()
            finally:
                call.use = self._decoder.usage
                self._close()

    async def _begin(self) -> list[wire.Piece]:
        """Everything up to and with the first token: the only part that is ever tried again."""
        try:
            async with asyncio.timeout(first_token_within(self._endpoint.deadlines.first_token_s)):
                begun = await self._client.guard.retrying(self._attempt)
        except TimeoutError:
            raise failures.silent("no first token") from None
        self._begun = True
        self._timer = self._loop.call_later(self._endpoint.deadlines.inter_token_s, self._watch)
        return begun

    async def _attempt(self) -> list[wire.Piece]:
        self._reset()
        try:
            self._response = await self._client.open_stream(self._body)
            if self._response.content_type == _WHOLE_TYPE:
                return self._decoder.whole(await self._client.read(self._response))
            self._content = self._response.content
            chunks: list[wire.Piece] = []
            begun = False
            while not begun and not self._decoder.ended:
                new = await self._read()
                begun = any(map(wire.is_token, new))
                chunks += new
            if not chunks:
                raise failures.broken("empty stream")
            return chunks
        except AttemptFailed:
            self._close()
            raise
        except (aiohttp.ClientError, OSError) as failure:
            raise failures.of_exception(failure) from failure

    def _watch(self) -> None:
        """The deadline between tokens: one timer that follows the last wait lazily, since arming it costs."""
        limit_s = self._endpoint.deadlines.inter_token_s
        left_s = self._waiting_since + limit_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(min(left_s, limit_s), self._watch)
        elif self._response is not None:
            self._response.content.set_exception(failures.silent("no next token"))

    async def _read(self) -> list[wire.Piece]:
        """What the next reads bring that cannot be passed on as text at once, or nothing at the end of the stream.

        Nothing is passed on before the first token, as the attempt may still fail.
        """
        self._rest = self._loop.create_future()
        try:
            self._go_on()
            rest = await self._rest
        finally:
            self._rest = None
            self._listen_no_more()
        # What was good before something broken is handed out first.
        if not rest and self._failure is not None:
            raise self._failure
        return rest

    def _go_on(self) -> None:
        """Listen for more, where texts should gather after a while."""
        self._held = self._begun and self._endpoint.coalesce and self._client.coalescer.hold(self._listen_again)
        if not self._held:
            self._listen()

    def _listen_again(self) -> None:
        if self._held:  # else the stream was left meanwhile
            self._held = False
            self._listen()

    def _listen(self) -> None:
        self._waiting_since = self._loop.time()
        self._look_when_ready()

    def _look_when_ready(self) -> None:
        assert self._content is not None, "an attempt has begun"
        self._waiter = answer_body.waiter_of(self._content)
        if self._waiter is None:
            self._look()  # again only as often as aiohttp has held back parts of one read
        else:
            self._waiter.add_done_callback(self._look)

    def _look(self, waiter: "asyncio.Future[None] | None" = None) -> None:
        """Take what has arrived: tell text, and let the iteration have what is more. Raises what the teller does."""
        self._waiter = None
        if waiter is not None:
            waiter.exception()  # seen: taking raises it
        if self._rest is None or self._rest.done():
            return  # cancelled meanwhile
        brought = False
        rest: list[wire.Piece] = []
        foreseen = False
        try:
            if self._failure is None:
                brought, rest = self._publish_read()
            foreseen = True
        except AttemptFailed as failure:
            self._failure = failure
            foreseen = True
        finally:
            # What else is raised is in the loop's log; the iteration must not wait on.
            if not foreseen:
                self._failure = RuntimeError("a text could not be told")
            self._answer(brought, rest)

    def _answer(self, brought: bool, rest: list[wire.Piece]) -> None:
        """End the wait of the iteration where there is something for it, else listen on."""
        assert self._rest is not None
        if rest or self._decoder.ended or self._failure is not None:
            self._rest.set_result(rest)
        elif brought:
            self._go_on()
        else:
            self._look_when_ready()

    def _publish_read(self) -> tuple[bool, list[wire.Piece]]:
        """Whether this read has brought anything, and what of it was not passed on."""
        assert self._content is not None, "an attempt has begun"
        try:
            data = answer_body.take(self._content)
        except (aiohttp.ClientError, OSError) as failure:
            data = self._lost(failure)
        pieces = self._decoder.feed(data)
        self._failure = self._decoder.failure
        if pieces:
            # While the consumer works, nobody waits for the model. Comments bring nothing, and move no deadline.
            self._waiting_since = _NOBODY_WAITS
        return bool(pieces), self._publish_leading(pieces) if self._begun else pieces

    def _listen_no_more(self) -> None:
        self._held = False
        if self._waiter is not None:
            assert self._content is not None
            self._waiter.remove_done_callback(self._look)
            answer_body.leave(self._content, self._waiter)
            self._waiter = None

    def _publish_piece(self, piece: str) -> None:
        if type(piece) is str:
            self._on_text(piece)
        elif piece:
            self._on_thought(str(piece))

    def _publish_leading(self, pieces: list[wire.Piece]) -> list[wire.Piece]:
        """Tell the texts before the first chunk that is more; that and what follows it."""
        for place, piece in enumerate(pieces):
            if not isinstance(piece, str):
                return pieces[place:]
            self._publish_piece(piece)
        return []

    def _lost(self, failure: aiohttp.ClientError | OSError) -> bytes:
        """A connection that ended badly has ended all the same where the model had finished."""
        if self._decoder.finished:
            return b""
        if self._begun and not isinstance(failure, TimeoutError):
            raise failures.broken("connection lost in the stream") from failure
        raise failures.of_exception(failure) from failure

    async def _drain(self) -> None:
        """Read the end of the body that follows `[DONE]`, so that the connection can be used again."""
        if self._response is None or self._response.content.at_eof() or self._decoder.cut:
            return
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self._response.content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Their tracebacks hold this object once they were raised.
        self._failure = self._decoder.failure = None
        response, self._response, self._content = self._response, None, None
        if response is None:
            return
        if response.content.at_eof():
            response.release()
        else:
            response.close()


def _without_options(body: bytes) -> bytes | None:
    """A request without `stream_options`; None if it has none."""
    payload = loads(body)
    return None if payload.pop("stream_options", None) is None else dumps(payload)


def _nobody(_text: str) -> None:
    """The text callback where nobody wants text; it is never called with any."""
