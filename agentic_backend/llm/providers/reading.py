"""What stands in a message of a LangChain chat model, or in a chunk of one, whichever provider's."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, AIMessageChunk

from agentic_backend.llm.chunks import REASONING
from agentic_backend.llm.observer import TokenUse

_STOPS: Final = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
}
"""Why models stop, by the names of their providers in lower case, as chat completions name it."""
_REASONS: Final = ("finish_reason", "stop_reason", "done_reason", "stopReason")


class ChunkText(NamedTuple):
    """The text of a chunk, and what the model says in it while it reasons."""

    text: str
    thought: str


def text_in(chunk: AIMessage) -> ChunkText:
    """What a chunk says."""
    content = chunk.content
    if type(content) is str and not chunk.additional_kwargs:
        return ChunkText(content, "")
    blocks = chunk.content_blocks
    texts = [block["text"] for block in blocks if block["type"] == "text" and block.get("text")]
    thoughts = [block["reasoning"] for block in blocks if block["type"] == "reasoning" and block.get("reasoning")]
    if not thoughts and isinstance(thought := chunk.additional_kwargs.get(REASONING), str):
        thoughts = [thought]  # langchain's blocks leave it out where the model's provider is OpenAI
    return ChunkText("".join(texts), "".join(thoughts))


def brings(chunk: AIMessageChunk, said: ChunkText) -> bool:
    """Whether the chunk is a token: text, reasoning, a piece of a tool call, or the end."""
    return bool(said.text or said.thought or chunk.tool_call_chunks or reason_in(chunk))


def reason_in(chunk: AIMessage) -> str | None:
    """Why the model stopped, as chat completions name it, on the chunk that says so."""
    about = chunk.response_metadata
    if not about:
        return None
    said = next((about[name] for name in _REASONS if isinstance(about.get(name), str) and about[name]), None)
    if said is None and about.get("status") in ("completed", "incomplete"):  # OpenAI's responses
        details = about.get("incomplete_details")
        said = str(details.get("reason")) if isinstance(details, dict) else about["status"]
    return None if said is None else _STOPS.get(said.lower(), "other")


def use_in(chunk: AIMessage) -> TokenUse | None:
    """The tokens of the call, on the chunk that says so."""
    usage = chunk.usage_metadata
    if usage is None:
        return None
    read, written = usage["input_tokens"], usage["output_tokens"]
    asked: Mapping[str, Any] = usage.get("input_token_details") or {}
    answered: Mapping[str, Any] = usage.get("output_token_details") or {}
    # Parts of the whole: a provider that counts them apart must not make a price negative.
    return TokenUse(
        read, written, min(asked.get("cache_read") or 0, read), min(answered.get("reasoning") or 0, written)
    )


def storable(value: Any) -> Any:
    """The value with what cannot be stored or sent, NUL and lone surrogates, as U+FFFD in each of its texts."""
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    if isinstance(value, list):
        return [storable(item) for item in value]
    return {key: storable(item) for key, item in value.items()} if isinstance(value, dict) else value
