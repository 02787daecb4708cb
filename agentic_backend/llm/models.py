"""The chat models of a process: one per endpoint, all over one HTTP session."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import langchain_core.messages.block_translators.langchain_v0  # noqa: F401 - a first turn would load it on the loop
from langchain_core.messages import AIMessageChunk, BaseMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentic_backend.llm import chunks as wire
from agentic_backend.llm.client import CompletionsClient
from agentic_backend.llm.coalescing import Coalescer
from agentic_backend.llm.endpoint import Endpoint
from agentic_backend.llm.langchain import callbacks_configured
from agentic_backend.llm.observer import METERED, LlmObserver, Unobserved
from agentic_backend.llm.prompt import Prompt
from backend_kit.client.connections import Connections, open_session

_PLAIN = frozenset({"tools", "tool_choice"})
_STREAM: dict[str, Any] = {"stream": True}
_COUNTED: dict[str, Any] = {**_STREAM, "stream_options": {"include_usage": True}}
_ASKED = ChatPromptValue(messages=[SystemMessage("")])
"""In the place of the messages: langchain-openai says what else a request has, and what it calls the system's role."""


class StreamingChatModel(ChatOpenAI):
    """A ChatOpenAI that also streams text as text."""

    async def astream_text(
        self,
        messages: Sequence[BaseMessage],
        on_text: Callable[[str], None],
        on_thought: Callable[[str], None] | None = None,
        **options: Any,
    ) -> AsyncIterator[wire.Ending | AIMessageChunk]:
        """`astream` for a caller that wants the text: `on_text` gets it, `on_thought` what the model says while it
        reasons, and how the answer ended comes as an `Ending`.

        It saves what langchain builds, keeps and merges for each token and message (`make bench-turn`). Where that is
        needed, it is done, and every chunk is a message: with a callback handler (a tracer, `stream_mode="messages"`),
        a message that is more than text, an option other than tools. With tools, what is more than text is a message.
        """
        if not self._is_plain(messages, options):
            async for message in self.astream(list(messages), **options):
                yield message
            return
        async with self.async_client.stream_text(self._body_of(messages, options), on_text, on_thought) as chunks:
            async for chunk in chunks:
                if options:
                    if (message_chunk := self._as_message(chunk)) is not None:
                        yield message_chunk
                else:
                    if text := wire.content_of(chunk):
                        on_text(text)
                    if (ending := wire.ending_of(chunk)) is not None:
                        yield ending

    def _is_plain(self, messages: Sequence[BaseMessage], options: dict[str, Any]) -> bool:
        if not options.keys() <= _PLAIN or self.verbose or callbacks_configured(self.callbacks):
            return False
        return isinstance(messages, Prompt) or all(type(message.content) is str for message in messages)

    def _body_of(self, messages: Sequence[BaseMessage], options: dict[str, Any]) -> bytes:
        """The request as langchain-openai would send it; a `Prompt` is not encoded again."""
        client: CompletionsClient = self.async_client
        how = _COUNTED if client.counted else _STREAM
        if not isinstance(messages, Prompt):
            return client.encode(self._get_request_payload(list(messages), **options, **how))
        payload = self._get_request_payload(_ASKED, **options, **how)
        (system,) = payload.pop("messages")
        return b'%b,"messages":%b}' % (client.encode(payload)[:-1], messages.encode(system["role"]))

    def _convert_chunk_to_generation_chunk(
        self, chunk: wire.Chunk, default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        """As it is, with the reasoning where langchain's integrations of reasoning models put it."""
        converted = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        if converted is not None and (thought := wire.reasoning_of(chunk)):
            converted.message.additional_kwargs[wire.REASONING] = thought
        return converted

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        """The same for an answer that is not streamed."""
        result = super()._create_chat_result(response, generation_info)
        if thought := response["choices"][0]["message"].get(wire.REASONING):
            result.generations[0].message.additional_kwargs[wire.REASONING] = thought
        return result

    def _as_message(self, chunk: wire.Chunk) -> AIMessageChunk | None:
        converted = self._convert_chunk_to_generation_chunk(chunk, AIMessageChunk, None)
        if converted is None:
            return None
        message = converted.message
        assert isinstance(message, AIMessageChunk)
        message.response_metadata |= converted.generation_info or {}
        return message


class ModelPool:
    """Owns the HTTP session and hands out chat models. Built on the running loop, closed by `aclose`.

    A model is shared by every agent and turn of its endpoint and holds nothing of any of them. Only its async
    methods work. Structured output goes through `method="function_calling"`.
    """

    def __init__(
        self,
        connections: Connections | None = None,
        observer: LlmObserver | None = None,
        *,
        pool_wait: Callable[[float], None] | None = None,
        coalescer: Coalescer | None = None,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pool_wait` gets the seconds of each wait for a free connection; `coalescer`, `clock` and `sleep` are those
        of the clients."""
        limits = connections or Connections()
        self._clock = clock
        self._sleep = sleep
        self._observer = observer or Unobserved()
        self._coalescer = coalescer or Coalescer()
        self._models: dict[Endpoint, StreamingChatModel] = {}
        # No bound on an answer here: its deadlines are those of its endpoint.
        self._session = open_session(replace(limits, read_s=None), pool_wait=pool_wait, pool_wait_row="llm_pool_wait")

    def chat_model(self, endpoint: Endpoint) -> StreamingChatModel:
        """The model of the endpoint, made on first use."""
        model = self._models.get(endpoint)
        if model is None:
            client = CompletionsClient(
                self._session,
                endpoint,
                self._observer,
                coalescer=self._coalescer,
                clock=self._clock,
                sleep=self._sleep,
            )
            model = self._models[endpoint] = chat_openai(client)
        return model

    @property
    def hold_s(self) -> float:
        """How long streams let texts gather now, in seconds: 0 while the loop has time. On the loop's thread."""
        return self._coalescer.now_s()

    async def aclose(self) -> None:
        """Close the session and its connections. Calls that still run fail."""
        self._models.clear()
        await self._session.close()


def chat_openai(client: CompletionsClient) -> StreamingChatModel:
    """A ChatOpenAI over our client. It never sees the API key, makes no client of its own and never retries."""
    return StreamingChatModel(
        model=client.endpoint.model,
        base_url=client.endpoint.base_url,
        api_key=SecretStr("held-by-the-client"),
        temperature=client.endpoint.temperature,
        max_completion_tokens=client.endpoint.max_tokens,
        client=_NoSyncClient(),
        async_client=client,
        streaming=True,
        stream_usage=True,
        # Its timeout makes a task per token on Python 3.11; the client has deadlines of its own.
        stream_chunk_timeout=None,
        max_retries=0,
        use_responses_api=False,
        http_socket_options=(),
        cache=False,
        metadata={METERED: True},
    )


class _NoSyncClient:
    """Stands where ChatOpenAI keeps its blocking client, and refuses: a blocking call would stop every turn."""

    def create(self, **_payload: Any) -> Any:
        raise RuntimeError("this chat model is async only: use ainvoke or astream")

    @property
    def with_raw_response(self) -> "_NoSyncClient":
        return self
