"""The configured model of a turn, as a chat model that a graph can be built with before there is a turn."""

from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable, RunnableBinding
from pydantic import Field

from agentic_backend.agent.hosted.current import current_model, current_turn
from agentic_backend.llm.langchain import AsyncOnlyChatModel
from agentic_backend.llm.observer import METERED, CallStatus, TokenUse
from backend_kit.kpi import phase


class TurnModel(AsyncOnlyChatModel):
    """The model that the turn's agent has in the configuration, or that its asker chose.

    Calls have our deadlines, retries and limits, and are counted. Async only. Outside of a turn it raises RuntimeError.
    """

    tools: Sequence[Any] | None = None
    tool_options: dict[str, Any] = Field(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"metadata": {METERED: True}, **fields})

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools, in any form that LangChain takes; they are given to the model of each turn."""
        return self.model_copy(update={"tools": list(tools), "tool_options": options})

    @property
    def _llm_type(self) -> str:
        return "turn"

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        model: Any = current_model()
        if self.tools is not None:
            bound = model.bind_tools(self.tools, **self.tool_options)
            assert isinstance(bound, RunnableBinding)
            model, kwargs = bound.bound, {**bound.kwargs, **kwargs}
        async for chunk in model._astream(messages, stop, run_manager, **kwargs):
            yield chunk


class ModelCall:
    """A call of a model by something else than LangChain, while it is made."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._turn = current_turn()
        self._began = perf_counter()
        self._begun = False

    def first_token(self) -> None:
        """The model has begun to answer. Further calls do nothing."""
        if not self._begun:
            self._begun = True
            self._turn.observer.llm_first_chunk(self._model, perf_counter() - self._began)

    def used(self, input_tokens: int, output_tokens: int, *, cached_tokens: int = 0, reasoning_tokens: int = 0) -> None:
        """The tokens that the provider counted, once: `cached_tokens` are part of the input, `reasoning_tokens` of the
        output."""
        use = TokenUse(input_tokens, output_tokens, cached_tokens, reasoning_tokens)
        self._turn.observer.llm_tokens(self._model, use)
        self._turn.note_use(use)

    def _ended(self, status: CallStatus) -> None:
        self._turn.observer.llm_request(self._model, status, perf_counter() - self._began)


@contextmanager
def record_model_call(model: str) -> Iterator[ModelCall]:
    """Count a call of a model by something else than LangChain, in a node of a hosted graph: its time, its tokens, its
    cost by the price of `model`, and how it ended.

    `with record_model_call("gpt-5") as call:` around the call, `call.first_token()` and `call.used(…)` in it. Raises
    RuntimeError outside of a turn.
    """
    call = ModelCall(model)
    status: CallStatus = "error"
    try:
        with phase("llm_invoke"):
            yield call
        status = "ok"
    except TimeoutError:
        status = "timeout"
        raise
    except (CancelledError, GeneratorExit):
        status = "cancelled"
        raise
    finally:
        call._ended(status)
