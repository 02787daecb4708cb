"""The model's messages of an exchange as langchain's content blocks: each with its start, its deltas and its finish.

A message is a list of blocks: the reasoning before it, its text, and the tool calls that it ends with. Reasoning is
sent when its message begins, since the message has no id before that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentic_backend.events import ChatMessage, Part
from agentic_backend.session.stream import (
    Awaiting,
    Cancelled,
    Failed,
    Payload,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.langgraph.messages import AGENT, answer_text, message_id, named, text_in, tool_result
from backend_kit.wire import dumps, loads

MESSAGES: Final = b"messages"
TOOLS: Final = b"tools"
MethodEvent = tuple[bytes, bytes]
"""The method of an event, and its data as JSON."""
_AGAIN: Final = b'{"event":"message-finish","metadata":{"finish_reason":"restarted"}}'
_DELTA: Final = b'{"event":"content-block-delta","index":%d,"delta":{"type":"text-delta","text":%b}}'


@dataclass(slots=True)
class _Open:
    """The message that is open: the rank at which it begins, its finished blocks, and the text that has come since."""

    rank: int
    blocks: int = 0
    streams: bool = False
    texts: list[str] = field(default_factory=list)

    def take_text(self) -> str:
        """The text that has come, once."""
        text, self.texts, self.streams = "".join(self.texts), [], False
        return text


class BlockTranslator:
    """Yields the messages of an exchange as events. Call `take` with each event of the exchange."""

    def __init__(self, exchange_id: str) -> None:
        self._exchange_id = exchange_id
        self._open: _Open | None = None
        self._thought = ""
        self._thinks = False
        self._names: dict[str, str] = {}
        self._spoken: SpokenBy | None = None

    def more(self, delta: TextDelta) -> MethodEvent | None:
        """What is sent for one more piece of the text that is open, as most events are; None for any other event."""
        open_ = self._open
        if open_ is None or not open_.streams or open_.rank != delta.rank:
            return None
        open_.texts.append(delta.text)
        return MESSAGES, _DELTA % (open_.blocks, dumps(delta.text))

    def take(self, payload: Payload) -> Iterator[MethodEvent]:
        """What is sent for an event."""
        if isinstance(payload, TextDelta):
            yield from self._text(payload)
        elif isinstance(payload, ThoughtDelta):
            self._thought += payload.text if self._thinks or not self._thought else f"\n{payload.text}"
            self._thinks = True
        elif isinstance(payload, Whole):
            yield from self._whole(payload.message)
        elif isinstance(payload, Ended | Cancelled | Failed):
            yield from self._last(payload.messages)
        elif isinstance(payload, Awaiting):
            yield from self.finish()
        elif isinstance(payload, SpokenBy):
            self._spoken = payload

    def again(self) -> Iterator[MethodEvent]:
        """The run begins again: what is open is dropped."""
        if self._open is not None:
            self._open = None
            yield MESSAGES, _AGAIN

    def finish(self, said: Mapping[str, Any] | None = None) -> Iterator[MethodEvent]:
        """Complete the message that is open; `said` is the answer that it is."""
        open_, self._open = self._open, None
        if open_ is None:
            return
        yield from self._end_text(open_, said)
        metadata = {} if said is None else said["metadata"]
        late = metadata.get("extras", {}).get("late_thoughts")
        if late:
            yield from self._reasoning(open_, late)
        about = {"finish_reason": metadata.get("finish_reason"), "model_name": metadata.get("model")}
        told: dict[str, Any] = {"event": "message-finish"}
        if metadata.get("token_usage"):
            told["usage"] = metadata["token_usage"]
        told["metadata"] = {key: value for key, value in about.items() if value}
        yield MESSAGES, dumps(told)

    def _text(self, delta: TextDelta) -> Iterator[MethodEvent]:
        open_ = self._open
        if open_ is None or open_.rank != delta.rank:
            spoken = self._spoken if self._spoken is not None and self._spoken.rank == delta.rank else None
            own = message_id(self._exchange_id, delta.rank) if spoken is None else spoken.message_id
            yield from self._begin(delta.rank, own, AGENT if spoken is None else spoken.node)
            open_ = self._open
        assert open_ is not None
        if not open_.streams:
            open_.streams = True
            yield MESSAGES, _block("content-block-start", open_.blocks, {"type": "text", "text": ""})
        open_.texts.append(delta.text)
        yield MESSAGES, _DELTA % (open_.blocks, dumps(delta.text))

    def _whole(self, message: ChatMessage) -> Iterator[MethodEvent]:
        said = loads(message.json)
        channel = said["channel"]
        if channel == "tool_call":
            yield from self._calls(said)
        elif channel == "tool_result":
            yield from self.finish()
            yield from self._results(said)
        elif (said["role"], channel) == ("assistant", "thought"):
            yield from self._before_calls(said)

    def _before_calls(self, said: Mapping[str, Any]) -> Iterator[MethodEvent]:
        """What a model reasoned, or said before it called tools, whether the run is replayed from history or
        streamed."""
        text = text_in(said["parts"])
        if said["metadata"].get("extras", {}).get("reasoning") is True:
            if not self._thinks:
                self._thought += f"\n{text}" if self._thought else text
            return
        if self._open is None or self._open.rank != said["rank"]:
            yield from self._begin(said["rank"], named(said))
            yield from self._whole_text(text)

    def _calls(self, said: Mapping[str, Any]) -> Iterator[MethodEvent]:
        if self._open is None:
            yield from self._begin(said["rank"], named(said))
        open_ = self._open
        assert open_ is not None
        yield from self._end_text(open_, None)
        calls = [part for part in said["parts"] if part.get("type") == "tool_call"]
        for part in calls:
            about = {"id": part["call_id"], "name": part["name"]}
            chunk = {"type": "tool_call_chunk", **about, "args": dumps(part["args"]).decode()}
            yield MESSAGES, _block("content-block-start", open_.blocks, chunk)
            yield MESSAGES, _block("content-block-finish", open_.blocks, _call(part))
            open_.blocks += 1
        for part in calls:
            self._names[part["call_id"]] = part["name"]
            begun = {"tool_call_id": part["call_id"], "tool_name": part["name"], "input": part["args"]}
            yield TOOLS, dumps({"event": "tool-started", **begun})

    def _results(self, said: Mapping[str, Any]) -> Iterator[MethodEvent]:
        for number, part in enumerate(part for part in said["parts"] if part.get("type") == "tool_result"):
            about = {"tool_call_id": part["call_id"]}
            if part.get("ok") is False:
                yield TOOLS, dumps({"event": "tool-error", **about, "message": _text_of(part["content"])})
                continue
            own = named(said) if not number else f"{named(said)}-{number}"
            result = tool_result(part, own, self._names.get(part["call_id"]))
            yield TOOLS, dumps({"event": "tool-finished", **about, "output": result})

    def _last(self, messages: Sequence[ChatMessage]) -> Iterator[MethodEvent]:
        """The answer, as far as there is one."""
        if not messages or (messages[-1].role, messages[-1].channel) != ("assistant", "final"):
            yield from self.finish()
            return
        said = loads(messages[-1].json)
        text = answer_text(said)
        if self._open is not None and self._open.rank != said["rank"]:
            yield from self.finish()
        if self._open is None and text:
            yield from self._begin(said["rank"], named(said))
            yield from self._whole_text(text)
        if any(part.get("type") == "tool_call" for part in said["parts"]):
            yield from self._calls(said)
        yield from self.finish(said)

    def _begin(self, rank: int, id_: str, node: str = AGENT) -> Iterator[MethodEvent]:
        yield from self.finish()
        self._open = open_ = _Open(rank)
        about = {"langgraph_node": node}
        yield MESSAGES, dumps({"event": "message-start", "role": "ai", "id": id_, "metadata": about})
        if self._thought:
            yield from self._reasoning(open_, self._thought)
        self._thought, self._thinks = "", False

    def _reasoning(self, open_: _Open, text: str) -> Iterator[MethodEvent]:
        block = {"type": "reasoning", "reasoning": text}
        yield MESSAGES, _block("content-block-start", open_.blocks, {"type": "reasoning", "reasoning": ""})
        delta = {"type": "reasoning-delta", "reasoning": text}
        yield MESSAGES, dumps({"event": "content-block-delta", "index": open_.blocks, "delta": delta})
        yield MESSAGES, _block("content-block-finish", open_.blocks, block)
        open_.blocks += 1

    def _whole_text(self, text: str) -> Iterator[MethodEvent]:
        """A text that was not streamed."""
        assert self._open is not None
        if text:
            yield from self._text(TextDelta(self._open.rank, "final", text))

    def _end_text(self, open_: _Open, said: Mapping[str, Any] | None) -> Iterator[MethodEvent]:
        if not open_.streams:
            return
        block: dict[str, Any] = {"type": "text", "text": open_.take_text()}
        if said is not None:
            block["text"] = answer_text(said) or block["text"]
            cited = [_citation(part) for part in said["parts"] if _is_citation(part)]
            if cited:
                block["annotations"] = cited
        yield MESSAGES, _block("content-block-finish", open_.blocks, block)
        open_.blocks += 1


def _block(event: str, index: int, content: Mapping[str, Any]) -> bytes:
    return dumps({"event": event, "index": index, "content": content})


def _call(part: Part) -> dict[str, Any]:
    return {"type": "tool_call", "id": part["call_id"], "name": part["name"], "args": part["args"]}


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else dumps(content).decode()


def _is_citation(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "link" and part.get("kind") == "citation"


def _citation(part: Mapping[str, Any]) -> dict[str, Any]:
    """One of our citations as langchain's; what has no field there goes into its `extras`."""
    cited: dict[str, Any] = {"type": "citation"}
    for key, name in (("href", "url"), ("title", "title"), ("source_id", "id")):
        if part.get(key):
            cited[name] = part[key]
    known = ("type", "kind", "href", "title", "source_id")
    extras = {key: value for key, value in part.items() if key not in known}
    return cited | ({"extras": extras} if extras else {})
