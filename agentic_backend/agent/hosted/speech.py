"""What the models and nodes of a graph say, as the events of a turn: one text at a time, steps where they belong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, InvalidToolCall, ToolCall, ToolMessage

from agentic_backend.agent.hosted.messages import tool_call_of, tool_result_of
from agentic_backend.events import Delta, Emit, Speaks, Step, TextEnds, Thought
from agentic_backend.llm.providers.reading import ChunkText, text_in
from backend_kit.wire import dumps

STRUCTURED: Final = "structured_response"
"""The key under which LangChain's agents leave an answer that is no text."""


class SpokenAt(NamedTuple):
    """Where in a graph a message comes from: the node, the step, and the namespace of a subgraph."""

    node: str = ""
    step: int = 0
    namespace: tuple[str, ...] = ()


NOWHERE: Final = SpokenAt()


@dataclass(slots=True)
class _Spoken:
    """A message that waits until it can be shown. `ended`: nothing will be added to it."""

    message_id: str
    pieces: list[ChunkText]
    ended: bool = False


class Speech:
    """Emits the events of one run.

    An exchange shows one text at a time. Of models that speak at once the first is heard to its end, then the others,
    with the steps that came meanwhile in their places; a text that another one follows was not the answer. A message is
    shown once, however often the graph's nodes hand it on: as it is streamed, or where nobody streamed it, when its
    node returns it. A node's own message that says what a model has streamed is that one.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._seen: set[str] = set()
        self._calls: dict[tuple[str | None, str | int], tuple[str | None, Any]] = {}
        self._text: list[str] = []
        self._text_of: str | None = None
        self._speaker: str | None = None
        self._waiting: list[_Spoken | Step] = []
        self._places: dict[str, SpokenAt] = {}
        self._streamed: dict[str, list[str]] = {}
        """Texts of messages that were streamed and that no node has returned yet."""

    @property
    def text(self) -> str:
        """The text that is shown now."""
        return "".join(self._text)

    def take_fragment(self, message_id: str, said: ChunkText, place: SpokenAt = NOWHERE) -> None:
        """Take a fragment of a message that a model is streaming in this place."""
        pieces = self._streamed.get(message_id)
        if pieces is None:
            pieces = self._streamed[message_id] = []
            self._places[message_id] = place
        if said.text:
            pieces.append(said.text)
        elif not said.thought:
            return
        if self._speaker is None:
            self._speaker = message_id
        if self._speaker == message_id:
            self._emit_fragment(message_id, said)
        else:
            self._waits(message_id).pieces.append(said)

    def ended(self, message_id: str, final_id: str | None = None) -> None:
        """The model has ended its message, which has another id from now on where `final_id` says so. Of those that
        spoke meanwhile the next is heard."""
        if final_id is not None and final_id != message_id:
            self._rename(message_id, final_id)
            message_id = final_id
        if self._speaker == message_id:
            self._speaker = None
            self._go_on()
        elif (spoken := self._waiting_of(message_id)) is not None:
            spoken.ended = True

    def know(self, message: BaseMessage) -> None:
        """A node is given this message, so it is not what the node says."""
        if message.id is not None and message.id not in self._seen:
            self._seen.add(message.id)
            if isinstance(message, AIMessage):
                self._new_calls(message)

    def take(self, message: BaseMessage, place: SpokenAt = NOWHERE) -> None:
        """Take a message that the node of this place returned. Only what nobody has shown yet is emitted: of a known
        message of a model, the tool calls that a node has changed."""
        if message.id is None:
            message.id = str(uuid4())  # as LangGraph does: it comes again under this id
        new = message.id not in self._seen
        self._seen.add(message.id)
        self._places.setdefault(message.id, place)
        if isinstance(message, AIMessage):
            if new:
                self._take_answer(message.id, message)
            for step in self._new_calls(message):
                self._step(step)
        elif isinstance(message, ToolMessage) and new:
            self._step(tool_result_of(message, self._attribution(message.id)))

    def answer(self, messages: Sequence[BaseMessage], state: Any) -> str:
        """The answer of a run whose state ended with these new messages: shown, where it was not, and returned."""
        self._end_all()
        last = next((one for one in reversed(messages) if isinstance(one, AIMessage | ToolMessage)), None)
        wanted = last.text if last is not None else self.text
        if not (wanted and isinstance(last, AIMessage)) and (made := _structured(state)) is not None:
            wanted = _as_json(made)
        if wanted and wanted != self.text:
            self._end_text()
            if isinstance(last, AIMessage) and last.id is not None:
                self._speaks(last.id)
            self._text.append(wanted)
            self._emit(Delta(wanted))
        return wanted

    def _take_answer(self, message_id: str, message: AIMessage) -> None:
        if message_id in self._streamed:
            del self._streamed[message_id]
            self.ended(message_id)  # where its node did not hear it to its end
            return
        said = text_in(message)
        streamed = next((one for one, pieces in self._streamed.items() if "".join(pieces) == said.text), None)
        if streamed is not None and said.text:
            self.ended(streamed, message_id)
            del self._streamed[message_id]
        elif said.text or said.thought:
            self._waiting.append(_Spoken(message_id, [said], ended=True))
            self._go_on()

    def _new_calls(self, message: AIMessage) -> list[Step]:
        """The steps of the tool calls that are not known as they are."""
        steps = []
        calls: list[ToolCall | InvalidToolCall] = [*message.tool_calls, *message.invalid_tool_calls]
        for number, call in enumerate(calls):
            # Some providers give calls no id, or the same ones again in the next message.
            place = (message.id, call["id"] or number)
            known = (call["name"], call["args"])
            if self._calls.get(place) != known:
                self._calls[place] = known
                steps.append(tool_call_of(call, self._attribution(message.id)))
        return steps

    def _rename(self, message_id: str, final_id: str) -> None:
        """Some providers name a message only in its last fragments."""
        if (pieces := self._streamed.pop(message_id, None)) is not None:
            self._streamed[final_id] = pieces
        self._places[final_id] = self._places.pop(message_id, NOWHERE)
        if self._text_of == message_id:
            self._text_of = final_id
            self._speaks(final_id)
        if self._speaker == message_id:
            self._speaker = final_id
        elif (spoken := self._waiting_of(message_id)) is not None:
            spoken.message_id = final_id

    def _waiting_of(self, message_id: str) -> _Spoken | None:
        return next((one for one in self._waiting if isinstance(one, _Spoken) and one.message_id == message_id), None)

    def _waits(self, message_id: str) -> _Spoken:
        spoken = self._waiting_of(message_id)
        if spoken is None:
            spoken = _Spoken(message_id, [])
            self._waiting.append(spoken)
        return spoken

    def _go_on(self) -> None:
        """Show what waits, up to the first message that has not ended."""
        while self._waiting and self._speaker is None:
            following = self._waiting.pop(0)
            if isinstance(following, Step):
                self._show_step(following)
                continue
            for said in following.pieces:
                self._emit_fragment(following.message_id, said)
            if not following.ended:
                self._speaker = following.message_id

    def _end_all(self) -> None:
        """The run is over: what was not heard to its end has ended."""
        for one in self._waiting:
            if isinstance(one, _Spoken):
                one.ended = True
        self._speaker = None
        self._go_on()

    def _emit_fragment(self, message_id: str, said: ChunkText) -> None:
        if said.thought:
            self._emit(Thought(said.thought))
        if said.text:
            if self._text_of != message_id:
                self._end_text()
                self._text_of = message_id
                self._speaks(message_id)
            self._text.append(said.text)
            self._emit(Delta(said.text))

    def _speaks(self, message_id: str) -> None:
        self._emit(Speaks(message_id, *self._places.get(message_id, NOWHERE)))

    def _attribution(self, message_id: str | None) -> dict[str, Any]:
        return {"message_id": message_id, "node": self._places.get(message_id or "", NOWHERE).node}

    def _end_text(self) -> None:
        if self._text:
            self._emit(TextEnds())
        self._text.clear()
        self._text_of = None

    def _step(self, step: Step) -> None:
        self._waiting.append(step)
        self._go_on()

    def _show_step(self, step: Step) -> None:
        self._emit(step)  # ends the text that was shown
        self._text.clear()
        self._text_of = None


def _structured(state: Any) -> Any:
    return state.get(STRUCTURED) if isinstance(state, dict) else None


def _as_json(value: Any) -> str:
    dump = getattr(value, "model_dump", None)
    return dumps(dump(mode="json") if callable(dump) else value).decode()
