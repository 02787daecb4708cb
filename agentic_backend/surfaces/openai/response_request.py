"""The body of `POST /v1/responses`: what is asked, and which of its parameters have no effect."""

from dataclasses import dataclass, field
from typing import Any, Final

from agentic_backend.surfaces.openai import reading
from agentic_backend.surfaces.openai.chat_request import MAX_MODEL_CHARS, MAX_TOOLS, ignored_in
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import distinct, function_of

# An agent has its own model settings, which its author chose. Each with the value that is the default.
IGNORED: Final[dict[str, Any]] = {
    "temperature": 1,
    "top_p": 1,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "top_logprobs": 0,
    "truncation": "disabled",
    "include": [],
    "context_management": [],
    "moderation": None,
}
"""Parameters that are ignored: the header names those that ask for something."""
_TOOL_PARAMETERS: Final[dict[str, Any]] = {"tool_choice": "auto", "parallel_tool_calls": True}
_MAX_METADATA: Final = 16
_MAX_KEY: Final = 64
_MAX_VALUE: Final = 512
_MAX_ID: Final = 256


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request for a response. `input` is as it was sent: what it may refer to is known once `previous` is read.

    `ignored` names the parameters that have no effect.
    """

    model: str
    input: Any
    instructions: str | None = None
    previous: str | None = None
    conversation: str | None = None
    stream: bool = False
    background: bool = False
    store: bool = True
    tools: tuple[dict[str, Any], ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def read_response_request(body: bytes) -> ResponseRequest:
    """The request in a body. Raises Refused, which names the field."""
    fields = reading.read_object(body)
    model = reading.text(fields, "model", most=MAX_MODEL_CHARS)
    if fields.get("input") is None:
        raise reading.missing("input")
    _refuse_what_would_be_another_answer(fields)
    previous = reading.optional_text(fields, "previous_response_id", most=_MAX_ID)
    conversation = _conversation(fields.get("conversation"))
    if previous is not None and conversation is not None:
        raise Refused("conversation cannot be used with previous_response_id.", "conversation", "invalid_value")
    background, store = reading.flag(fields, "background"), fields.get("store") is None or reading.flag(fields, "store")
    if background and not store:
        raise Refused("background needs store: the response is asked for later.", "background", "invalid_value")
    tools, others = _tools(reading.optional_list(fields, "tools"))
    offered = () if fields.get("tool_choice") == "none" else tools
    return ResponseRequest(
        model=model,
        input=fields["input"],
        instructions=reading.optional_text(fields, "instructions"),
        previous=previous,
        conversation=conversation,
        stream=reading.flag(fields, "stream"),
        background=background,
        store=store,
        tools=offered,
        metadata=_metadata(reading.optional_object(fields, "metadata")),
        ignored=(*ignored_in(fields, IGNORED, _TOOL_PARAMETERS if offered else {}), *_inside(fields), *others),
    )


def _refuse_what_would_be_another_answer(fields: reading.Object) -> None:
    """Raise Refused for parameters that a client relies on: a different answer would be taken for the one asked for."""
    form = reading.optional_object(reading.optional_object(fields, "text"), "format", "text")
    if form.get("type", "text") != "text":
        raise Refused("text.format.type must be text: agents answer in text.", "text.format.type", "invalid_value")
    if fields.get("prompt") is not None:
        raise Refused("prompt names a template: there are none here.", "prompt", "invalid_value")


def _inside(fields: reading.Object) -> list[str]:
    """Parts of parameters that have no effect. Summaries of reasoning are always sent."""
    effort = reading.optional_object(fields, "reasoning").get("effort")
    verbosity = reading.optional_object(fields, "text").get("verbosity")
    named = (("reasoning.effort", effort), ("text.verbosity", verbosity))
    return [name for name, wanted in named if wanted not in (None, "medium")]


def _conversation(given: Any) -> str | None:
    if given is None:
        return None
    if isinstance(given, dict):
        return reading.text(given, "id", "conversation", most=_MAX_VALUE)
    return reading.text({"conversation": given}, "conversation", most=_MAX_VALUE)


def _tools(given: list[Any]) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """The functions among the tools, and the names of the others: those of OpenAI's own servers."""
    if len(given) > MAX_TOOLS:
        raise Refused(f"tools has more than {MAX_TOOLS} tools.", "tools", "array_above_max_length")
    functions, others = [], []
    for number, tool in enumerate(given):
        at = f"tools[{number}]"
        fields = reading.object_at(tool, at)
        if reading.text(fields, "type", at) == "function":
            functions.append((at, function_of(fields, at)))
        else:
            others.append(at)
    return distinct(functions), others


def _metadata(given: reading.Object) -> dict[str, str]:
    if len(given) > _MAX_METADATA:
        raise Refused(f"metadata has more than {_MAX_METADATA} keys.", "metadata", "object_above_max_properties")
    for key, value in given.items():
        if not isinstance(value, str):
            raise reading.wrong("metadata", "an object of strings")
        if len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            sentence = f"metadata has a key of more than {_MAX_KEY} characters, or a value of more than {_MAX_VALUE}."
            raise Refused(sentence, "metadata", "string_above_max_length")
    return given
