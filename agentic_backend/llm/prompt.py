"""What a model is asked: a system prompt, the conversation so far and the question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call

from backend_kit.wire import InvalidJson, dumps, loads

HistoryRole = Literal["user", "assistant", "system", "tool"]
Content = str | list[str | dict[Any, Any]]
"""Of a message, as langchain and a chat completions request have it: a text, or parts."""


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A tool call in an earlier message of a model. `arguments` is the text that the model wrote, mostly JSON."""

    id: str
    name: str
    arguments: str

    def wire(self) -> dict[str, Any]:
        """The call as a chat completions request has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    def parsed(self) -> dict[str, Any] | None:
        """The arguments; None where they are no JSON object."""
        try:
            arguments = loads(self.arguments.encode()) if self.arguments else {}
        except (InvalidJson, UnicodeEncodeError):
            return None
        return arguments if isinstance(arguments, dict) else None


class HistoryItem:
    """One earlier message of the conversation. Equal by its author, text and calls.

    `json` is the message as a chat completions request has it, encoded at its first use: a conversation is sent again
    with each of its turns. `checkpoint` of an answer names the state with which a hosted graph ended; "" for others.

    Stored history has the roles `user` and `assistant` alone. One that a client gave (`Ask.given`) may also have
    `system`, `assistant` with `calls` (its text may be empty), and `tool`: the result of the call `call_id`.

    `images` are the attachments that a stored question shows, by id. A model sees those that `showing` was given.
    """

    __slots__ = ("_json", "_shown", "call_id", "calls", "checkpoint", "images", "role", "text")

    def __init__(
        self,
        role: HistoryRole,
        text: str,
        checkpoint: str = "",
        *,
        calls: tuple[EarlierCall, ...] = (),
        call_id: str = "",
        images: tuple[str, ...] = (),
    ) -> None:
        self.role = role
        self.text = text
        self.checkpoint = checkpoint
        self.calls = calls
        self.call_id = call_id
        self.images = images
        self._shown: tuple[str, ...] = ()
        self._json = b""

    @property
    def json(self) -> bytes:
        """`{"content":text,"role":role}`, as langchain-openai writes it; with `tool_calls` or `tool_call_id`."""
        if not self._json:
            self._json = _encode(self.role, content_of(self.text, self._shown), self.calls, self.call_id)
        return self._json

    def showing(self, data_urls: Mapping[str, str]) -> "HistoryItem":
        """It with those of its images that are in `data_urls`, by id."""
        if not self.images:
            return self
        item = HistoryItem(self.role, self.text, self.checkpoint, images=self.images)
        item._shown = tuple(data_urls[one] for one in self.images if one in data_urls)
        return item

    def message(self) -> BaseMessage:
        """It as a message of langchain."""
        if self.role == "user":
            return HumanMessage(content_of(self.text, self._shown))
        if self.role == "system":
            return SystemMessage(self.text)
        if self.role == "tool":
            return ToolMessage(self.text, tool_call_id=self.call_id)
        calls: list[ToolCall] = []
        unreadable: list[InvalidToolCall] = []
        for call in self.calls:
            arguments = call.parsed()
            if arguments is None:
                unreadable.append(invalid_tool_call(name=call.name, args=call.arguments, id=call.id))
            else:
                calls.append(tool_call(name=call.name, args=arguments, id=call.id))
        return AIMessage(self.text, tool_calls=calls, invalid_tool_calls=unreadable)

    def stored(self) -> dict[str, Any]:
        """It as a JSON object, for `of_stored`. Never a checkpoint: nobody gives one."""
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.calls]
        more = {"calls": calls, "call_id": self.call_id, "images": list(self.images)}
        return {"role": self.role, "text": self.text, **{name: value for name, value in more.items() if value}}

    @classmethod
    def of_stored(cls, stored: dict[str, Any]) -> "HistoryItem":
        """The reverse of `stored`."""
        calls = tuple(EarlierCall(**call) for call in stored.get("calls", ()))
        images = tuple(stored.get("images", ()))
        return cls(stored["role"], stored["text"], calls=calls, call_id=stored.get("call_id", ""), images=images)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HistoryItem) and self._compared == other._compared

    def __hash__(self) -> int:
        return hash((self.role, self.text))

    @property
    def _compared(self) -> tuple[object, ...]:
        return self.role, self.text, self.calls, self.call_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role!r}, {self.text!r})"


class Prompt(Sequence[BaseMessage]):
    """The messages of one request. It is a sequence of langchain's messages, which are made only for who looks at them:
    our own client sends the encoded ones.

    What a client gave as system text is added to the system prompt: many models refuse a second one. Without a question
    the conversation goes on from the last message of the history, the result of a tool. `images` are those of the
    question, as data URLs.
    """

    __slots__ = ("_asks", "_history", "_messages", "_question", "_system")

    def __init__(self, system: str, history: Sequence[HistoryItem], question: str, images: Sequence[str] = ()) -> None:
        given = [item.text for item in history if item.role == "system"]
        self._system = "\n\n".join([system, *given]) if given else system
        # An answer without words is a graph's, for the state that it left; some models refuse an empty message.
        said = [item for item in history if item.text or item.role != "assistant" or item.calls]
        self._history = [item for item in said if item.role != "system"] if given else said
        self._question = content_of(question, images)
        self._asks = bool(question) or not self._history or self._history[-1].role != "tool"
        self._messages: list[BaseMessage] | None = None

    def encode(self, system_role: str) -> bytes:
        """The JSON array of a chat completions request; some models call the role of the system prompt otherwise."""
        history = [item.json for item in self._history]
        asked = [_encode("user", self._question)] if self._asks else []
        return b"[%b]" % b",".join((_encode(system_role, self._system), *history, *asked))

    @overload
    def __getitem__(self, index: int) -> BaseMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[BaseMessage]: ...
    def __getitem__(self, index: int | slice) -> BaseMessage | list[BaseMessage]:
        if self._messages is None:
            asked = [HumanMessage(self._question)] if self._asks else []
            self._messages = [SystemMessage(self._system), *(item.message() for item in self._history), *asked]
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._history) + 1 + self._asks


def content_of(text: str, images: Sequence[str]) -> Content:
    """The text, or with images, given as data URLs, the parts of a chat completions request."""
    if not images:
        return text
    return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in images)]


def _encode(role: str, content: Content, calls: Sequence[EarlierCall] = (), call_id: str = "") -> bytes:
    if calls:
        # Between the calls of a message and their results, endpoints want no content rather than an empty one.
        return dumps({"content": content or None, "role": role, "tool_calls": [call.wire() for call in calls]})
    if call_id:
        return dumps({"content": content, "role": role, "tool_call_id": call_id})
    return dumps({"content": content, "role": role})
