"""A turn's events for clients that know text, reasoning, citations, tool calls and an end: shared by OpenAI's shapes.
No encoding here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from agentic_backend.agent.sources import marks
from agentic_backend.events import ChatMessage, Part, arguments_of
from agentic_backend.session.stream import (
    Awaiting,
    Cancelled,
    Failed,
    Payload,
    Terminal,
    TextDelta,
    ThoughtDelta,
    Whole,
)
from agentic_backend.session.stream import Final as Answered
from agentic_backend.surfaces.openai.errors import CANCELLED, status_of, their_code
from agentic_backend.surfaces.openai.people import in_words
from backend_kit.wire import CODES, Code, dumps, message_for

Citation = dict[str, Any]
"""`start_index`, `end_index` (of the mark in the answer's text, in characters), `title`, `url`."""
Calls = tuple[dict[str, Any], ...]
"""Calls of the client's tools as chat completions have them: `id`, `type`, `function` with `name` and `arguments`."""
FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]
_REASONS: Final[dict[str, FinishReason]] = {
    "length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
}
_STOPPED: Final = "The answer was stopped."
_GAP: Final = "\n\n"
_SHOWN_CHARS: Final = 500
"""Of the arguments of a tool call, and of its result."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no complete answer, in terms of HTTP and OpenAI's errors. `retry_after_s` is None if unknown."""

    status: int
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_s: float | None = None


BROKEN_OFF: Final = Failure(
    status_of(Code.DRAINING), their_code(Code.DRAINING), message_for(Code.DRAINING), retryable=True
)
"""The end of a stream that had sent something when its turn began to run again: nothing of the new run can follow
it."""


@dataclass(frozen=True, slots=True)
class End:
    """How a turn ended. `answer` is the whole text, `rest` what `AnswerReader` has not given of it yet, behind a gap
    where something came before; `spent` the tokens of all its model calls, None where no model reported any."""

    answer: str = ""
    rest: str = ""
    reason: FinishReason = "stop"
    citations: tuple[Citation, ...] = ()
    calls: Calls = ()
    spent: dict[str, Any] | None = None
    failure: Failure | None = None


class AnswerReader:
    """Follows one turn in the order of its events: text is given as it comes, and cannot be taken back.

    Text that turns out to precede a step stays in front of the answer, with an empty line between them.
    """

    def __init__(self, page: str) -> None:
        """`page` is the origin at which people open our page."""
        self._page = page
        self._rank: int | None = None
        self._said: list[str] = []
        self._chars_before = 0
        self._last = ""

    def text(self, delta: TextDelta) -> str:
        """The next text of the answer."""
        text = delta.text
        self._last = "text"
        if delta.rank != self._rank:
            gap = self._gap()
            self._chars_before += sum(map(len, self._said)) + len(gap)
            self._rank = delta.rank
            self._said = [text]
            return gap + text
        self._said.append(text)
        return text

    def thought(self, text: str) -> str:
        """The next text of reasoning."""
        gap = _GAP if self._last == "step" else ""
        self._last = "thought"
        return gap + text

    def step(self, message: ChatMessage) -> str:
        """A message besides the answer, as reasoning; "" if there is nothing to say, or it was sent as text."""
        if message.channel == "thought" and message.rank == self._rank:
            return ""
        words = step_in_words(message)
        if not words:
            return ""
        gap = _GAP if self._last in ("step", "thought") else ""
        self._last = "step"
        return gap + words

    def end(self, payload: Terminal) -> End:
        """The end of the turn."""
        if isinstance(payload, Answered):
            return self._answered(payload)
        if isinstance(payload, Awaiting):
            words = in_words(payload.payload)
            return End(words, self._gap() + words, spent=spent_in(payload))
        return End(spent=spent_in(payload), failure=failure_of(payload))

    def _answered(self, payload: Answered) -> End:
        message = payload.messages[-1]
        parts, metadata = message.parts, message.metadata
        answer, said = message.text, "".join(self._said) if self._rank == message.rank else ""
        rest, before = answer[len(said) :] if answer.startswith(said) else "", self._chars_before
        if not said and self._said:
            gap = self._gap()
            rest, before = gap + rest, before + sum(map(len, self._said)) + len(gap)
        calls = calls_of(parts)
        reason = finish_reason_of(calls, metadata)
        return End(
            answer, rest, reason, tuple(citations_of(parts, answer, self._page, before)), calls, spent_in(payload)
        )

    def _gap(self) -> str:
        return _GAP if self._said else ""


def finish_reason_of(calls: Calls, metadata: Mapping[str, Any]) -> FinishReason:
    """Why an answer with these calls and this metadata ended."""
    return "tool_calls" if calls else _REASONS.get(metadata.get("finish_reason", ""), "stop")


def spent_in(end: Terminal) -> dict[str, Any] | None:
    """`metadata.extras.usage` of a turn that ended: what its model calls took together. None if none reported any."""
    if isinstance(end, Awaiting):
        return end.usage
    if not end.messages:
        return None
    spent = (end.messages[-1].metadata.get("extras") or {}).get("usage")
    return spent if isinstance(spent, dict) else None


def failure_of(payload: Cancelled | Failed) -> Failure:
    """Why a turn has no complete answer. Clients must not retry automatically if somebody else stopped it."""
    if isinstance(payload, Cancelled):
        return Failure(409, CANCELLED, _STOPPED)
    code = payload.code
    after_s = None if payload.retry_after_ms is None else payload.retry_after_ms / 1000
    return Failure(status_of(code), their_code(code), payload.text, payload.field, CODES[code].retryable, after_s)


def read_whole_answer(payloads: Iterable[Payload], page: str) -> tuple[str, End]:
    """The reasoning and the end of a turn that has ended, for an answer in one piece.

    Text before a step was not the answer: here it is part of the reasoning.
    """
    telling = AnswerReader(page)
    reasoning: list[str] = []
    end: End | None = None
    for payload in payloads:
        if isinstance(payload, ThoughtDelta):
            reasoning.append(telling.thought(payload.text))
        elif isinstance(payload, Whole):
            reasoning.append(telling.step(payload.message))
        elif isinstance(payload, Terminal):
            end = telling.end(payload)
    assert end is not None, "a turn that has ended has its end"
    return "".join(reasoning), end


def citations_of(parts: Sequence[Part], text: str, page: str, offset: int = 0) -> list[Citation]:
    """One for each source that an answer cites, in order.

    `page` is the origin at which people open the page, `offset` how many characters were sent before the text. A source
    whose mark is not found in the text is placed at its end.
    """
    links = [part for part in parts if part.get("type") == "link" and part.get("kind") == "citation"]
    if not links:
        return []
    places = marks(text, max(_number(link) for link in links))
    end = len(text)
    found = []
    for link in links:
        start, stop = places.get(_number(link), (end, end))
        href = str(link.get("href", ""))
        url = page + href if href.startswith("/") else href
        title = str(link.get("title") or url)
        found.append({"start_index": start + offset, "end_index": stop + offset, "title": title, "url": url})
    return found


def page_of(public_url: str | None, scheme: str, headers: Mapping[str, str]) -> str:
    """The origin for the addresses of passages: as configured, else the one that the request was sent to."""
    return (public_url or f"{scheme}://{headers.get('host', 'localhost')}").rstrip("/")


def _number(link: Part) -> int:
    number = str(link.get("source_id", ""))
    return int(number) if number.isdecimal() and len(number) <= 3 else 0


def step_in_words(message: ChatMessage) -> str:
    """A tool call, its result, or another message beside the answer, for clients that show reasoning and know no other
    place for it; "" for what says nothing here.

    A question is the client's own, and kept reasoning was streamed already.
    """
    if message.role == "user":
        return ""
    if message.channel == "thought" and (message.metadata.get("extras") or {}).get("reasoning"):
        return ""
    return "\n".join(filter(None, map(_part, message.parts)))


def _part(part: Part) -> str:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "tool_call":
        return f"→ {part.get('name')}({_cut(dumps(part.get('args')).decode())})"
    if kind == "tool_result":
        mark = "←" if part.get("ok", True) else "← failed:"
        return f"{mark} {_cut(_content(part.get('content')))}"
    return ""


def _content(content: Any) -> str:
    return content if isinstance(content, str) else dumps(content).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def calls_of(parts: Sequence[Part]) -> Calls:
    """The calls of the client's tools with which an answer ends."""
    calls = [part for part in parts if part.get("type") == "tool_call"]
    return tuple(
        {
            "id": call["call_id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": arguments_of(call)},
        }
        for call in calls
    )
