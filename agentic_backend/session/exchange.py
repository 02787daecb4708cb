"""The output of one exchange so far: ranks, text, whole messages, deltas and their times. No I/O."""

import time
from typing import Any

from agentic_backend.events import (
    AgentEvent,
    Channel,
    ChatMessage,
    Delta,
    Part,
    Role,
    Sources,
    Step,
    TextEnds,
    text_part,
)
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Ask, Cited, TextDelta, Turn, Whole

_TITLE_CHARS = 60


class Exchange:
    """Collects what an agent emits, assigns ranks and publishes it.

    Ranks go up in the order in which messages begin: the user's first, then each step, the answer last. Text that
    is followed by a step was not the answer: it becomes a thought.
    """

    def __init__(self, turn: Turn, session: Session) -> None:
        self.turn = turn
        self.session = session
        self.messages: list[ChatMessage] = []
        self.hits: list[dict[str, Any]] = []
        self.first_token_at: float | None = None
        self.longest_gap_s = 0.0
        self.deltas = 0
        self._last_delta_at = 0.0
        self._next_rank = session.next_rank
        self._text: list[str] = []
        self._text_rank: int | None = None

    @property
    def ask(self) -> Ask:
        """The question of this exchange."""
        return self.turn.ask

    @property
    def text(self) -> str:
        """The answer's text so far."""
        return "".join(self._text)

    @property
    def text_published_by_pause(self) -> bool:
        """Whether a pause publishes the text so far."""
        return self._text_rank is not None

    def open(self, asked: ChatMessage | None = None) -> ChatMessage:
        """Create, keep and publish the user's message, or reuse `asked` if it was asked before."""
        rank = self._take_rank()
        if asked is None:
            asked = self._message("user", "final", [text_part(self.ask.message)], {}, rank)
        else:
            self.messages.append(asked)
        self.turn.publish(Whole(asked))
        return asked

    def go_on(self, earlier: tuple[ChatMessage, ...]) -> None:
        """Keep the messages of the run that waited for a person: they were published then."""
        self.messages.extend(earlier)

    def emit(self, event: AgentEvent) -> None:
        """Take one event of the agent. After the end of the turn it is dropped, as nobody could see it.

        Raises ValueError for a step that claims to be the question, or whatever encoding raises for a bad value.
        """
        if self.turn.ended:
            return
        if isinstance(event, Delta):
            self._delta(event)
        elif isinstance(event, Step):
            self._step(event)
        elif isinstance(event, TextEnds):
            self._end_text()
        elif isinstance(event, Sources):
            self.hits = event.hits
            self.turn.publish(Cited(event.hits))

    def close(self, text: str, extra_parts: list[Part], metadata: dict[str, Any]) -> ChatMessage:
        """Create and keep the assistant's final message."""
        rank = self._text_rank if self._text_rank is not None else self._take_rank()
        return self._message("assistant", "final", [text_part(clean(text)), *extra_parts], metadata, rank)

    def pause(self, metadata: dict[str, Any]) -> ChatMessage:
        """Create and keep the placeholder where the exchange will continue. The text so far becomes a thought."""
        self._end_text()
        return self._message("assistant", "final", [text_part("")], metadata, self._take_rank())

    def next_session(self) -> Session:
        """The session after this exchange, given a title if it had none."""
        return self.session.advanced(self._next_rank, self.session.title or title_from(self.ask.message))

    def _delta(self, event: Delta) -> None:
        now = time.perf_counter()
        if self.first_token_at is None:
            self.first_token_at = now
        elif now - self._last_delta_at > self.longest_gap_s:
            self.longest_gap_s = now - self._last_delta_at
        self._last_delta_at = now
        self.deltas += 1
        if self._text_rank is None:
            self._text_rank = self._take_rank()
        text = clean(event.text)
        self._text.append(text)
        self.turn.publish(TextDelta(self._text_rank, event.channel, text))

    def _end_text(self) -> None:
        if self._text_rank is not None:
            thought = self._message("assistant", "thought", [text_part(self.text)], {}, self._text_rank)
            self.turn.publish(Whole(thought))
            self._text_rank = None
            self._text.clear()

    def _step(self, event: Step) -> None:
        if (event.role, event.channel) == ("user", "final"):
            raise ValueError("an exchange has one question, and its ask is it")  # storage would refuse the whole turn
        self._end_text()
        message = self._message(event.role, event.channel, event.parts, event.metadata, self._next_rank)
        self._take_rank()  # only now: a message that cannot be encoded raises, and must leave no gap
        self.turn.publish(Whole(message))

    def _message(
        self, role: Role, channel: Channel, parts: list[Part], metadata: dict[str, Any], rank: int
    ) -> ChatMessage:
        message = self._built(role, channel, parts, metadata, rank)
        if b"\\u0000" in message.json:
            # Tools and agents may write NUL; Postgres would refuse the whole turn for it.
            message = self._built(role, channel, _cleaned(parts), _cleaned(metadata), rank)
        self.messages.append(message)
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
    """A session's title from its first question: the first line, cut at a word after at most 60 characters."""
    lines = message.strip().splitlines()
    line = " ".join(lines[0].split()) if lines else ""
    if len(line) <= _TITLE_CHARS:
        return line
    return line[:_TITLE_CHARS].rsplit(" ", 1)[0] + "…"
