"""A model of a provider's that does what the test says, and the same under guard."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import PrivateAttr

from agentic_backend.llm import CallDeadlines, Endpoint
from agentic_backend.llm.guard import Guard
from agentic_backend.llm.providers import GuardedChatModel
from backend_kit.aio.retry import Retries
from tests.agentic_backend.llm.conftest import Watched, clock, watched
from tests.support.clock import Clock

__all__ = ["clock", "watched"]

Piece = AIMessageChunk | Exception | asyncio.Event | Callable[[], None]
"""What an attempt does next: hand out a chunk, fail, wait, or call."""


def text(said: str, **more: Any) -> AIMessageChunk:
    """A piece of the answer."""
    return AIMessageChunk(content=said, **more)


def thought(said: str) -> AIMessageChunk:
    """A piece of reasoning, as LangChain has it in its own blocks."""
    return AIMessageChunk(content=[{"type": "reasoning", "reasoning": said}])


def end(reason: str = "stop", tokens: tuple[int, int] | None = (10, 4)) -> AIMessageChunk:
    """The last chunk."""
    usage = None
    if tokens is not None:
        usage = {"input_tokens": tokens[0], "output_tokens": tokens[1], "total_tokens": sum(tokens)}
    return AIMessageChunk(content="", response_metadata={"finish_reason": reason}, usage_metadata=usage)


class Scripted(BaseChatModel):
    """Does one script for each attempt. `asked` are the arguments of each."""

    max_words: int | None = None
    _scripts: list[tuple[Piece, ...]] = PrivateAttr()
    _asked: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _open: list[int] = PrivateAttr(default_factory=lambda: [0])
    waiting: asyncio.Event = asyncio.Event()

    def __init__(self, *scripts: tuple[Piece, ...]) -> None:
        super().__init__(waiting=asyncio.Event())
        self._scripts = list(scripts)

    @property
    def asked(self) -> list[dict[str, Any]]:
        return self._asked

    @property
    def open(self) -> int:
        """Streams that are not closed."""
        return self._open[0]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *_args: Any, **_kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self._asked.append({"messages": messages, "stop": stop, "max_words": self.max_words, **kwargs})
        self._open[0] += 1
        try:
            for piece in self._scripts.pop(0):
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, asyncio.Event):
                    self.waiting.set()
                    await piece.wait()
                elif callable(piece):
                    piece()
                else:
                    yield ChatGenerationChunk(message=piece.model_copy())
        finally:
            self._open[0] -= 1

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        """As a provider with names of its own does it."""
        return self.bind(instruments=[tool["function"]["name"] for tool in tools], **kwargs)


Guarded = Callable[..., GuardedChatModel]


@pytest.fixture
def guarded(clock: Clock, watched: Watched) -> Guarded:
    """Puts a model under guard, by the test's clock, with bounds of the test's."""

    def put(inner: BaseChatModel, *, deadlines: dict[str, float] | None = None, **bounds: Any) -> GuardedChatModel:
        endpoint = Endpoint(
            base_url="",
            model="m",
            deadlines=CallDeadlines(
                **{"first_token_s": 600, "inter_token_s": 600, "answer_s": 600, **(deadlines or {})}
            ),
            **{"retries": Retries(max_retries=0), **bounds},
        )

        def look() -> float:
            clock.now += 1e-6  # so that everything lasts
            return clock.now

        guard = Guard(endpoint, watched, clock=look, sleep=clock.sleep)
        return GuardedChatModel(inner=inner, guard=guard, ends_with_reason=True, limit_field="max_words", cache=False)

    return put
