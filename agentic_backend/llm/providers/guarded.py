"""A chat model of LangChain's under the guarantees of our own."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable, RunnableBinding
from pydantic import ConfigDict

from agentic_backend.llm.chunks import Ending
from agentic_backend.llm.guard import Guard
from agentic_backend.llm.langchain import AsyncOnlyChatModel, callbacks_configured
from agentic_backend.llm.providers.call import GuardedCall

_TOOLS = ("tools", "tool_choice")


class GuardedChatModel(AsyncOnlyChatModel):
    """Any chat model of LangChain's, with deadlines, bounds, retries and a circuit breaker around its stream.

    Raises the `TurnFailed` family of `agentic_backend.errors` and nothing else. Each call is streamed, even if its
    answer is wanted as a whole. Async only. Its `metadata` marks that its calls are counted here.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    inner: BaseChatModel
    guard: Guard
    ends_with_reason: bool = False
    """Whether the provider says why each answer ended."""
    limit_field: str = ""
    """The field of `inner` that is called `max_tokens` elsewhere, if it is no argument of a call there."""

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools, in any form that LangChain takes."""
        return self.bind(**self._bound(tools, tool_choice, kwargs))

    async def astream_text(
        self,
        messages: Sequence[BaseMessage],
        on_text: Callable[[str], None],
        on_thought: Callable[[str], None] | None = None,
        **options: Any,
    ) -> AsyncIterator[Ending | AIMessageChunk]:
        """`StreamingChatModel.astream_text` of this model: what is more than text and reasoning is a message without
        either. `tools` are named as in a chat completions request."""
        if offered := options.pop("tools", None):
            options = self._bound(offered, options.pop("tool_choice", None), options)
        if callbacks_configured(self.callbacks):
            async for message in self.astream(list(messages), **options):
                yield message
            return
        named: dict[str, Any] = {}
        async with aclosing(self._call(list(messages), None, options).chunks()) as chunks:
            async for chunk, said in chunks:
                about = chunk.response_metadata
                if "model_name" in about:
                    named["model_name"] = about["model_name"]  # some name themselves in their first chunk
                if said.thought and on_thought is not None:
                    on_thought(said.thought)
                if said.text:
                    on_text(said.text)
                if chunk.tool_call_chunks or "finish_reason" in about or chunk.usage_metadata:
                    yield AIMessageChunk(
                        content="",
                        tool_call_chunks=chunk.tool_call_chunks,
                        response_metadata=about | named,
                        usage_metadata=chunk.usage_metadata,
                    )

    @property
    def _llm_type(self) -> str:
        return "guarded"

    def _chunks_of_whole(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: AsyncCallbackManagerForLLMRun | None,  # noqa: ARG002 - langchain calls its handlers
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        return self._generations(messages, stop, kwargs, whole=True)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 - langchain calls its handlers
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self._generations(messages, stop, kwargs)) as generations:
            async for generation in generations:
                yield generation

    async def _generations(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any], *, whole: bool = False
    ) -> AsyncGenerator[ChatGenerationChunk]:
        async with aclosing(self._call(messages, stop, options, whole=whole).chunks()) as chunks:
            async for chunk, _ in chunks:
                yield ChatGenerationChunk(message=chunk)

    def _call(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any], *, whole: bool = False
    ) -> GuardedCall:
        inner, options = self.inner, dict(options)
        if self.limit_field and (limit := options.pop("max_tokens", None)) is not None:
            inner = inner.model_copy(update={self.limit_field: limit})
        return GuardedCall(
            self.guard,
            lambda: inner._astream(messages, stop=stop, **options),
            ends_with_reason=self.ends_with_reason,
            whole=whole,
        )

    def _bound(self, tools: Sequence[Any], tool_choice: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call that offers these tools, as the provider's class names them."""
        if tool_choice is not None:
            kwargs = {**kwargs, "tool_choice": tool_choice}
        bound = self.inner.bind_tools(tools, **kwargs)
        assert isinstance(bound, RunnableBinding), "bind_tools binds"
        return dict(bound.kwargs)
