"""The runs of one thread as each would stream alone, one after the other: `threads.join_stream` of LangGraph's SDK."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agentic_backend.session.stream import Awaiting, Cancelled, Failed, Payload, TextDelta, Turn, TurnEvent, Whole
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.langgraph.errors import Faulty
from agentic_backend.surfaces.langgraph.messages import note_in
from agentic_backend.surfaces.langgraph.people import interrupts
from agentic_backend.surfaces.langgraph.stream import Snapshot, with_beside
from agentic_backend.surfaces.langgraph.thread_events import (
    EventsWanted,
    ExchangeProgress,
    LoadBefore,
    Numbered,
    Saying,
    ThreadWriter,
)
from backend_kit.wire import dumps

JOIN_MODES: Final = ("run_modes", "lifecycle", "state_update")
_DONE: Final = b"run_done"
_NAMES: Final = {"values": b"values", "updates": b"updates", "messages-tuple": b"messages", "custom": b"custom"}
_BY_MODE: Final = {"lifecycle": {b"metadata", _DONE}, "state_update": {b"state_update"}}


def read_join_modes(said: Sequence[str]) -> frozenset[str]:
    """The modes of a query; none: those of the runs. Raises Faulty."""
    modes = [mode for mode in said if mode] or ["run_modes"]
    for mode in modes:
        if mode not in JOIN_MODES:
            raise Faulty(f"A stream mode of a thread is one of {', '.join(JOIN_MODES)}.", "stream_mode")
    return frozenset(modes)


class JoinWriter(ThreadWriter):
    """Writes the runs of a thread, each in the stream modes that it was started with, under the thread's numbers."""

    def __init__(
        self,
        thread_id: str,
        modes: frozenset[str],
        load_before: LoadBefore,
        since: int = 0,
        *,
        is_graph: Callable[[str], bool] = lambda _agent_id: False,
    ) -> None:
        super().__init__(thread_id, EventsWanted(frozenset()), load_before, since, is_graph=is_graph)
        self._modes = modes
        self._run_id = ""
        self._wished: set[bytes] = set()

    def _parts(self, exchange: ExchangeProgress, event: TurnEvent) -> list[Saying]:
        payload, parts = event.payload, list[Saying]()
        begins = isinstance(payload, Whole) and payload.message.role == "user"
        if isinstance(payload, Whole) and begins:
            parts.append((b"metadata", self._opened(exchange.turn, note_in(payload.message.metadata))))
            if payload.message.channel == "observation":
                return parts
        for one in exchange.translator.take(event):
            if one.mode not in _NAMES or (one.mode == "values" and event.terminal):
                continue
            parts.append((one.name, one.data.removesuffix(b"\n\n") if isinstance(one.data, bytes) else one.data))
        return parts

    def _opened(self, turn: Turn, note: Mapping[str, Any]) -> bytes:
        self._run_id = note.get("run_id", turn.ask.exchange_id)
        modes = note.get("modes", ("values",)) if "run_modes" in self._modes else ()
        self._wished = {_NAMES[mode] for mode in modes if mode in _NAMES}
        return dumps({"run_id": self._run_id, "attempt": 1})

    def _last_parts(self, exchange: ExchangeProgress) -> list[Saying]:
        updates = [one.data for one in exchange.translator.close() if isinstance(one.data, bytes)]
        return [(b"updates", data.removesuffix(b"\n\n")) for data in updates]

    def _end_parts(self, exchange: ExchangeProgress, end: Payload | None, _last: int | None) -> list[Saying]:
        asked = interrupts(end.payload) if isinstance(end, Awaiting) else []
        beside = b',"__interrupt__":%b' % dumps(asked) if asked else b""
        state = exchange.translator.state
        state = with_beside(state.strip(), beside) if isinstance(state, bytes) else Snapshot(state.run, beside)
        parts: list[Saying] = [(b"state_update", state), (b"values", state)]
        if isinstance(end, Failed):
            parts.append((b"error", dumps({"error": end.code.value, "message": end.text})))
        return [*parts, (_DONE, _done(self._run_id, end))]

    def _unnumbered(self, turn: Turn, end: Payload) -> list[Numbered]:
        (one,) = super()._unnumbered(turn, end)
        return [one._replace(method=_DONE, data=_done(turn.ask.exchange_id, end))]

    def _wants(self, event: Numbered) -> bool:
        if "run_modes" in self._modes and event.method in (b"metadata", b"error", _DONE):
            return True
        if event.method in self._wished:
            return True
        return any(event.method in _BY_MODE[mode] for mode in self._modes if mode in _BY_MODE)

    def _more(self, _exchange: ExchangeProgress, _seq: int, _delta: TextDelta) -> bytes | None:
        return None

    def _frame(self, one: Numbered, data: bytes) -> bytes:
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (one.seq, one.method, data)


def _done(run_id: str, end: Payload | None) -> bytes:
    status = "success" if end is None or isinstance(end, Ended | Awaiting) else "error"
    return dumps({"run_id": run_id, "status": "interrupted" if isinstance(end, Cancelled) else status})
