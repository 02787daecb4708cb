"""The output of one exchange so far: ranks, text, whole messages, deltas and their times. No I/O."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agentic_backend.agent.people import answer_in_words
from agentic_backend.events import (
    AgentEvent,
    Channel,
    ChatMessage,
    Custom,
    Delta,
    GraphOutput,
    Part,
    Role,
    Sources,
    Speaks,
    Step,
    TextEnds,
    Thought,
    result_part,
    text_part,
    utc_now,
)
from agentic_backend.session.models import Session
from agentic_backend.session.stream import (
    NO_STATE,
    Ask,
    Cited,
    CustomPart,
    GraphPart,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Turn,
    Whole,
)
from agentic_backend.session.turn_report import loggable
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

_TITLE_CHARS = 60
_SENTENCE_CHARS = 15
"""The shortest sentence that can serve as a title: `Hello.` says nothing."""
_SENTENCE_ENDS = (". ", "? ", "! ")
_DECISION_BYTES = 16 * 1024
"""Bytes of a person's answer as it was sent; the JSON of a longer one is cut."""
_THOUGHTS_LEFT_OUT = "\n[The rest is left out.]"


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """The bounds of what one run may emit besides its answer; more is dropped."""

    thought_chars: int = 200_000
    """Characters of reasoning."""
    custom_events: int = 1_000
    custom_event_bytes: int = 64 * 1024
    """Bytes of one custom event's JSON."""
    custom_bytes: int = 4 * 1024 * 1024
    """Of all custom events' JSON: they are kept for clients that come back."""
    graph_events: int = 2_000
    """Events of a graph's run that a client asked for: each step has one or two."""
    graph_event_bytes: int = 1024 * 1024
    """Bytes of one of these: it may be a whole state."""
    graph_bytes: int = 8 * 1024 * 1024
    """Of all of these, which are kept for clients that come back."""


class _Allowance:
    """How much of one kind of event a run may still emit."""

    def __init__(self, what: str, events: int, event_bytes: int, all_bytes: int) -> None:
        self._what = what
        self._events = events
        self._event_bytes = event_bytes
        self._bytes = all_bytes
        self._dropped = False

    def takes(self, encoded: bytes, exchange_id: str) -> bool:
        """Whether one more may be emitted; it then counts."""
        if len(encoded) > self._event_bytes:
            self.drop(exchange_id, "it is too large")
        elif not self._events or len(encoded) > self._bytes:
            self.drop(exchange_id, "there were too many")
        else:
            self._events -= 1
            self._bytes -= len(encoded)
            return True
        return False

    def drop(self, exchange_id: str, why: str) -> None:
        """Log the first that is dropped."""
        if not self._dropped:
            logger.warning("%s event dropped exchange_id=%s: %s", self._what, loggable(exchange_id), why)
        self._dropped = True


class Exchange:
    """Collects what an agent emits, assigns ranks and publishes it.

    Ranks go up in the order in which messages begin: the user's first, then each step, the answer last. Text that
    is followed by a step was not the answer: it becomes a thought. Reasoning has no rank unless it is kept: then each
    stretch of it becomes a message when it ends.
    """

    def __init__(
        self, turn: Turn, session: Session, *, keep_thoughts: bool = False, bounds: OutputBounds | None = None
    ) -> None:
        self.turn = turn
        self.session = session
        self.messages: list[ChatMessage] = []
        self.hits: list[dict[str, Any]] = []
        self.first_token_at: float | None = None
        self.longest_gap_s = 0.0
        self.deltas = 0
        self._last_output_at: float | None = None
        self._next_rank = session.next_rank
        self._text: list[str] = []
        self._text_rank: int | None = None
        self._keep_thoughts = keep_thoughts
        bounds = bounds or OutputBounds()
        self._thinking_since: float | None = None
        self._thought_s: float | None = None
        self._thought_chars_left = bounds.thought_chars
        self._kept: list[_Stretch] = []
        self._custom_left = _Allowance("custom", bounds.custom_events, bounds.custom_event_bytes, bounds.custom_bytes)
        self._graph_left = _Allowance("graph", bounds.graph_events, bounds.graph_event_bytes, bounds.graph_bytes)
        self._speaks: Speaks | None = None

    @property
    def ask(self) -> Ask:
        """The question of this exchange."""
        return self.turn.ask

    @property
    def text(self) -> str:
        """The answer's text so far."""
        return "".join(self._text)

    @property
    def published_by_pause(self) -> int:
        """How many messages a pause publishes: the text so far, and the reasoning that is kept."""
        return (self._text_rank is not None) + len(self._kept)

    @property
    def stream_metadata(self) -> dict[str, Any]:
        """What the metadata of the last message says about what was streamed: `deltas`, `thinking_ms` and
        `late_thoughts`, each only where there was any, and of a hosted graph `message_id` and `node`."""
        extras: dict[str, Any] = {}
        if self._speaks is not None and self._text_rank is not None:
            extras.update(message_id=self._speaks.message_id, node=self._speaks.node)
        if self.deltas:
            extras["deltas"] = self.deltas
        if self._thought_s is not None:
            extras["thinking_ms"] = round(self._thought_s * 1e3, 3)
        if self._kept and self._text_rank is not None:
            # They came after the answer's text had begun: as messages they would follow the answer.
            extras["late_thoughts"] = "\n".join(stretch.text for stretch in self._kept)
        return extras

    def question(self, images: Iterable[Part] = ()) -> ChatMessage:
        """The user's message, with the parts of its images, as `open` publishes it. It says where the exchange begins:
        by that alone history knows what it supersedes."""
        metadata = self._noted(self.ask.branching.extras())
        parts = [*self._asked_parts(), *images]
        return self._encoded("user", "final", parts, metadata, self._next_rank)

    def open(self, asked: ChatMessage) -> None:
        """Keep and publish the user's message."""
        self._take_rank()
        self.messages.append(asked)
        self.turn.publish(Whole(asked))

    def _asked_parts(self) -> list[Part]:
        """The question; if a client lets the agent continue from results of its own tools, those."""
        ask = self.ask
        if ask.message or not ask.given:
            return [text_part(ask.message)]
        results = list(takewhile(lambda item: item.role == "tool", reversed(ask.given)))
        return [result_part(item.call_id, item.text) for item in reversed(results)] or [text_part("")]

    def go_on(self, earlier: tuple[ChatMessage, ...]) -> None:
        """Keep the messages of the run that waited for a person: they were published then."""
        self.messages.extend(earlier)

    def decision(self, asked: Mapping[str, Any]) -> ChatMessage:
        """The person's answer to the question `asked`, with who gave it and when, as `decide` publishes it."""
        return self._encoded("user", "observation", *self._decision(asked), self._next_rank)

    def decide(self, decided: ChatMessage) -> None:
        """Keep and publish what the person said."""
        self._take_rank()
        self.messages.append(decided)
        self.turn.publish(Whole(decided))

    def _decision(self, asked: Mapping[str, Any]) -> tuple[list[Part], dict[str, Any]]:
        """The parts and the metadata of what the person said."""
        assert self.ask.human is not None, "only a person's answer lets an exchange go on"
        answer = self.ask.human.payload
        decision: dict[str, Any] = {"by": self.ask.user_id, "at": utc_now(), "answer": answer}
        encoded = dumps(answer)
        if len(encoded) > _DECISION_BYTES:
            decision.update(answer=encoded[:_DECISION_BYTES].decode(errors="ignore"), cut=True)
        return [text_part(answer_in_words(asked, answer))], self._noted({"decision": decision})

    def _noted(self, extras: dict[str, Any]) -> dict[str, Any]:
        """The metadata of what the user said, with what the door notes beside it."""
        note = self.ask.note
        extras = extras if note is None else {**extras, "note": note}
        return {"extras": extras} if extras else {}

    def emit(self, event: AgentEvent) -> None:
        """Take one event of the agent. After the end of the turn it is dropped, as nobody could see it.

        So is reasoning above its bound, and a custom event that is not JSON or too large. Raises ValueError for a step
        that claims to be the question, or whatever encoding raises for a bad value.
        """
        if self.turn.ended:
            return
        if isinstance(event, Delta):
            self._delta(event)
        elif isinstance(event, Thought):
            self._thought(event)
        elif isinstance(event, Step):
            self._step(event)
        elif isinstance(event, TextEnds):
            self._end_text()
        elif isinstance(event, Sources):
            self.hits = event.hits
            self.turn.publish(Cited(event.hits))
        elif isinstance(event, Custom):
            self._custom(event)
        elif isinstance(event, Speaks):
            self._speaks = event
        elif isinstance(event, GraphOutput):
            self._graph_output(event)

    def end_thinking(self) -> None:
        """Before the exchange is closed: reasoning that nothing followed ends here."""
        self._end_stretch()

    def close(self, text: str, extra_parts: list[Part], metadata: dict[str, Any]) -> ChatMessage:
        """Create and keep the assistant's final message."""
        rank = self._text_rank if self._text_rank is not None else self._take_rank()
        return self._message("assistant", "final", [text_part(clean(text)), *extra_parts], metadata, rank)

    def pause(self, metadata: dict[str, Any]) -> ChatMessage:
        """Create and keep the placeholder where the exchange will continue. The text so far becomes a thought."""
        self._end_text()
        self._publish_kept()
        return self._message("assistant", "final", [text_part("")], metadata, self._take_rank())

    def next_session(self) -> Session:
        """The session after this exchange, given a title if it had none."""
        return self.session.advanced(self._next_rank, self.session.title or title_from(self.ask.message))

    def _graph_output(self, event: GraphOutput) -> None:
        told = self._graph_left.takes(event.json, self.ask.exchange_id)
        # If a state is dropped, what a client knows is out of date: it must not take that for the final state.
        if told or (event.mode == "values" and not event.namespace):
            self.turn.publish(GraphPart(event.mode, event.namespace, event.json if told else NO_STATE))

    def _delta(self, event: Delta) -> None:
        now = self._note_output()
        if self.first_token_at is None:
            self.first_token_at = now
        if self._thinking_since is not None:
            self._end_stretch(now)
        self.deltas += 1
        if self._text_rank is None:
            self._text_rank = self._take_rank()
            if (by := self._speaks) is not None and self.ask.graph is not None:
                self.turn.publish(SpokenBy(self._text_rank, by.message_id, by.node, by.step, by.namespace))
        text = clean(event.text)
        self._text.append(text)
        self.turn.publish(TextDelta(self._text_rank, event.channel, text))

    def _note_output(self) -> float:
        """Note that text or reasoning came now: a model that reasons in the middle of its text is not silent."""
        now = time.perf_counter()
        if self._last_output_at is not None and now - self._last_output_at > self.longest_gap_s:
            self.longest_gap_s = now - self._last_output_at
        self._last_output_at = now
        return now

    def _thought(self, event: Thought) -> None:
        if not event.text:
            return
        now = self._note_output()
        if self._thinking_since is None:
            self._thinking_since = now
            if self._keep_thoughts:
                self._kept.append(_Stretch())
        if self._thought_chars_left <= 0:
            return
        text = clean(event.text)
        if len(text) > self._thought_chars_left:
            text = text[: self._thought_chars_left] + _THOUGHTS_LEFT_OUT
        self._thought_chars_left -= len(text)
        if self._keep_thoughts:
            self._kept[-1].pieces.append(text)
        self.turn.publish(ThoughtDelta(text))

    def _end_stretch(self, now: float | None = None) -> None:
        """End the reasoning before text, a step, or the end of the run."""
        if self._thinking_since is None:
            return
        took_s = (time.perf_counter() if now is None else now) - self._thinking_since
        self._thinking_since = None
        self._thought_s = (self._thought_s or 0.0) + took_s
        if self._kept:
            self._kept[-1].ms = round(took_s * 1e3, 3)
        if self._text_rank is None:
            self._publish_kept()

    def _publish_kept(self) -> None:
        """Store and publish the reasoning that is kept and has ended."""
        kept, self._kept = self._kept, []
        for stretch in kept:
            if text := stretch.text:
                extras = {"reasoning": True, "thinking_ms": stretch.ms}
                parts = [text_part(text)]
                message = self._message("assistant", "thought", parts, {"extras": extras}, self._take_rank())
                self.turn.publish(Whole(message))

    def _custom(self, event: Custom) -> None:
        try:
            encoded = dumps(event.data)
        except (TypeError, ValueError, RecursionError):
            self._custom_left.drop(self.ask.exchange_id, "it is no JSON")
            return
        if self._custom_left.takes(encoded, self.ask.exchange_id):
            self.turn.publish(CustomPart(encoded))

    def _end_text(self) -> None:
        if self._text_rank is not None:
            by, self._speaks = self._speaks, None
            extras = {} if by is None else {"extras": {"message_id": by.message_id, "node": by.node}}
            thought = self._message("assistant", "thought", [text_part(self.text)], extras, self._text_rank)
            self.turn.publish(Whole(thought))
            self._text_rank = None
            self._text.clear()

    def _step(self, event: Step) -> None:
        if (event.role, event.channel) == ("user", "final"):
            raise ValueError("an exchange has one question, and its ask is it")  # storage would refuse the whole turn
        self._end_stretch()
        self._end_text()
        self._publish_kept()
        message = self._message(event.role, event.channel, event.parts, event.metadata, self._next_rank)
        self._take_rank()  # only now: a message that cannot be encoded raises, and must leave no gap
        self.turn.publish(Whole(message))

    def _message(
        self, role: Role, channel: Channel, parts: list[Part], metadata: dict[str, Any], rank: int
    ) -> ChatMessage:
        message = self._encoded(role, channel, parts, metadata, rank)
        self.messages.append(message)
        return message

    def _encoded(
        self, role: Role, channel: Channel, parts: list[Part], metadata: dict[str, Any], rank: int
    ) -> ChatMessage:
        message = self._built(role, channel, parts, metadata, rank)
        if b"\\u0000" in message.json:
            # Tools and agents may write NUL; Postgres would refuse the whole turn for it.
            message = self._built(role, channel, _cleaned(parts), _cleaned(metadata), rank)
        return message

    def _built(
        self, role: Role, channel: Channel, parts: list[Part], metadata: dict[str, Any], rank: int
    ) -> ChatMessage:
        return ChatMessage.build(
            session_id=self.ask.session_id,
            exchange_id=self.ask.exchange_id,
            rank=rank,
            role=role,
            channel=channel,
            parts=parts,
            metadata=metadata,
        )

    def _take_rank(self) -> int:
        rank = self._next_rank
        self._next_rank += 1
        return rank


@dataclass(slots=True)
class _Stretch:
    """A stretch of reasoning that is kept: `ms` once it has ended."""

    pieces: list[str] = field(default_factory=list)
    ms: float = 0.0

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(self.pieces)


def clean(text: str) -> str:
    """Model text as Postgres can store it: NUL, which jsonb refuses, becomes U+FFFD."""
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


def _cleaned(value: Any) -> Any:
    """A JSON value with each of its texts, keys included, as Postgres can store it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value


def title_from(message: str) -> str:
    """A session's title from its first question: the first line, of at most 60 characters. A longer one is its first
    sentence, or is cut at a word."""
    lines = message.strip().splitlines()
    line = " ".join(lines[0].split()) if lines else ""
    if len(line) <= _TITLE_CHARS:
        return line
    ends = [place for end in _SENTENCE_ENDS if (place := line.find(end, _SENTENCE_CHARS, _TITLE_CHARS)) >= 0]
    if ends:
        return line[: min(ends) + 1]
    return line[:_TITLE_CHARS].rsplit(" ", 1)[0] + "…"
