"""What a model is asked: a system prompt, the conversation so far and the question."""

from collections.abc import Sequence
from typing import Literal, overload

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from backend_kit.wire import dumps


class HistoryItem:
    """One earlier message of the conversation. Equal by its author and text.

    `json` is the message as a chat completions request has it, encoded at its first use: a conversation is sent again
    with each of its turns. `checkpoint` of an answer names the state with which a hosted graph ended; "" for others.
    """

    __slots__ = ("_json", "checkpoint", "role", "text")

    def __init__(self, role: Literal["user", "assistant"], text: str, checkpoint: str = "") -> None:
        self.role = role
        self.text = text
        self.checkpoint = checkpoint
        self._json = b""

    @property
    def json(self) -> bytes:
        """`{"content":text,"role":role}`, as langchain-openai writes it."""
        if not self._json:
            self._json = _encode(self.role, self.text)
        return self._json

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HistoryItem) and (self.role, self.text) == (other.role, other.text)

    def __hash__(self) -> int:
        return hash((self.role, self.text))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role!r}, {self.text!r})"


class Prompt(Sequence[BaseMessage]):
    """The messages of one request. It is a sequence of langchain's messages, which are made only for who looks at them:
    our own client sends the encoded ones."""

    __slots__ = ("_history", "_messages", "_question", "_system")

    def __init__(self, system: str, history: Sequence[HistoryItem], question: str) -> None:
        self._system = system
        # An answer without words is a graph's, for the state that it left; some models refuse an empty message.
        self._history = [item for item in history if item.text or item.role == "user"]
        self._question = question
        self._messages: list[BaseMessage] | None = None

    def encode(self, system_role: str) -> bytes:
        """The JSON array of a chat completions request; some models call the role of the system prompt otherwise."""
        history = [item.json for item in self._history]
        return b"[%b]" % b",".join((_encode(system_role, self._system), *history, _encode("user", self._question)))

    @overload
    def __getitem__(self, index: int) -> BaseMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[BaseMessage]: ...
    def __getitem__(self, index: int | slice) -> BaseMessage | list[BaseMessage]:
        if self._messages is None:
            said = [HumanMessage(item.text) if item.role == "user" else AIMessage(item.text) for item in self._history]
            self._messages = [SystemMessage(self._system), *said, HumanMessage(self._question)]
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._history) + 2


def _encode(role: str, text: str) -> bytes:
    return dumps({"content": text, "role": role})
