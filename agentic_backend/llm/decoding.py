"""The pieces of one streamed answer from its bytes: no I/O."""

from typing import Any

from agentic_backend.llm import chunks as wire
from agentic_backend.llm import failures
from agentic_backend.llm.endpoint import Endpoint
from agentic_backend.llm.failures import AttemptFailed
from agentic_backend.llm.observer import TokenUse
from agentic_backend.llm.sse import SseParser, SseTooLarge
from agentic_backend.llm.text_shape import TextShape
from agentic_backend.llm.thinking import ThinkBlock


class AnswerDecoder:
    """What one attempt of a call brings, in order, within the endpoint's bounds.

    With `text_only`, texts come as texts and reasoning as `Reasoning`, else all in chunks. `ended`: nothing more will
    come; `finished`: the model has said why it stopped; `failure`: what follows the pieces returned last; `usage`: the
    tokens, where the server counts them.
    """

    def __init__(self, endpoint: Endpoint, *, text_only: bool) -> None:
        self.ended = False
        self.finished = False
        self.failure: AttemptFailed | None = None
        self.usage: TokenUse | None = None
        self._text_only = text_only
        self._coalesce = endpoint.coalesce
        self._parser = SseParser(endpoint.max_event_bytes)
        self._shape: TextShape | None = None
        self._shape_sought = False
        self._behind: dict[str, Any] | None = None
        """The delta of the last chunk of this read, where further text may join it."""
        self._think: ThinkBlock | None = ThinkBlock()
        """Until it is known whether the text begins with such a block, and to the end of that."""
        self._room = endpoint.max_answer_chars
        self._thought_room = endpoint.max_reasoning_chars

    @property
    def cut(self) -> bool:
        """Whether the answer was ended at its bound, with more to come."""
        return self._room < 0 or self._thought_room < 0

    def feed(self, data: bytes) -> list[wire.Piece]:
        """The pieces of one read; none at the end of the stream. Raises `AttemptFailed` if nothing good came first."""
        if not data:
            if not self.finished:
                raise failures.broken("stream ended early")
            self.ended = True
            return []
        try:
            events = self._parser.feed(data)
        except SseTooLarge as failure:
            raise failures.broken("event too large") from failure
        pieces: list[wire.Piece] = []
        self._behind = None
        together = self._text_only and self._coalesce
        place = looked_at = 0
        while place < len(events) and not self.ended and self.failure is None:
            if together and self._shape is not None and place >= looked_at:
                count, text = self._shape.leading_text(events, place)
                looked_at = place + count
                if text and len(text) <= self._room:
                    self._room -= len(text)
                    self._take_text(text, pieces)
                    place = looked_at
                    continue
            event = events[place]
            place += 1
            if event == wire.DONE:
                self._let_go(pieces)
                self.ended = True
            else:
                self._take(event, pieces)
        return pieces

    def whole(self, data: bytes) -> list[wire.Piece]:
        """The pieces of an answer that came whole, although a stream was asked for. Raises `AttemptFailed`."""
        try:
            answer = wire.parse_answer(data)
        except wire.BrokenChunk as failure:
            raise failures.broken(f"broken answer: {failure}") from failure
        pieces: list[wire.Piece] = []
        self._take_chunk(wire.chunk_of(answer), len(data), pieces)
        self.ended = True
        return pieces

    def _take(self, event: bytes, pieces: list[wire.Piece]) -> None:
        """Add what the event says to `pieces`, or note in `failure` what is wrong with it."""
        try:
            chunk, text = wire.parse_chunk(event)
        except wire.BrokenChunk as failure:
            self.failure = failures.broken(f"broken chunk: {failure}")
            return
        if text is None or len(text) > self._room:
            self._behind = None
            self._take_chunk(chunk, len(event), pieces)
            return
        self._room -= len(text) or len(event)
        if not self._text_only:
            self._take_text_chunk(chunk, text, pieces)
            return
        self._take_text(text, pieces)
        if not self._shape_sought:
            self._shape, self._shape_sought = TextShape.of(event), True

    def _take_text(self, text: str, pieces: list[wire.Piece]) -> None:
        if self._think is not None and text:
            thought, text = self._split(text)
            if thought or not text:
                self._take_thought(thought, pieces)
                self._end_at_bound(pieces)
            if not text:
                return
        last = pieces[-1] if pieces and self._coalesce else None
        if type(last) is str:
            pieces[-1] = last + text
        else:
            pieces.append(text)

    def _take_text_chunk(self, chunk: wire.Chunk, text: str, pieces: list[wire.Piece]) -> None:
        thought = ""
        if self._think is not None and text:
            thought, text = self._split(text)
        behind = self._behind
        if behind is not None and not (thought and behind["content"]):
            behind["content"] += text
        else:
            behind = chunk["choices"][0]["delta"]
            behind["content"] = text
            pieces.append(chunk)
        if thought:
            behind[wire.REASONING] = (behind.get(wire.REASONING) or "") + thought
            self._end_at_bound(pieces)
        self._behind = behind if self._coalesce else None

    def _take_thought(self, thought: str, pieces: list[wire.Piece]) -> None:
        """An empty one stands for what is held back: something has come."""
        last = pieces[-1] if pieces and self._coalesce else None
        if isinstance(last, wire.Reasoning):
            pieces[-1] = wire.Reasoning(last + thought)
        else:
            pieces.append(wire.Reasoning(thought))

    def _take_chunk(self, chunk: wire.Chunk, size: int, pieces: list[wire.Piece]) -> None:
        """Take a chunk of `size` bytes that is more than text, or more text than there is room for."""
        if (said := wire.error_of(chunk)) is not None:
            self.failure = failures.of_stream_error(said)
            return
        content, thought = wire.content_of(chunk), wire.reasoning_of(chunk)
        self._room -= len(content) or (0 if thought else size)
        self._thought_room -= len(thought)
        if self.cut:
            self._let_go(pieces)
            if content and self._room < 0:
                pieces.append(wire.text_chunk(content[: self._room]))
            self._end_at_bound(pieces)
            return
        if finished := wire.finish_reason_of(chunk):
            self.finished = True
        if self._think is not None and (content or finished):
            choice = chunk["choices"][0]
            choice["delta"] = delta = choice["delta"] or {}
            thought = self._split_delta(delta, last=bool(finished))
        self.usage = wire.usage_of(chunk) or self.usage
        if self._text_only and thought:
            self._take_thought(thought, pieces)
            if not wire.take_reasoning(chunk):
                return
        pieces.append(chunk)

    def _end_at_bound(self, pieces: list[wire.Piece]) -> None:
        """An answer without an end is cut where its bound is, and says so."""
        if self.cut and not self.ended:
            pieces.append(wire.ended("length"))
            self.finished = self.ended = True

    def _split(self, text: str) -> tuple[str, str]:
        """The reasoning and the text in a text, where it began with a block of reasoning."""
        assert self._think is not None, "there may be a block"
        thought, said = self._think.feed(text)
        self._count_as_thought(thought)
        if self._think.over:
            self._think = None
        return thought, said

    def _split_delta(self, delta: dict[str, Any], *, last: bool) -> str:
        """Part the content of a delta, with what was held back if it is the last one. Returns all its reasoning."""
        thought, text = self._split(delta.get("content") or "")
        if last and self._think is not None:
            more, held = self._think.end()
            self._think = None
            self._count_as_thought(more)
            thought, text = thought + more, text + held
        if text or delta.get("content") is not None:
            delta["content"] = text
        if thought:
            delta[wire.REASONING] = (delta.get(wire.REASONING) or "") + thought
        return delta.get(wire.REASONING) or ""

    def _count_as_thought(self, thought: str) -> None:
        self._room += len(thought)
        self._thought_room -= len(thought)

    def _let_go(self, pieces: list[wire.Piece]) -> None:
        """Add what was held back, at an end that says no reason."""
        if self._think is None:
            return
        thought, text = self._think.end()
        self._think = None
        if not thought and not text:
            return
        if not self._text_only:
            pieces.append(wire.text_chunk(text, thought))
            return
        if thought:
            self._take_thought(thought, pieces)
        if text:
            self._take_text(text, pieces)
