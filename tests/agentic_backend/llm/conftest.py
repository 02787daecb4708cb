import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from agentic_backend.llm import CallStatus, ModelPool, TokenUse
from tests.support.clock import Clock


class Watched:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.first_chunks: list[str] = []
        self.requests: list[tuple[str, CallStatus]] = []
        self.tokens: list[tuple[str, int, int]] = []
        self.used: list[TokenUse] = []

    def llm_first_chunk(self, model: str, seconds: float) -> None:
        assert seconds > 0
        self.first_chunks.append(model)

    def llm_request(self, model: str, status: CallStatus, seconds: float) -> None:
        assert seconds > 0
        self.requests.append((model, status))

    def llm_tokens(self, model: str, use: TokenUse) -> None:
        self.tokens.append((model, use.input_tokens, use.output_tokens))
        self.used.append(use)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
async def pool(watched: Watched) -> AsyncIterator[ModelPool]:
    pool = ModelPool(observer=watched)
    yield pool
    await pool.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def clocked_pool(clock: Clock) -> AsyncIterator[ModelPool]:
    """Models whose retries and circuit breakers go by the test's clock."""
    pool = ModelPool(clock=clock, sleep=clock.sleep)
    yield pool
    await pool.aclose()


@pytest.fixture
def dead_end() -> Iterator[str]:
    """An address whose queue of connections is full, so that nobody answers a further one."""
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
