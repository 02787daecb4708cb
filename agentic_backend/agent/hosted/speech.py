"""What the models and nodes of a graph say, as the events of a turn: one text at a time, steps where they belong."""

from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from agentic_backend.agent.hosted.messages import tool_calls_of, tool_result_of
from agentic_backend.events import Delta, Emit, Step, TextEnds, Thought
from agentic_backend.llm.providers.reading import Said, said_in
from backend_kit.wire import dumps

STRUCTURED: Final = "structured_response"
"""The key under which LangChain's agents leave an answer that is no text."""


class Speech:
    """Emits the events of one run.

    An exchange shows one text at a time. Of models that speak at once the first is heard, the others when it has ended;
    a text that another one follows was not the answer. A message is shown once, however often the graph's nodes hand it
    on: as it is streamed, or where nobody streamed it, when its node returns it.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._seen: set[str] = set()
        self._shown: str | None = None
        self._text: list[str] = []
        self._speaking = False
        self._held: dict[str, list[str]] = {}
        self._begun: set[str] = set()

    @property
    def text(self) -> str:
        """The text that is shown now."""
        return "".join(self._text)

    def hear(self, message_id: str, said: Said) -> None:
        """Take a fragment of a message that a model is streaming."""
        self._begun.add(message_id)
        alone = self._shown in (None, message_id) or not self._speaking
        if said.thought and alone:
            self._emit(Thought(said.thought))
        if not said.text:
            return
        if not alone:
            self._held.setdefault(message_id, []).append(said.text)
            return
        if self._shown != message_id:
            self._begin(message_id)
        self._say(said.text)

    def ended(self, message_id: str, final_id: str | None = None) -> None:
        """The model has ended its message, which has another id from now on where `final_id` says so. Of those that
        spoke meanwhile the next is heard."""
        if final_id is not None and final_id != message_id:
            self._rename(message_id, final_id)
            message_id = final_id
        if self._shown != message_id:
            return
        self._speaking = False
        while self._held:
            held_id, texts = next(iter(self._held.items()))
            del self._held[held_id]
            self._begin(held_id)
            self._say("".join(texts))
            if held_id not in self._seen:
                return  # it may still speak
            self._speaking = False

    def know(self, message: BaseMessage) -> None:
        """A node is given this message, so it is not what the node says."""
        if message.id is not None:
            self._seen.add(message.id)

    def take(self, message: BaseMessage) -> None:
        """Take a message that a node returned. Only what nobody has shown yet is emitted."""
        message_id = message.id
        if message_id is not None:
            if message_id in self._seen:
                return
            self._seen.add(message_id)
        if isinstance(message, ToolMessage):
            self._step(tool_result_of(message))
        elif isinstance(message, AIMessage):
            self._take_answer(message)

    def answer(self, messages: Sequence[BaseMessage], state: Any) -> str:
        """The answer of a run whose state ended with these new messages: shown, where it was not, and returned."""
        last = next((one for one in reversed(messages) if isinstance(one, AIMessage | ToolMessage)), None)
        wanted = last.text if last is not None else self.text
        if not wanted and isinstance(state, dict) and state.get(STRUCTURED) is not None:
            wanted = _as_json(state[STRUCTURED])
        if wanted and wanted != self.text:
            self._end()
            self._say(wanted)
        return wanted

    def _rename(self, message_id: str, final_id: str) -> None:
        """Some providers name a message only in its last fragments."""
        if message_id in self._begun:
            self._begun.add(final_id)
        if self._shown == message_id:
            self._shown = final_id
        if (held := self._held.pop(message_id, None)) is not None:
            self._held[final_id] = held

    def _take_answer(self, message: AIMessage) -> None:
        said = said_in(message)
        message_id = message.id or ""
        held = self._held.pop(message_id, None)
        if message_id not in self._begun or held is not None:
            if said.text and said.text == self.text:
                self._shown = message_id  # a node made a message of its own of what was streamed
            elif said.text:
                self._begin(message_id)
                self._say(said.text)
            self._speaking = False
        for step in tool_calls_of(message):
            self._step(step)

    def _begin(self, message_id: str) -> None:
        self._end()
        self._shown = message_id
        self._speaking = True

    def _say(self, text: str) -> None:
        self._text.append(text)
        self._emit(Delta(text))

    def _end(self) -> None:
        if self._text:
            self._emit(TextEnds())
        self._forget()

    def _step(self, step: Step) -> None:
        self._emit(step)  # ends the text that was shown
        self._forget()

    def _forget(self) -> None:
        self._text.clear()
        self._shown = None
        self._speaking = False


def _as_json(value: Any) -> str:
    dump = getattr(value, "model_dump", None)
    return dumps(dump(mode="json") if callable(dump) else value).decode()
