"""A chat model that answers from a script, and records what it was asked."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from agentic_backend.llm.langchain import AsyncOnlyChatModel
from backend_kit.wire import dumps


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer of a model: its text in streamed pieces, then the tools that it calls. `usage` are the tokens that it
    reports, input and output; None: it reports none."""

    pieces: tuple[str, ...] = ()
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    usage: tuple[int, int] | None = None


def says(*pieces: str, usage: tuple[int, int] | None = None) -> ScriptedAnswer:
    """An answer streamed in these pieces. `usage`: input and output tokens."""
    return ScriptedAnswer(pieces, usage=usage)


def wants(*calls: tuple[str, dict[str, Any]], text: str = "", usage: tuple[int, int] | None = None) -> ScriptedAnswer:
    """An answer that calls tools, each by name and arguments, after some text. `usage`: input and output tokens."""
    return ScriptedAnswer((text,) if text else (), calls, usage)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a model was asked: the messages of a call, and the names of the tools that it was offered."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = field(default=())


class FakeModel(AsyncOnlyChatModel):
    """Answers from its script, one answer per call, and streams as the service's model does.

    `asked` records the calls. An exception in the script is raised at its position. A call beyond the script raises
    AssertionError: the agent asked more than the test expects. Async only, as in the service. `bind_tools` offers
    tools as langchain-openai does.
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

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with these tools on offer; `asked` names them. What it calls is what the script says."""
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 # langchain's signature
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 # langchain's signature
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        number = len(self._asked)
        tools = tuple(tool.get("function", tool).get("name", "") for tool in kwargs.get("tools", ()))
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
        ending = {"finish_reason": reason, "model_name": "scripted"}
        yield _chunk(AIMessageChunk(content="", response_metadata=ending, usage_metadata=_usage(said)))


def _usage(said: ScriptedAnswer) -> UsageMetadata | None:
    if said.usage is None:
        return None
    given, made = said.usage
    return UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)


def _chunk(message: AIMessageChunk) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=message)
