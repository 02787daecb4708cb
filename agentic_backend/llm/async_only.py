"""A chat model of LangChain's that only streams, and only asynchronously."""

from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult


class AsyncOnlyChatModel(BaseChatModel):
    """Makes the whole answer of the stream. A class below has `_astream`, and `_llm_type`; a synchronous call raises
    RuntimeError."""

    def _generate(self, *_args: Any, **_kwargs: Any) -> ChatResult:
        raise RuntimeError("this chat model is async only: use ainvoke or astream")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._chunks_of_whole(messages, stop, run_manager, **kwargs))

    def _chunks_of_whole(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: AsyncCallbackManagerForLLMRun | None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        """The chunks of an answer that is wanted as a whole: for a class below that makes a difference."""
        return self._astream(messages, stop, run_manager, **kwargs)
