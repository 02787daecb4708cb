"""A turn's events as those of a response. Pure: payloads in, numbered events out.

A number says how much has been sent, however it was cut into pieces: an event counts as one, and a piece of text as its
number of characters. So the numbers of a turn are the same whether a client keeps up with it, gets what has piled up at
once, or reads it from history.
"""

from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from agentic_backend.events import ChatMessage, Part, arguments_of
from agentic_backend.session.stream import (
    Awaiting,
    Cancelled,
    Failed,
    Payload,
    Restarted,
    Terminal,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.session.stream import Final as Answered
from agentic_backend.surfaces.openai.answer_reader import (
    BROKEN_OFF,
    Calls,
    Citation,
    calls_of,
    citations_of,
    failure_of,
    finish_reason_of,
    spent_in,
)
from agentic_backend.surfaces.openai.people import in_words
from agentic_backend.surfaces.openai.response_object import ResponseEnd, ResponseObject, Status, seconds_of
from backend_kit.wire import dumps

OF_A_RERUN: Final = 1_000_000_000
"""The first number of a turn's second run, whose text is not that of the first. The third run begins at twice that, and
so on."""
_SERVER: Final = "turnwise"
_NO_RANK: Final = -1
"""The rank of a text that is not a message of the exchange."""
_UNNAMED: Final = "tool"
"""The name of a call whose beginning is missing: it waited for a person longer than the turn was kept."""


class Event(NamedTuple):
    """One event as pieces of its frame, which are encoded once for all deltas of a text: `opening`, the number, `head`,
    what it adds to a text (None for what is no delta), `tail`."""

    number: int
    opening: bytes
    head: bytes
    tail: bytes
    text: str | None = None

    def frame(self, after: int = -1) -> bytes:
        """The event as a Server-Sent Event for a client that has everything up to the number `after`: of a text, the
        rest."""
        number, text = self.number, self.text
        if number <= after:
            return b""
        if text is None:
            return b"%b%d%b%b\n\n" % (self.opening, number, self.head, self.tail)
        left = number - after
        return b"%b%d%b%b%b\n\n" % (
            self.opening,
            number,
            self.head,
            dumps(text if left >= len(text) else text[-left:]),
            self.tail,
        )


@cache  # there are some twenty kinds
def _opening(kind: str) -> bytes:
    return b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())


_SAYS: Final = _opening("response.output_text.delta")
_REASONS: Final = _opening("response.reasoning_summary_text.delta")


class _Text:
    """A message or a reasoning that is being streamed: the index of its item, and its text so far."""

    def __init__(self, index: int, item_id: str, rank: int | None, head: bytes, tail: bytes) -> None:
        self.index = index
        self.item_id = item_id
        self.rank = rank
        self.head = head
        self.tail = tail
        self.pieces: list[str] = []


class ResponseEvents:
    """The events of one response. `take` gets each payload of its turn in its order, joined or not."""

    def __init__(self, resource: ResponseObject, page: str, first: int = 0) -> None:
        """`page` is the origin at which people open our page, `first` the number of the first event.

        Messages before a person's answer are left out if the response begins with one.
        """
        self.response: dict[str, Any] | None = None
        """The whole response, once the turn has ended."""
        self._resource = resource
        self._page = page
        self.over = False
        """Whether the stream ended before its turn: what was sent cannot be retracted when the turn runs again."""
        self._next = first
        self._started = False
        self._behind = resource.name.rank
        self._output: list[dict[str, Any]] = []
        self._message: _Text | None = None
        self._reasoning: _Text | None = None
        self._late: list[list[str]] = []
        """Reasoning in the middle of a text, by stretches: it is sent after the text, which is where history has it."""
        self._late_open = False
        self._stretches = 0
        self._told_stretches = 0
        self._calls: dict[str, deque[int]] = {}

    @property
    def last(self) -> int:
        """The number of the last event; below the first number if there is none yet."""
        return self._next - 1

    def as_it_is(self, status: Status) -> dict[str, Any]:
        """The response so far."""
        if self.response is not None:
            return self.response
        for text in (self._message, self._reasoning):
            if text is not None:
                self._output[text.index] = _with_text(self._output[text.index], "".join(text.pieces))
        return self._resource.as_it_is(status, self._output)

    def take(self, payload: Payload) -> list[Event]:
        """The events of a payload."""
        if isinstance(payload, TextDelta) and self._message is not None and self._reasoning is None:
            self._late_open = False
            if payload.rank == self._message.rank:
                return [self._piece(self._message, payload.text)] if payload.text else []
        events: list[Event] = []
        if isinstance(payload, Restarted):
            self._begin_again(payload, events)
            return events
        if not self._started:
            self._start(events)
        if isinstance(payload, TextDelta):
            if payload.text:
                self._write_piece(payload.rank, payload.text, events)
        elif isinstance(payload, ThoughtDelta):
            self._think(payload.text, events)
        elif isinstance(payload, Whole):
            self._whole(payload.message, events)
        elif isinstance(payload, Terminal):
            self._end(payload, events)
        return events

    def at_once(self, text: str, spent: Mapping[str, Any] | None) -> list[Event]:
        """All events of a response with this text, made without a turn."""
        events: list[Event] = []
        self._start(events)
        self._write_piece(_NO_RANK, text, events)
        self._end_message(events, final=True)
        self._finish(ResponseEnd(spent=spent), events)
        return events

    # The lifecycle

    def _start(self, events: list[Event]) -> None:
        self._started = True
        response = self._resource.as_it_is("in_progress", [])
        said = dumps({"response": response})
        for kind in ("response.created", "response.in_progress"):
            self._append(events, kind, said)

    def _begin_again(self, payload: Restarted, events: list[Event]) -> None:
        """The turn runs again. A stream that has sent nothing continues, with the numbers of that run."""
        if not self._started:
            return
        if self._output:
            self.over = True
            self._add_event(events, "error", code=BROKEN_OFF.code, message=BROKEN_OFF.message, param=None)
            return
        self._next = self._next % OF_A_RERUN + OF_A_RERUN * max(1, payload.runs_before)
        self._behind = self._resource.name.rank

    def _add_event(self, events: list[Event], kind: str, **fields: Any) -> None:
        self._append(events, kind, dumps(fields))

    def _append(self, events: list[Event], kind: str, said: bytes) -> None:
        events.append(Event(self._next, _opening(kind), b",", said[1:]))
        self._next += 1

    def _end(self, payload: Terminal, events: list[Event]) -> None:
        self._end_reasoning(events)
        if isinstance(payload, Answered):
            ending = self._answered(payload, events)
        elif isinstance(payload, Awaiting):
            ending = self._asks(payload, events)
        else:
            ending = self._broken_off(payload, events)
        self._finish(ending, events)

    def _finish(self, ending: ResponseEnd, events: list[Event]) -> None:
        for index in sorted(index for places in self._calls.values() for index in places):
            self._done(index, {**self._output[index], "status": "incomplete"}, events)
        self.response = self._resource.ended(self._output, ending)
        kind = {"completed": "completed", "failed": "failed"}.get(ending.status, "incomplete")
        self._add_event(events, f"response.{kind}", response=self.response)

    def _asks(self, payload: Awaiting, events: list[Event]) -> ResponseEnd:
        """End the response with a question to a person as its text."""
        self._end_message(events)
        if words := in_words(payload.payload):
            self._write_piece(_NO_RANK, words, events)
            self._end_message(events, final=True)
        at = seconds_of(payload.messages[-1].timestamp) if payload.messages else None
        return ResponseEnd(at=at, spent=payload.usage)

    def _broken_off(self, payload: Cancelled | Failed, events: list[Event]) -> ResponseEnd:
        self._end_message(events, final=True)
        self._late_from(payload.messages, events)
        if isinstance(payload, Cancelled):
            return ResponseEnd(spent=spent_in(payload), cancelled=True)
        return ResponseEnd(spent=spent_in(payload), failure=failure_of(payload))

    def _answered(self, payload: Answered, events: list[Event]) -> ResponseEnd:
        message = payload.messages[-1]
        parts, metadata, text = message.parts, message.metadata, message.text
        calls = calls_of(parts)
        opened = self._message
        if opened is not None and opened.rank != message.rank:
            self._end_message(events)
            opened = None
        if opened is None and text:
            self._write_piece(message.rank, text, events)
        elif opened is not None:
            said = "".join(opened.pieces)
            if text.startswith(said) and len(text) > len(said):
                events.append(self._piece(opened, text[len(said) :]))
        self._end_message(events, final=True, text=text, citations=citations_of(parts, text, self._page))
        self._late_from(payload.messages, events)
        self._client_calls(calls, events)
        reason = finish_reason_of(calls, metadata)
        return ResponseEnd(reason, seconds_of(message.timestamp), spent_in(payload))

    # Text and reasoning

    def _piece(self, text: _Text, piece: str) -> Event:
        text.pieces.append(piece)
        self._next += len(piece)
        return Event(self._next - 1, _REASONS if text.rank is None else _SAYS, text.head, text.tail, piece)

    def _write_piece(self, rank: int, piece: str, events: list[Event]) -> None:
        self._end_reasoning(events)
        if self._message is not None and self._message.rank != rank:
            self._end_message(events)
        if self._message is None:
            index, item_id = len(self._output), self._id("msg")
            item = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            self._add(item, events)
            place = {"item_id": item_id, "output_index": index, "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._add_event(events, "response.content_part.added", **place, part=part)
            head, tail = b',%b,"delta":' % dumps(place)[1:-1], b',"logprobs":[]}'
            self._message = _Text(index, item_id, rank, head, tail)
        if piece:
            events.append(self._piece(self._message, piece))

    def _end_message(
        self,
        events: list[Event],
        *,
        final: bool = False,
        text: str | None = None,
        citations: list[Citation] | None = None,
    ) -> None:
        opened, self._message = self._message, None
        if opened is None:
            return
        text = "".join(opened.pieces) if text is None else text
        place = {"item_id": opened.item_id, "output_index": opened.index, "content_index": 0}
        cited = [{"type": "url_citation", **citation} for citation in citations or ()]
        for number, annotation in enumerate(cited):
            about = {**place, "annotation_index": number, "annotation": annotation}
            self._add_event(events, "response.output_text.annotation.added", **about)
        part = {"type": "output_text", "text": text, "annotations": cited, "logprobs": []}
        self._add_event(events, "response.output_text.done", **place, text=text, logprobs=[])
        self._add_event(events, "response.content_part.done", **place, part=part)
        item = {
            **self._output[opened.index],
            "status": "completed",
            "content": [part],
            "phase": "final_answer" if final else "commentary",
        }
        self._done(opened.index, item, events)
        self._stretches += len(self._late)
        self._late_open = False
        if not final:
            late, self._late = self._late, []
            for stretch in late:
                self._reason_whole("".join(stretch), events)

    def _late_from(self, messages: tuple[ChatMessage, ...], events: list[Event]) -> None:
        """The reasoning that came in the middle of the last text: as it came, or as history has it."""
        late, self._late = ["".join(stretch) for stretch in self._late], []
        extras = (messages[-1].metadata.get("extras") or {}) if messages else {}
        text = "\n".join(late) or extras.get("late_thoughts")
        if text:
            self._reason_whole(text, events)

    def _think(self, piece: str, events: list[Event]) -> None:
        if self._message is not None:
            if not self._late_open:
                self._late.append([])
                self._late_open = True
            self._late[-1].append(piece)
            return
        if self._reasoning is None:
            self._stretches += 1
            self._begin_reasoning(events)
        if self._reasoning is not None and piece:
            events.append(self._piece(self._reasoning, piece))

    def _begin_reasoning(self, events: list[Event]) -> None:
        index, item_id = len(self._output), self._id("rs")
        self._add({"id": item_id, "type": "reasoning", "status": "in_progress", "summary": []}, events)
        place = {"item_id": item_id, "output_index": index, "summary_index": 0}
        self._add_event(
            events, "response.reasoning_summary_part.added", **place, part={"type": "summary_text", "text": ""}
        )
        self._reasoning = _Text(index, item_id, None, b',%b,"delta":' % dumps(place)[1:-1], b"}")

    def _end_reasoning(self, events: list[Event]) -> None:
        opened, self._reasoning = self._reasoning, None
        if opened is None:
            return
        text = "".join(opened.pieces)
        place = {"item_id": opened.item_id, "output_index": opened.index, "summary_index": 0}
        part = {"type": "summary_text", "text": text}
        self._add_event(events, "response.reasoning_summary_text.done", **place, text=text)
        self._add_event(events, "response.reasoning_summary_part.done", **place, part=part)
        self._done(opened.index, {**self._output[opened.index], "status": "completed", "summary": [part]}, events)

    def _reason_whole(self, text: str, events: list[Event]) -> None:
        self._begin_reasoning(events)
        assert self._reasoning is not None
        events.append(self._piece(self._reasoning, text))
        self._end_reasoning(events)

    # Messages beside the answer

    def _whole(self, message: ChatMessage, events: list[Event]) -> None:
        if self._behind is not None:
            self._behind = None if message.rank == self._behind else self._behind
            return
        if message.role == "user":
            return
        self._end_reasoning(events)
        if message.channel == "thought" and (message.metadata.get("extras") or {}).get("reasoning") is True:
            self._told_stretches += 1
            if self._told_stretches > self._stretches:  # else it was streamed
                self._stretches += 1
                self._reason_whole(message.text, events)
            return
        was_said = self._message is not None and message.rank == self._message.rank
        self._end_message(events)
        if not was_said:
            self._beside(message, events)

    def _beside(self, message: ChatMessage, events: list[Event]) -> None:
        """A step, a text before one, or what an agent notes."""
        if message.channel in ("tool_call", "tool_result"):
            for part in message.parts:
                if part.get("type") == "tool_call":
                    self._call(part, events)
                elif part.get("type") == "tool_result":
                    self._result(part, events)
        elif (message.role, message.channel) == ("assistant", "thought"):
            self._write_piece(message.rank, message.text, events)
            self._end_message(events)
        elif text := message.text:
            self._reason_whole(text, events)

    def _call(self, part: Part, events: list[Event]) -> None:
        """A call of the agent's own tool: in this protocol, one on an MCP server of ours."""
        index = self._begin_call(str(part["name"]), events)
        self._calls.setdefault(part["call_id"], deque()).append(index)
        item_id, arguments = self._output[index]["id"], arguments_of(part)
        self._output[index] = {**self._output[index], "arguments": arguments}
        place = {"item_id": item_id, "output_index": index}
        self._add_event(events, "response.mcp_call_arguments.delta", **place, delta=arguments)
        self._add_event(events, "response.mcp_call_arguments.done", **place, arguments=arguments)

    def _begin_call(self, name: str, events: list[Event]) -> int:
        index, item_id = len(self._output), self._id("mcp")
        about = {"id": item_id, "type": "mcp_call", "status": "in_progress", "server_label": _SERVER, "name": name}
        self._add({**about, "arguments": "", "output": None, "error": None}, events)
        self._add_event(events, "response.mcp_call.in_progress", item_id=item_id, output_index=index)
        return index

    def _result(self, part: Part, events: list[Event]) -> None:
        waiting = self._calls.get(part["call_id"])
        index = waiting.popleft() if waiting else self._begin_call(_UNNAMED, events)
        content, worked = _as_text(part.get("content")), part.get("ok", True)
        failure = {"type": "mcp_tool_execution_error", "content": content}
        end = {"status": "completed", "output": content} if worked else {"status": "failed", "error": failure}
        item = {**self._output[index], **end}
        kind = "response.mcp_call.completed" if worked else "response.mcp_call.failed"
        self._add_event(events, kind, item_id=item["id"], output_index=index)
        self._done(index, item, events)

    def _client_calls(self, calls: Calls, events: list[Event]) -> None:
        for call in calls:
            function, index = call["function"], len(self._output)
            item = {
                "id": self._id("fc"),
                "type": "function_call",
                "status": "in_progress",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": "",
            }
            self._add(item, events)
            place = {"item_id": item["id"], "output_index": index}
            arguments = function["arguments"]
            self._add_event(events, "response.function_call_arguments.delta", **place, delta=arguments)
            self._add_event(
                events, "response.function_call_arguments.done", **place, name=item["name"], arguments=arguments
            )
            self._done(index, {**item, "status": "completed", "arguments": arguments}, events)

    # Items

    def _add(self, item: dict[str, Any], events: list[Event]) -> None:
        self._output.append(item)
        self._add_event(events, "response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self, index: int, item: dict[str, Any], events: list[Event]) -> None:
        self._output[index] = item
        self._add_event(events, "response.output_item.done", output_index=index, item=item)

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._resource.name.key}_{len(self._output)}"


def _with_text(item: dict[str, Any], text: str) -> dict[str, Any]:
    """An item that is being streamed, with its text so far."""
    if item["type"] == "reasoning":
        return {**item, "summary": [{"type": "summary_text", "text": text}]}
    return {**item, "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}


def _as_text(content: Any) -> str:
    return content if isinstance(content, str) else dumps(content).decode()
