"""What a turn stores beside its answer."""

import pytest

from agentic_backend.session.stream import TextDelta
from agentic_backend.testing import MemoryStorage
from backend_kit.aio import TaskRegistry
from backend_kit.wire import loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended


@pytest.mark.parametrize(
    ("question", "deltas"), [("hello", 1), ("hello in parts", 3), ("fail late", 1), ("answer oddly", 1), ("fail", None)]
)
async def test_an_answer_says_in_how_many_deltas_its_text_went_out(
    tasks: TaskRegistry, question: str, deltas: int | None
) -> None:
    storage = MemoryStorage(SESSION)
    turn = EchoProcess(storage, tasks).ask("e1", question)
    await ended(turn)
    extras = loads(storage.history()[-1])["metadata"]["extras"]
    assert extras.get("deltas") == deltas
    assert sum(isinstance(event.payload, TextDelta) for event in turn.events) == (deltas or 0)
