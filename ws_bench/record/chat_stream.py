"""A streamed chat completion as state over its chunks, in the shape of OpenAI's API."""

from ws_bench.errors import TurnBroken, refusal_text
from ws_bench.record.dialects import DONE, Event, Timeline


class ChatTurn(Timeline):
    """chat.completion.chunk…, [DONE]. A token is content; reasoning is none. A failure is an event before [DONE]."""

    def __init__(self) -> None:
        super().__init__()
        self._said: list[str] = []
        self._finished = False
        self._failure: TurnBroken | None = None

    def feed(self, event: Event, now: float) -> bool:
        """See `TurnReader.feed`. Raises `TurnBroken`."""
        self.note_event(now)
        if event == DONE:
            return self._end()
        if "error" in event:
            error = event["error"]
            code = error.get("code") if isinstance(error, dict) else None
            self._failure = TurnBroken(f"server_error_event({code or 'unknown'})", refusal_text(event), usable=True)
            return False
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise TurnBroken("protocol_unknown_event", str(event.get("object")))
        for choice in choices:
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if not isinstance(delta, dict):
                raise TurnBroken("protocol_unknown_event", "a choice without a delta")
            if delta.get("content"):
                self.note_token(now)
                self._said.append(str(delta["content"]))
            self._finished = self._finished or choice.get("finish_reason") is not None
        return False

    def _end(self) -> bool:
        self.answer = "".join(self._said)
        if self._failure is not None:
            raise self._failure
        if not self._finished:
            raise TurnBroken("protocol_order", "[DONE] before a finish_reason", usable=True)
        if not self.answer:
            raise TurnBroken("protocol_empty_final", "an answer without text", usable=True)
        return True
