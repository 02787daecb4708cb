"""A chat model that answers from a script, and records what it was asked."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from backend_kit.wire import dumps


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer of a model: its text in streamed pieces, then the tools that it calls."""

    pieces: tuple[str, ...] = ()
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def says(*pieces: str) -> ScriptedAnswer:
    """An answer streamed in these pieces."""
    return ScriptedAnswer(pieces)


def wants(*calls: tuple[str, dict[str, Any]], text: str = "") -> ScriptedAnswer:
    """An answer that calls tools, each by name and arguments, after some text."""
    return ScriptedAnswer((text,) if text else (), calls)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a model was asked: the messages of a call, and the names of the tools that it was offered."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = field(default=())


class FakeModel(BaseChatModel):
    """Answers from its script, one answer per call, and streams as the service's model does.

    `asked` records the calls. An exception in the script is raised at its position. A call beyond the script raises
    AssertionError: the agent asked more than the test expects. Async only, as in the service.
    """

    _script: list[ScriptedAnswer | Exception] = PrivateAttr()
    _asked: list[Asked] = PrivateAttr(default_factory=list)

    def __init__(self, *script: ScriptedAnswer | Exception | str) -> None:
        super().__init__()
        self._script = [says(one) if isinstance(one, str) else one for one in script]

    @property
    def asked(self) -> Sequence[Asked]:
        """The calls so far."""
        return tuple(self._asked)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *_args: Any, **_kwargs: Any) -> ChatResult:
        raise RuntimeError("this chat model is async only: use ainvoke or astream")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 # langchain's signature
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 # langchain's signature
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        number = len(self._asked)
        tools = tuple(tool["function"]["name"] for tool in kwargs.get("tools", ()))
        self._asked.append(Asked(tuple(messages), tools))
        assert number < len(self._script), f"the model was asked {number + 1} times, its script has {number} answers"
        said = self._script[number]
        if isinstance(said, Exception):
            raise said
        for piece in said.pieces:
            yield _chunk(AIMessageChunk(content=piece))
        for index, (name, arguments) in enumerate(said.calls):
            call_id = f"call_{number}_{index}"
            call = tool_call_chunk(name=name, args=dumps(arguments).decode(), id=call_id, index=index)
            yield _chunk(AIMessageChunk(content="", tool_call_chunks=[call]))
        reason = "tool_calls" if said.calls else "stop"
        yield _chunk(AIMessageChunk(content="", response_metadata={"finish_reason": reason, "model_name": "scripted"}))


def _chunk(message: AIMessageChunk) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=message)
