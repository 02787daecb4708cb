"""docs/trust.md#G4: whatever a client or a model server sends, the parsers raise what they say they raise, and nothing
else."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from agentic_backend.chat.frames import parse_compatible, parse_native, session_id_of
from agentic_backend.llm.chunks import BrokenChunk, parse_chunk
from agentic_backend.llm.sse import SseParser, SseTooLarge
from backend_kit.wire import ServiceError
from tests.fuzz.budget import WITHIN_LIMIT, long, seeds

EXAMPLES = 2000 if long() else 150
ASKED = ["message", "runtime_context", "if_busy", "after_rank", "regenerate"]
KEYS = st.sampled_from(["type", "session_id", "agent_id", "exchange_id", "after_seq", "payload", *ASKED])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["ask", "cancel", "resume", "human_resume", "auth", "ping", "queue", "\x00", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=6),
    max_leaves=12,
)
FRAMES = st.text() | VALUES.map(json.dumps) | st.dictionaries(KEYS, VALUES, max_size=8).map(json.dumps)


def search(test: Callable[..., None], name: str, **strategies: st.SearchStrategy[Any]) -> None:
    """Run a property with each seed of the budget."""
    quick = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    for chosen in seeds(name):
        seed(chosen)(quick(given(**strategies)(test)))()


@WITHIN_LIMIT
@pytest.mark.parametrize("parse", [parse_native, parse_compatible])
def test_a_frame_is_read_or_refused_with_a_code(parse: Callable[[str, int], object]) -> None:
    @example(text="[" * 100_000)
    @example(text="9" * 5000)
    @example(text='{"type":"ask","message":"\\ud800"}')
    def holds(text: str) -> None:
        with suppress(ServiceError):
            parse(text, 100)
        assert len(session_id_of(text)) <= 64

    search(holds, parse.__name__, text=FRAMES)


@WITHIN_LIMIT
def test_a_stream_of_events_is_read_or_refused() -> None:
    def holds(pieces: list[bytes]) -> None:
        parser = SseParser(200)
        with suppress(SseTooLarge):
            for piece in pieces:
                for event in parser.feed(piece):
                    assert len(event) <= 200
                    with suppress(BrokenChunk):
                        parse_chunk(event)

    search(holds, "events", pieces=st.lists(st.binary(max_size=60) | FRAMES.map(_as_event), max_size=12))


def _as_event(text: str) -> bytes:
    return b"data: " + text.encode(errors="replace") + b"\n\n"
