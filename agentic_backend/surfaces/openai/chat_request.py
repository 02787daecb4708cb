"""The body of `POST /v1/chat/completions`: what is asked, and which of its parameters have no effect."""

from dataclasses import dataclass, field
from typing import Any, Final

from agentic_backend.surfaces.openai import reading
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import Conversation, read_messages, read_tools

MAX_TOOLS: Final = 128
MAX_MODEL_CHARS: Final = 512

# An agent has its own model settings, which its author chose. Each with the value that asks for nothing.
IGNORED: Final[dict[str, Any]] = {
    "temperature": 1,
    "top_p": 1,
    "top_k": None,
    "min_p": None,
    "max_tokens": None,
    "max_completion_tokens": None,
    "stop": None,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "seed": None,
    "logit_bias": {},
    "logprobs": False,
    "top_logprobs": 0,
    "reasoning_effort": None,
    "verbosity": None,
    "prediction": None,
    "web_search_options": None,
    "functions": [],
    "function_call": None,
}
"""Parameters that are read by nobody: the header names those that ask for something."""
_TOOL_PARAMETERS: Final[dict[str, Any]] = {"tool_choice": "auto", "parallel_tool_calls": True}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completions request. `ignored` names the parameters, and other fields, that have no effect."""

    model: str
    conversation: Conversation
    stream: bool = False
    include_usage: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def read_chat_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises Refused, which names the field."""
    fields = reading.read_object(body)
    model = reading.text(fields, "model", most=MAX_MODEL_CHARS)
    if fields.get("messages") is None:
        raise reading.missing("messages")
    conversation = read_messages(fields["messages"])
    _refuse_what_would_be_another_answer(fields)
    tools = reading.optional_list(fields, "tools")
    if len(tools) > MAX_TOOLS:
        raise Refused(f"tools has more than {MAX_TOOLS} tools.", "tools", "array_above_max_length")
    offered = () if fields.get("tool_choice") == "none" else read_tools(tools)
    return ChatRequest(
        model=model,
        conversation=conversation,
        stream=reading.flag(fields, "stream"),
        include_usage=reading.flag(
            reading.optional_object(fields, "stream_options"), "include_usage", "stream_options"
        ),
        tools=offered,
        metadata=reading.optional_object(fields, "metadata"),
        ignored=(*ignored_in(fields, IGNORED, _TOOL_PARAMETERS if offered else {}), *sorted(conversation.left_out)),
    )


def ignored_in(fields: reading.Object, *ignored: dict[str, Any]) -> tuple[str, ...]:
    """The parameters in a body, of those in `ignored`, that ask for something."""
    neutral = {name: value for names in ignored for name, value in names.items()}
    return tuple(name for name, nothing in neutral.items() if fields.get(name) is not None and fields[name] != nothing)


def _refuse_what_would_be_another_answer(fields: reading.Object) -> None:
    """Raise Refused for what a client cannot do without: other answers would be taken for what was asked for."""
    if (count := reading.whole(fields, "n")) is not None and count != 1:
        raise Refused("n must be 1: an agent gives one answer.", "n", "invalid_value")
    kind = reading.optional_object(fields, "response_format").get("type", "text")
    if kind != "text":
        raise Refused("response_format.type must be text: agents answer in text.", "response_format", "invalid_value")
    modalities = reading.optional_list(fields, "modalities")
    if modalities and modalities != ["text"]:
        raise Refused('modalities must be ["text"]: agents answer in text.', "modalities", "invalid_value")
