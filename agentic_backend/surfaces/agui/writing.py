"""The events of a turn as AG-UI's, in JSON as bytes. No I/O.

One event of ours becomes any number of theirs, in their order: what is open is closed before something else begins. A
token costs one formatting of bytes around its text.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agentic_backend.events import ChatMessage, Part, arguments_of
from agentic_backend.session.stream import (
    Accepted,
    Awaiting,
    Cancelled,
    Cited,
    CustomPart,
    Failed,
    Payload,
    Restarted,
    SessionChanged,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.agui.people import interrupts, unique_call
from backend_kit.wire import CODES, dumps, loads

PROTOCOL: Final = "1.0"
"""The version of AG-UI that is spoken."""
QUEUED: Final = "queued"
"""The step of a run that waits for its place."""
_TOKENS: Final = (
    ("inputTokens", "input_tokens"),
    ("outputTokens", "output_tokens"),
    ("reasoningTokens", "reasoning_tokens"),
    ("cachedInputTokens", "cached_tokens"),
)


@dataclass(frozen=True, slots=True)
class RunNames:
    """What the client calls its run, and what it is here.

    `taken` are the ids of the tool calls that the client's thread has from other runs, `calls` the same by the ids that
    agents gave them. `rank` is the lowest that a message of this run may have. `snapshot` is sent first if the client
    already holds a part of this run: its messages without that part. `messages_before` gives the same for a turn that
    runs again in the middle of its stream.
    """

    thread_id: str
    run_id: str
    parent_run_id: str | None
    agent_id: str
    session_id: str
    exchange_id: str
    rank: int = 0
    calls: Mapping[str, str] = field(default_factory=dict)
    taken: Collection[str] = ()
    snapshot: list[dict[str, Any]] | None = None
    messages_before: Callable[[], list[dict[str, Any]]] = list


class RunWriter:
    """Writes one run. `take` is called with each payload of the turn in its order, joined or not."""

    def __init__(self, names: RunNames, request_id: str = "") -> None:
        """`request_id` is that of the request which began the turn; it is sent with a failure, so that users can report
        it."""
        self._names = names
        self._request_id = request_id
        self._started = False
        self._steps: list[str] = []
        self._reasonings: list[str] = []
        """The ids of all reasoning so far."""
        self.ended = False
        """Whether the run has ended."""
        self._reset()

    def _reset(self) -> None:
        """As before the first message."""
        self._open = b""
        """The id of the text or the reasoning that is open, as JSON; empty where none is."""
        self._open_rank: int | None = None
        self._told_rank: int | None = None
        """The rank of the last text, which may be the answer."""
        self._thinks = False
        self._thoughts = 0
        self._told_thoughts = 0
        self._parent: str | None = None
        """The message to which the next tool calls belong."""
        self._calls: dict[str, deque[str]] = {}
        self._made: dict[str, str] = {}
        self._taken = {*self._names.taken}

    def take(self, payload: Payload) -> list[bytes]:
        """The events of a payload, each a JSON object."""
        if isinstance(payload, TextDelta):
            return self._text(payload)
        if isinstance(payload, ThoughtDelta):
            return self._thought(payload)
        encoded: list[bytes] = []
        if isinstance(payload, Failed):
            self._fail(payload, encoded)
            return encoded
        if isinstance(payload, Restarted):
            self._begin_again(encoded)
            return encoded
        self._start(encoded, queued=payload if isinstance(payload, Accepted) else None)
        if isinstance(payload, Whole):
            self._whole(payload.message, encoded)
        elif isinstance(payload, CustomPart):
            encoded.append(b'{"type":"CUSTOM","name":"turnwise.custom","value":%b}' % payload.json)
        elif isinstance(payload, Cited):
            encoded.append(_custom("sources", payload.hits))
        elif isinstance(payload, SessionChanged):
            encoded.append(_custom("session", payload.session.wire()))
        elif isinstance(payload, Ended | Awaiting | Cancelled):
            self._end(payload, encoded)
        return encoded

    def _text(self, delta: TextDelta) -> list[bytes]:
        if self._open_rank != delta.rank:
            encoded: list[bytes] = []
            self._start(encoded)
            self._begin_text(delta.rank, encoded)
            if delta.text:
                encoded.append(self._content(delta.text))
            return encoded
        return [self._content(delta.text)] if delta.text else []

    def _content(self, text: str) -> bytes:
        return b'{"type":"TEXT_MESSAGE_CONTENT","messageId":%b,"delta":%b}' % (self._open, dumps(text))

    def _thought(self, delta: ThoughtDelta) -> list[bytes]:
        encoded: list[bytes] = []
        if not self._thinks:
            self._start(encoded)
            self._thoughts += 1
            self._begin_thought(f"{self._names.rank}t{self._thoughts}", encoded)
        encoded.append(self._reason(delta.text))
        return encoded

    def _reason(self, text: str) -> bytes:
        return b'{"type":"REASONING_MESSAGE_CONTENT","messageId":%b,"delta":%b}' % (self._open, dumps(text))

    def _begin_text(self, rank: int, encoded: list[bytes]) -> None:
        self._close(encoded)
        name = self._id(rank)
        self._open, self._open_rank, self._parent, self._told_rank = dumps(name), rank, name, rank
        encoded.append(b'{"type":"TEXT_MESSAGE_START","messageId":%b,"role":"assistant"}' % self._open)

    def _begin_thought(self, suffix: str, encoded: list[bytes]) -> None:
        self._close(encoded)
        name = self._id(suffix)
        self._reasonings.append(name)
        self._open, self._open_rank, self._thinks, self._parent = dumps(name), None, True, None
        encoded.append(b'{"type":"REASONING_START","messageId":%b}' % self._open)
        encoded.append(b'{"type":"REASONING_MESSAGE_START","messageId":%b,"role":"reasoning"}' % self._open)

    def _close(self, encoded: list[bytes]) -> None:
        """End the text or the reasoning that is open."""
        if not self._open:
            return
        if self._thinks:
            encoded.append(b'{"type":"REASONING_MESSAGE_END","messageId":%b}' % self._open)
            encoded.append(b'{"type":"REASONING_END","messageId":%b}' % self._open)
        else:
            encoded.append(b'{"type":"TEXT_MESSAGE_END","messageId":%b}' % self._open)
        self._open, self._open_rank, self._thinks = b"", None, False

    def _start(self, encoded: list[bytes], queued: Accepted | None = None) -> None:
        """Begin the run if it has not begun, and the step of its agent once the turn has its slot."""
        names = self._names
        if not self._started:
            self._started = True
            about = {"session_id": names.session_id, "exchange_id": names.exchange_id}
            head: dict[str, Any] = {"type": "RUN_STARTED", "threadId": names.thread_id, "runId": names.run_id}
            if names.parent_run_id is not None:
                head["parentRunId"] = names.parent_run_id
            encoded.append(dumps({**head, "protocolVersion": PROTOCOL, "metadata": {"turnwise": about}}))
            if names.snapshot is not None:
                encoded.append(b'{"type":"MESSAGES_SNAPSHOT","messages":%b}' % dumps(names.snapshot))
        if queued is not None and queued.queue_position is not None:
            self._step(QUEUED, encoded)
        elif self._steps != [names.agent_id]:
            self._finish_steps(encoded)
            self._step(names.agent_id, encoded)

    def _begin_again(self, encoded: list[bytes]) -> None:
        """Retract what was sent of the run, whose turn runs again. Does nothing if the run has not begun."""
        if not self._started:
            return
        self._close(encoded)
        self._finish_steps(encoded)
        self._reset()
        messages = self._names.messages_before()
        # A client keeps reasoning that a snapshot lacks, so it is sent with an empty text.
        known = {message.get("id") for message in messages}
        for name in dict.fromkeys(self._reasonings):
            if name not in known:
                messages.append({"id": name, "role": "reasoning", "content": ""})
        encoded.append(b'{"type":"MESSAGES_SNAPSHOT","messages":%b}' % dumps(messages))

    def _step(self, name: str, encoded: list[bytes]) -> None:
        self._steps.append(name)
        encoded.append(b'{"type":"STEP_STARTED","stepName":%b}' % dumps(name))

    def _finish_steps(self, encoded: list[bytes]) -> None:
        encoded.extend(b'{"type":"STEP_FINISHED","stepName":%b}' % dumps(name) for name in self._steps)
        self._steps.clear()

    def _whole(self, message: ChatMessage, encoded: list[bytes]) -> None:
        if message.role == "user" or message.rank < self._names.rank:
            return  # the user's own message or, of a run that runs again, what comes before it
        if message.rank == self._open_rank:
            self._close(encoded)  # the text so far, which was not the answer
            return
        if message.channel == "tool_call":
            self._close(encoded)
            self._tool_calls(message.parts, message.rank, encoded)
        elif message.channel == "tool_result":
            self._close(encoded)
            self._tool_results(message.parts, message.rank, encoded)
        else:
            self._write_message(message, encoded)

    def _write_message(self, message: ChatMessage, encoded: list[bytes]) -> None:
        """A message that was not streamed: a text before a step, as history has it; what an agent notes; reasoning."""
        if message.metadata.get("extras", {}).get("reasoning") is True:
            self._told_thoughts += 1
            if self._told_thoughts <= self._thoughts:
                return  # streamed before
        elif (message.role, message.channel) == ("assistant", "thought"):
            self._begin_text(message.rank, encoded)
            encoded.append(self._content(message.text))
            self._close(encoded)
            return
        self._begin_thought(str(message.rank), encoded)
        encoded.append(self._reason(message.text))
        self._close(encoded)

    def _tool_calls(self, parts: list[Part], rank: int, encoded: list[bytes]) -> list[str]:
        """Append the calls in a message; returns their ids."""
        self._parent = parent = self._parent or self._id(rank)
        made = []
        for number, part in enumerate(part for part in parts if part.get("type") == "tool_call"):
            given = part["call_id"]
            call_id = unique_call(given, rank, number, self._taken)
            self._taken.add(call_id)
            self._made[given] = call_id
            self._calls.setdefault(given, deque()).append(call_id)
            name, arguments = dumps(call_id), arguments_of(part)
            shown = dumps({"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": part["name"]})
            encoded.append(b'%b,"parentMessageId":%b}' % (shown[:-1], dumps(parent)))
            encoded.append(b'{"type":"TOOL_CALL_ARGS","toolCallId":%b,"delta":%b}' % (name, dumps(arguments)))
            encoded.append(b'{"type":"TOOL_CALL_END","toolCallId":%b}' % name)
            made.append(call_id)
        return made

    def _tool_results(self, parts: list[Part], rank: int, encoded: list[bytes]) -> None:
        self._parent = None
        for number, part in enumerate(part for part in parts if part.get("type") == "tool_result"):
            given = part["call_id"]
            waiting = self._calls.get(given)
            # If no call is open, this one belongs to the run that waited for a person.
            call_id = waiting.popleft() if waiting else self._names.calls.get(given, given)
            result = {
                "type": "TOOL_CALL_RESULT",
                "messageId": self._id(f"{rank}-{number}" if number else rank),
                "toolCallId": call_id,
                "content": part["content"],
                "role": "tool",
            }
            if not part.get("ok", True):
                result["metadata"] = {"turnwise": {"ok": False}}
            encoded.append(dumps(result))

    def _end(self, payload: Ended | Awaiting | Cancelled, encoded: list[bytes]) -> None:
        outcome: dict[str, Any]
        usage: list[dict[str, Any]] = []
        if isinstance(payload, Ended):
            answer = loads(payload.messages[-1].json)
            pending = self._answer(answer, payload.messages[-1].rank, encoded)
            usage = _usage(answer["metadata"])
            encoded.append(_ledger(payload))
            outcome = {"type": "success", **({"pendingToolCallIds": pending} if pending else {})}
        elif isinstance(payload, Awaiting):
            asked, rank = payload.messages[0].text, payload.messages[-1].rank + 1
            calls = {**self._names.calls, **self._made}
            outcome = {
                "type": "interrupt",
                "interrupts": interrupts(payload.payload, self._names.exchange_id, asked, rank, calls),
            }
        else:
            outcome = {"type": "cancelled"}
        self._close(encoded)
        self._finish_steps(encoded)
        self.ended = True
        finish: dict[str, Any] = {
            "type": "RUN_FINISHED",
            "threadId": self._names.thread_id,
            "runId": self._names.run_id,
            "outcome": outcome,
        }
        encoded.append(dumps(finish | ({"usage": usage} if usage else {})))

    def _answer(self, answer: dict[str, Any], rank: int, encoded: list[bytes]) -> list[str]:
        """Append what of the answer was not streamed: its text if none was, its citations, its other parts. Returns the
        ids of the calls that it leaves to the client."""
        parts: list[Part] = answer["parts"]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        if text and rank != self._told_rank:
            self._begin_text(rank, encoded)
            encoded.append(self._content(text))
        self._close(encoded)
        pending = self._tool_calls(parts, rank, encoded)
        cited = [part for part in parts if part["type"] == "link" and part.get("kind") == "citation"]
        if cited:
            encoded.append(_custom("citations", cited))
        others = [part for part in parts if part["type"] not in ("text", "tool_call") and part not in cited]
        if others:
            encoded.append(_custom("parts", others))
        return pending

    def _fail(self, failed: Failed, encoded: list[bytes]) -> None:
        """End a run that failed, and everything that is open."""
        self.ended = True
        about: dict[str, Any] = {"retryable": CODES[failed.code].retryable, "request_id": self._request_id}
        if failed.retry_after_ms is not None:
            about["retry_after_ms"] = failed.retry_after_ms
        if failed.field is not None:
            about["field"] = failed.field
        error = {"type": "RUN_ERROR", "message": failed.text, "code": failed.code.value}
        encoded.append(dumps({**error, "metadata": {"turnwise": about}}))

    def _id(self, suffix: int | str) -> str:
        return f"{self._names.exchange_id}.{suffix}"


def is_own(message_id: str, exchange_id: str, rank: int) -> bool:
    """Whether a message's id is one that the writer of a run of this exchange gives, from this rank on."""
    if not message_id.startswith(f"{exchange_id}."):
        return False
    suffix = message_id[len(exchange_id) + 1 :]
    first, sign, last = suffix.partition("t") if "t" in suffix else suffix.partition("-")
    numbers = (first, last) if sign else (first,)
    return all(one.isascii() and one.isdigit() for one in numbers) and int(first) >= rank


def _custom(name: str, value: Any) -> bytes:
    return b'{"type":"CUSTOM","name":"turnwise.%b","value":%b}' % (name.encode(), dumps(value))


def _ledger(final: Ended) -> bytes:
    rest = {"unattributed_ms": final.unattributed_ms, "durable": final.durable, "warnings": final.warnings}
    return b'{"type":"CUSTOM","name":"turnwise.ledger","value":{"ledger":%b,%b}' % (final.ledger, dumps(rest)[1:])


def _usage(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens of an answer, by model."""
    usage = metadata.get("extras", {}).get("usage")
    by_model: dict[str, dict[str, Any]] = {}
    for step in usage["steps"] if isinstance(usage, dict) else ():
        entry = by_model.setdefault(step["model"], {"model": step["model"]})
        for theirs, ours in _TOKENS:
            if ours in step:
                entry[theirs] = entry.get(theirs, 0) + step[ours]
    for entry in by_model.values():
        entry["totalTokens"] = entry["inputTokens"] + entry["outputTokens"]
    return list(by_model.values())
