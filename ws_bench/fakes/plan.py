"""One answer of the fake model as decided on arrival, and what a wire must know to send it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend_kit.wire import InvalidJson, loads
from ws_bench.fakes.http import BadRequest, json_object


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """One answer as decided on arrival: its tokens, which are words, and how it ends."""

    number: int
    """Counts the answers of a server, for ids."""
    model: str
    created: int
    """Seconds since 1970."""
    tokens: Sequence[str]
    tool: str
    """The tool to call with the tokens as its arguments; empty: the tokens are the text."""
    finish_reason: str
    """As chat completions name it: `stop`, `length` or `tool_calls`."""
    prompt_tokens: int
    with_usage: bool
    thoughts: Sequence[str] = field(default=())
    """Tokens of reasoning that are sent before the others."""
    cached_tokens: int = 0
    """Tokens of the prompt that count as read from a cache."""

    @property
    def text(self) -> str:
        """The text, or the arguments of the call."""
        return "".join(self.tokens)

    @property
    def arguments(self) -> object:
        """The arguments of the call; none of one that the request's limit has cut."""
        try:
            return loads(self.text.encode())
        except InvalidJson:
            return {}

    @property
    def thought(self) -> str:
        """The reasoning."""
        return "".join(self.thoughts)

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer with its reasoning."""
        return len(self.thoughts) + len(self.tokens)

    def id_of(self, kind: str) -> str:
        """An id that begins as the API's do, such as `chatcmpl` or `call`."""
        return f"{kind}{self.number:012d}"


class Wire(Protocol):
    """How one API writes requests and answers. Has no state."""

    stream_type: bytes
    """The content type of a stream."""
    garbage: bytes
    """A chunk of the transfer coding with an event that is not JSON."""

    def read(self, body: bytes) -> dict[str, Any]:
        """The request as chat completions name its parts: `model`, `stream`, `messages`, `tools`, `max_tokens`; beside
        them `thinks`, whether the model may show its reasoning. Raises `BadRequest`."""

    def frames(self, plan: CompletionPlan) -> tuple[list[bytes], bytes]:
        """A stream as chunks of the transfer coding: one element for each token of reasoning and of the answer, and the
        end. What precedes a token is in its element."""

    def whole(self, plan: CompletionPlan) -> dict[str, object]:
        """The body of an answer that is not streamed."""

    def error(self, message: str, status: int) -> dict[str, object]:
        """The body of a refusal."""


def with_messages(body: bytes, key: str = "messages") -> dict[str, Any]:
    """The JSON object with a text at `model` and at least one object in the list `key`. Raises `BadRequest`."""
    request = json_object(body, "model")
    messages = request.get(key)
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise BadRequest(f"`{key}` must be a list of at least one object")
    return request


def joined(opening: bytes, frames: list[bytes], end: bytes) -> tuple[list[bytes], bytes]:
    """The frames of a stream with what stands before the first one, which may be the end."""
    if not frames:
        return frames, opening + end
    frames[0] = opening + frames[0]
    return frames, end
