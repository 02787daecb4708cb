"""One streamed model call as a turn's answer: deltas while it runs, an `AgentAnswer` at its end."""

import re
from collections.abc import Sequence
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage

from agentic_backend.agent.run import AgentAnswer, AgentRun, FinishReason, HistoryItem
from agentic_backend.events import Delta, Emit
from backend_kit.kpi import phase

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
_LANGUAGE: Final = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,2}")
_USAGE = ("input_tokens", "output_tokens", "total_tokens")


async def stream_answer(
    model: BaseChatModel, messages: Sequence[BaseMessage], emit: Emit, *, fallback_model_name: str = ""
) -> AgentAnswer:
    """Call the model, emit each piece of text as it comes, and return the answer.

    Timed as phase `llm_invoke`. Raises the model's `TurnFailed`; what was emitted before stays emitted.
    `fallback_model_name` is for endpoints that do not say which model answered.
    """
    pieces: list[str] = []
    metadata: dict[str, Any] = {"model": fallback_model_name, "finish_reason": "stop"}
    with phase("llm_invoke"):
        async for chunk in model.astream(messages):
            if text := chunk.content if type(chunk.content) is str else chunk.text:
                pieces.append(text)
                emit(Delta(text))
            # Only the last chunks of a stream know more than text.
            if "finish_reason" in chunk.response_metadata or chunk.usage_metadata is not None:
                _note(chunk, metadata)
    return AgentAnswer("".join(pieces), metadata=metadata)


def conversation(system: str, run: AgentRun) -> list[BaseMessage]:
    """The system prompt, the earlier turns and the question, as a model wants them."""
    return [SystemMessage(system), *map(said, run.history), HumanMessage(run.message)]


def with_language(system: str, language: str | None) -> str:
    """A system prompt that names the asker's language, for questions that do not show it."""
    # Only what looks like a language tag goes into the prompt: the value is the client's.
    if language is None or not _LANGUAGE.fullmatch(language):
        return system
    return f"{system}\nWhere the question's language is unclear, answer in the language with the tag {language}."


def said(item: HistoryItem) -> BaseMessage:
    """One earlier message as a model wants it."""
    return HumanMessage(item.text) if item.role == "user" else AIMessage(item.text)


def _note(chunk: AIMessageChunk, metadata: dict[str, Any]) -> None:
    if reason := chunk.response_metadata.get("finish_reason"):
        metadata["finish_reason"] = _FINISH_REASONS.get(reason, "other")
    if name := chunk.response_metadata.get("model_name"):
        metadata["model"] = name
    if chunk.usage_metadata is not None:
        # The last count stands: some endpoints repeat a growing one, so a sum would be wrong.
        metadata["token_usage"] = {key: chunk.usage_metadata[key] for key in _USAGE}  # type: ignore[literal-required]
