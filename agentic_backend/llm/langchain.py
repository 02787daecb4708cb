"""LangChain beneath our chat models: the base of those that only stream, and whether anybody hears its callbacks."""

from collections.abc import AsyncIterator
from typing import Any

from langchain_core import globals as langchain_globals
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.tracers import context as tracing
from langchain_core.utils.env import env_var_is_set
from langsmith import utils as langsmith_utils


class AsyncOnlyChatModel(BaseChatModel):
    """Only streams, and only asynchronously: the whole answer is made of the stream.

    A class below has `_astream`, and `_llm_type`; a synchronous call raises RuntimeError.
    """

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


def callbacks_configured(own: Callbacks = None) -> bool:
    """Whether a run that began here would call any handler, as of a tracer, a caller or `set_debug`; `own` are those of
    the object that would run.

    `AsyncCallbackManager.configure` finds out by making managers, in 9 µs a call and twice a turn. This asks where it
    looks; `tests/contracts` holds the two together.
    """
    if own or langchain_globals.get_debug() or tracing.tracing_v2_callback_var.get() is not None:
        return True
    if langsmith_utils.tracing_is_enabled():
        return True
    if var_child_runnable_config.get() is not None and ensure_config().get("callbacks"):
        return True
    return any(
        var.get() is not None or (variable is not None and kind is not None and env_var_is_set(variable))
        for var, _, kind, variable in tracing._configure_hooks
    )
