"""One streamed model call as a turn's answer: deltas while it runs, an `AgentAnswer` at its end."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage

from agentic_backend.agent.kit import NamedModel
from agentic_backend.agent.run import AgentAnswer, AgentRun, FinishReason
from agentic_backend.events import Delta, Emit, Thought, call_part
from agentic_backend.llm.chunks import Ending
from agentic_backend.llm.group import ModelGroup
from agentic_backend.llm.models import StreamingChatModel
from agentic_backend.llm.prompt import Prompt
from agentic_backend.llm.providers import GuardedChatModel
from agentic_backend.llm.thinking import reasoning_in
from backend_kit.kpi import phase
from backend_kit.wire import InvalidJson, loads

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
_LANGUAGE: Final = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,2}")
UNKNOWN: Final = ("selected_chat_context_ids", "deep_search")
"""What clients of Fred may ask for in the context of a turn, and no agent of ours does."""
_USAGE = ("input_tokens", "output_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model requests. `arguments` is None where they cannot be parsed, `written` the model's own
    text of them."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    written: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one model call: its text, and the tools that it wants called before it continues."""

    answer: AgentAnswer
    calls: tuple[ToolCall, ...] = ()


async def stream_answer(
    model: BaseChatModel, messages: Sequence[BaseMessage], emit: Emit, *, fallback_model_name: str = ""
) -> AgentAnswer:
    """Call the model, emit each piece of text and of reasoning as it comes, and return the answer: the text alone.

    Timed as phase `llm_invoke`. Raises the model's `TurnFailed`; what was emitted before stays emitted.
    `fallback_model_name` is for endpoints that do not say which model answered.
    """
    return (await stream_reply(model, messages, emit, fallback_model_name=fallback_model_name)).answer


async def stream_reply(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    emit: Emit,
    *,
    tools: Sequence[dict[str, Any]] = (),
    fallback_model_name: str = "",
) -> Reply:
    """`stream_answer` for a model that is offered `tools`, as a chat completions request names them."""
    pieces: list[str] = []
    metadata: dict[str, Any] = {"model": fallback_model_name, "finish_reason": "stop"}
    calling: AIMessageChunk | None = None
    offered: dict[str, Any] = {"tools": list(tools)} if tools else {}

    def take(text: str) -> None:
        pieces.append(text)
        emit(Delta(text))

    def think(text: str) -> None:
        emit(Thought(text))

    with phase("llm_invoke"):
        async for chunk in _chunks(model, messages, take, think, offered):
            if isinstance(chunk, Ending):
                _note(chunk.finish_reason, chunk.model, chunk.usage, metadata)
                continue
            if thought := reasoning_in(chunk):
                think(thought)
            if text := chunk.content if type(chunk.content) is str else chunk.text:
                take(text)
            if offered and chunk.tool_call_chunks:
                calling = chunk if calling is None else calling + chunk
            # Only the last chunks of a stream know more than text.
            about, usage = chunk.response_metadata, chunk.usage_metadata
            if "finish_reason" in about or usage is not None:
                _note(about.get("finish_reason"), about.get("model_name"), usage, metadata)
    return Reply(AgentAnswer("".join(pieces), metadata=metadata), _calls(calling))


async def answer_or_calls(model: NamedModel, messages: Sequence[BaseMessage], run: AgentRun) -> AgentAnswer:
    """`stream_answer` with the client's tools offered: where the model calls some, the answer ends with their calls.

    Each is then a part (`call_part`), and the finish reason is `tool_calls`. The calls are the client's to execute.
    """
    tools = [{"type": "function", "function": dict(tool)} for tool in run.client_tools]
    reply = await stream_reply(model.chat_model, messages, run.emit, tools=tools, fallback_model_name=model.name)
    if not reply.calls:
        return reply.answer
    metadata = reply.answer.metadata | {"finish_reason": "tool_calls"}
    parts = [call_part(call.id, call.name, call.arguments, call.written) for call in reply.calls]
    return replace(reply.answer, parts=parts, metadata=metadata)


def conversation(system: str, run: AgentRun) -> Prompt:
    """The system prompt, the earlier turns and the question, as messages for a model."""
    return Prompt(system, run.history, question_of(run), run.images)


def question_of(run: AgentRun, *above: str) -> str:
    """The question, below texts to answer it from: `above`, and that of attachments which its client sent with it."""
    attached = run.runtime_context.get("attachments_markdown")
    texts = [*above, *([f"Attached:\n\n{attached}"] if attached else [])]
    # An empty message goes on from the results of a client's tools.
    return "\n\n\n".join([*texts, f"Question: {run.message}"]) if texts and run.message else run.message


def with_ignored(answer: AgentAnswer, run: AgentRun, *names: str) -> AgentAnswer:
    """The answer, which says in `extras.without_effect` what of `names` was asked for in the context of the turn."""
    asked = [name for name in names if run.runtime_context.get(name)]
    if not asked:
        return answer
    extras = {**answer.metadata.get("extras", {}), "without_effect": asked}
    return replace(answer, metadata={**answer.metadata, "extras": extras})


def with_language(system: str, language: str | None) -> str:
    """A system prompt that names the user's language, for questions that do not reveal it."""
    # Only what looks like a language tag goes into the prompt: the value is the client's.
    if language is None or not _LANGUAGE.fullmatch(language):
        return system
    return f"{system}\nWhere the question's language is unclear, answer in the language with the tag {language}."


def _chunks(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    take: Callable[[str], None],
    think: Callable[[str], None],
    options: dict[str, Any],
) -> AsyncIterator[Ending | AIMessageChunk]:
    """The stream of any model. Ours, and those we guard, hand plain text to `take` and reasoning to `think`."""
    if isinstance(model, StreamingChatModel | GuardedChatModel | ModelGroup):
        return model.astream_text(messages, take, think, **options)
    return model.astream(messages, **options)


def _calls(calling: AIMessageChunk | None) -> tuple[ToolCall, ...]:
    """The calls in the order the model gave them, each with an id that no other call has."""
    seen: set[str] = set()
    calls = []
    for piece in calling.tool_call_chunks if calling is not None else ():
        call_id = piece["id"]
        if not call_id or call_id in seen:
            call_id = f"call_{uuid4().hex}"  # some endpoints give none, or the same one twice
        seen.add(call_id)
        written = piece["args"] or ""
        calls.append(ToolCall(call_id, piece["name"] or "", _arguments(written), written))
    return tuple(calls)


def _arguments(text: str) -> dict[str, Any] | None:
    """The arguments exactly as the model wrote them: langchain's parser would complete truncated JSON."""
    try:
        arguments = loads(text.encode()) if text else {}
    except (InvalidJson, UnicodeEncodeError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _note(reason: str | None, model: str | None, usage: Mapping[str, Any] | None, metadata: dict[str, Any]) -> None:
    if reason:
        metadata["finish_reason"] = _FINISH_REASONS.get(reason, "other")
    if model:
        metadata["model"] = model
    if usage is not None:
        # The last count is the right one: some endpoints repeat a growing count, so a sum would be wrong.
        metadata["token_usage"] = {key: usage[key] for key in _USAGE}
