"""The messages of a conversation as langchain's, in JSON: what LangGraph's clients read as the state of a thread.

An answer with its tool calls is one of their messages, however many of ours it consists of. What a model said before it
called tools is the text of that message, its reasoning the `additional_kwargs.reasoning_content`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from agentic_backend.events import ChatMessage, Part
from backend_kit.wire import dumps, loads

NOTE: Final = "langgraph"
"""The key in a question's note for what this door needs to show the question again."""
AGENT: Final = "agent"
TOOLS: Final = "tools"
"""The nodes of an agent of ours, as clients see them."""
Node = Literal["agent", "tools"]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """A message that is complete, and the node that made it."""

    node: Node
    message: Message


def message_id(exchange_id: str, rank: int) -> str:
    """The id of a message that its client, or its graph, has not named."""
    return f"{exchange_id}.{rank}"


def human(content: Any, id_: str, name: str | None = None) -> Message:
    """A user's message."""
    return {
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": "human",
        "name": name,
        "id": id_,
    }


def answer(content: str, id_: str) -> Message:
    """A model's message."""
    return {
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": "ai",
        "name": None,
        "id": id_,
        "tool_calls": [],
        "invalid_tool_calls": [],
        "usage_metadata": None,
    }


def tool_call(part: Part) -> dict[str, Any]:
    """A tool call, made from a message part of ours."""
    return {"name": part["name"], "args": part["args"], "id": part["call_id"], "type": "tool_call"}


class Transcript:
    """Makes langchain's messages from those of a conversation of ours, in the order of their ranks.

    `take` returns what a message completes: a model's message stays open until the next one begins, since its tool
    calls belong to it.
    """

    def __init__(self) -> None:
        self._closed: list[bytes] = []
        self._open: Message | None = None
        self.open_rank = -1
        """The rank at which the message begins that was opened last."""
        self._thought = ""
        self._names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._closed) or self._open is not None

    @property
    def json(self) -> bytes:
        """All messages so far, as the elements of a JSON array."""
        open_ = self._open
        return b",".join(self._closed if open_ is None else [*self._closed, dumps(open_)])

    @property
    def closed(self) -> list[bytes]:
        """The messages that are complete, each as JSON."""
        return self._closed

    @property
    def count(self) -> int:
        """How many are complete."""
        return len(self._closed)

    @property
    def open_message(self) -> Message | None:
        """The model's message that is open."""
        return self._open

    def take(self, message: ChatMessage | Mapping[str, Any]) -> list[Update]:
        """Take the next message of the conversation, from its history or from a turn."""
        said = loads(message.json) if isinstance(message, ChatMessage) else message
        kind = said["role"], said["channel"]
        if kind == ("user", "final"):
            return self._question(said)
        if said["channel"] == "tool_call":
            return self._calls(said, said["parts"])
        if said["channel"] == "tool_result":
            return self._results(said)
        if kind == ("assistant", "final"):
            return self._answer(said)
        if kind == ("assistant", "thought"):
            return self._thoughts(said)
        return []

    def close(self) -> list[Update]:
        """Complete what is open."""
        open_, self._open = self._open, None
        if open_ is None:
            return []
        self._closed.append(dumps(open_))
        return [Update(AGENT, open_)]

    def _question(self, said: Mapping[str, Any]) -> list[Update]:
        complete = self.close()
        self._thought = ""
        self._closed += [dumps(one) for one in asked(said)]
        return complete

    def _thoughts(self, said: Mapping[str, Any]) -> list[Update]:
        text = text_in(said["parts"])
        if said["metadata"].get("extras", {}).get("reasoning") is True:
            self._thought = f"{self._thought}\n{text}" if self._thought else text
            return []
        return self._begin(text, said)

    def _begin(self, text: str, said: Mapping[str, Any]) -> list[Update]:
        """Begin a message of the model's."""
        complete = self.close()
        self._open, self.open_rank = answer(text, named(said)), said["rank"]
        if self._thought:
            self._open["additional_kwargs"]["reasoning_content"] = self._thought
            self._thought = ""
        return complete

    def _calls(self, said: Mapping[str, Any], parts: Sequence[Part]) -> list[Update]:
        complete = [] if self._open is not None else self._begin("", said)
        assert self._open is not None
        for part in parts:
            if part.get("type") == "tool_call":
                self._names[part["call_id"]] = part["name"]
                self._open["tool_calls"].append(tool_call(part))
        return complete

    def _results(self, said: Mapping[str, Any]) -> list[Update]:
        complete = self.close()
        results = [part for part in said["parts"] if part.get("type") == "tool_result"]
        for number, part in enumerate(results):
            own = named(said) if not number else f"{named(said)}-{number}"
            result = tool_result(part, own, self._names.get(part["call_id"]))
            self._closed.append(dumps(result))
            complete.append(Update(TOOLS, result))
        return complete

    def _answer(self, said: Mapping[str, Any]) -> list[Update]:
        """The end of an exchange: its answer, if it has one."""
        text = answer_text(said)
        calls = [part for part in said["parts"] if part.get("type") == "tool_call"]
        if not text and not calls and _unanswered(said):
            return self.close()
        complete = self._begin(text, said)
        assert self._open is not None
        self._open |= answer_fields(said, self._open["additional_kwargs"])
        return complete + (self._calls(said, calls) if calls else [])


def named(said: Mapping[str, Any]) -> str:
    """The id of an agent's message: the one that its graph gave it, else one of ours."""
    own = said["metadata"].get("extras", {}).get("message_id")
    return own if isinstance(own, str) else message_id(said["exchange_id"], said["rank"])


def noted(note: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What this door put into the note of an ask; nothing if another door made the ask."""
    own: Mapping[str, Any] = note.get(NOTE, {}) if isinstance(note, Mapping) else {}
    return own


def note_in(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, by the metadata of the message that the ask became."""
    return noted(metadata.get("extras", {}).get("note"))


def with_more(values: Mapping[str, Any], since: Sequence[Message]) -> Mapping[str, Any]:
    """A graph's state with messages appended to its own. If the author keeps something other than a list there, it
    stays."""
    own = values.get("messages")
    return {**values, "messages": [*(own or ()), *since]} if own is None or isinstance(own, list) else values


def asked(said: Mapping[str, Any]) -> list[Message]:
    """A question as its client sent it: under its id, in its blocks; results of a client's tools as such."""
    results = [part for part in said["parts"] if part.get("type") == "tool_result"]
    own = message_id(said["exchange_id"], said["rank"])
    if results:
        return [tool_result(part, f"{own}-{number}", None) for number, part in enumerate(results)]
    sent = note_in(said["metadata"])
    if "content" not in sent and not text_in(said["parts"]):
        return []  # nothing was asked: a graph continued, or its state was changed
    return [human(sent.get("content", text_in(said["parts"])), sent.get("id") or own, sent.get("name"))]


def tool_result(part: Part, id_: str, name: str | None) -> Message:
    """What a tool gave back."""
    return {
        "content": part["content"],
        "additional_kwargs": {},
        "response_metadata": {},
        "type": "tool",
        "name": name,
        "id": id_,
        "tool_call_id": part["call_id"],
        "artifact": None,
        "status": "error" if part.get("ok") is False else "success",
    }


def answer_fields(said: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer's message has besides its text, with `kwargs` among its own."""
    metadata, parts = said["metadata"], said["parts"]
    kwargs = dict(kwargs)
    if late := metadata.get("extras", {}).get("late_thoughts"):
        kwargs["reasoning_content"] = f"{kwargs.get('reasoning_content', '')}\n{late}".strip()
    if cited := [part for part in parts if part["type"] == "link" and part.get("kind") == "citation"]:
        kwargs["citations"] = cited
    others = [part for part in parts if part["type"] not in ("text", "tool_call") and part not in cited]
    if others:
        kwargs["parts"] = others
    about = {"finish_reason": metadata.get("finish_reason"), "model_name": metadata.get("model")}
    return {
        "additional_kwargs": kwargs,
        "response_metadata": {key: value for key, value in about.items() if value},
        "usage_metadata": metadata.get("token_usage"),
    }


def answer_text(said: Mapping[str, Any]) -> str:
    """The text of an answer, without the apology of one that failed."""
    texts = [part["text"] for part in said["parts"] if part.get("type") == "text"]
    if "error" in said["metadata"].get("extras", {}):
        texts = texts[:-1]
    return "\n".join(texts)


def text_in(parts: Sequence[Part]) -> str:
    """The text of a message's parts."""
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")


def _unanswered(said: Mapping[str, Any]) -> bool:
    """Whether an exchange ended, or waits, without an answer."""
    extras = said["metadata"].get("extras", {})
    return not extras.keys().isdisjoint(("error", "status", "state"))
