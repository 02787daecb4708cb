"""What a turn stores beside its answer."""

import pytest

from agentic_backend.errors import SessionNotFound
from agentic_backend.session.store import Lease
from agentic_backend.session.stream import Ask, TextDelta
from agentic_backend.testing import MemoryStorage
from backend_kit.aio import TaskRegistry
from backend_kit.wire import loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended
from tests.support.patience import PATIENCE_S


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


class Deleted:
    """The leases of a service of which another instance has deleted the session."""

    async def acquire(self, session_id: str, user_id: str) -> Lease:  # noqa: ARG002 - of the port
        raise SessionNotFound


async def test_a_session_that_was_deleted_elsewhere_is_remembered_no_longer(tasks: TaskRegistry) -> None:
    """A door opens it anew for the next request of its client."""
    registry = EchoProcess(MemoryStorage(SESSION), tasks, leases=Deleted()).registry
    registry.update(SESSION)
    assert registry.session_of(SESSION.id, SESSION.user_id) == SESSION
    turn = registry.submit(Ask(SESSION.id, "Echo", "hello", "e1", SESSION.user_id, 0.0))
    assert (await ended(turn)).code is SessionNotFound.code
    assert await registry.drain(PATIENCE_S) == 0
    assert registry.session_of(SESSION.id, SESSION.user_id) is None
