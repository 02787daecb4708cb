"""A streamed run of LangGraph's Agent Server API as state over its events, `{"event", "data"}`."""

from collections.abc import Mapping
from typing import Any

from ws_bench.errors import TurnBroken
from ws_bench.record.dialects import Event, Timeline

_PASSING = frozenset({"custom", "metadata", "tasks", "checkpoints", "updates", "values"})


class RunTurn(Timeline):
    """metadata, messages…, values?, end. A token is a chunk of an AI message with text; reasoning and tools are none.

    The answer is the last AI message that said something. Where the state is streamed as well, it must have the same.
    After `metadata` of a later attempt, all of that comes again. A reference server has no `end` event: there the end
    of the stream counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, list[str]] = {}
        self._speaking = ""
        self._attempt = 1
        self._kept: str | None = None
        self._failure: TurnBroken | None = None

    def feed(self, event: Event, now: float) -> bool:
        """See `TurnReader.feed`. Raises `TurnBroken`."""
        self.note_event(now)
        name, _, _space = str(event.get("event")).partition("|")
        data = event.get("data")
        if name == "end":
            return self._end()
        if name == "messages":
            self._take_message(data, now)
        elif name == "error":
            told = data if isinstance(data, dict) else {}
            kind = f"server_error_event({told.get('error') or 'unknown'})"
            self._failure = TurnBroken(kind, str(told.get("message", "")), usable=True)
        elif name not in _PASSING:
            raise TurnBroken("protocol_unknown_event", name)
        elif isinstance(data, dict):
            self._take_state(name, data)
        return False

    def _take_message(self, data: object, now: float) -> None:
        message = data[0] if isinstance(data, list) and len(data) == 2 else None
        if not isinstance(message, dict):
            raise TurnBroken("protocol_unknown_event", "messages without a message")
        kind, text = message.get("type"), _text_of(message)
        if kind not in {"AIMessageChunk", "ai"}:
            return
        about = message.get("response_metadata")
        if isinstance(about, dict) and about.get("finish_reason") == "cancelled":
            self._failure = TurnBroken("server_cancelled", usable=True)
        if text:
            self.note_token(now)
            self._speaking = str(message.get("id"))
            if kind == "ai":
                self._said[self._speaking] = [text]
            else:
                self._said.setdefault(self._speaking, []).append(text)

    def _take_state(self, name: str, data: Mapping[str, Any]) -> None:
        if name in {"values", "updates"} and "__interrupt__" in data:
            self._failure = TurnBroken("awaiting_human", "the agent asks for a human answer", usable=True)
        elif name == "metadata":
            attempt = data.get("attempt")
            if isinstance(attempt, int) and attempt > self._attempt:
                self._attempt = attempt
                self._said.clear()
                self.note_restart()
        elif name == "values":
            messages = data.get("messages")
            last = messages[-1] if isinstance(messages, list) and messages else None
            self._kept = _text_of(last) if isinstance(last, dict) and last.get("type") == "ai" else None

    def _end(self) -> bool:
        self.answer = "".join(self._said.get(self._speaking, []))
        if self._failure is not None:
            raise self._failure
        if not self.answer:
            raise TurnBroken("protocol_empty_final", "an answer without text", usable=True)
        if self._kept is not None and self._kept != self.answer:
            raise TurnBroken("protocol_order", "the state has another answer than the stream", usable=True)
        return True


def _text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content is a text or a list of blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
