"""The graphs that the recorded server hosted, of the same nodes: one that answers, one that asks a person, one that
fails.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

WORDS: Final = ("Hello", " there", " friend")
SLOW: Final = {"long": 400, "slow": 30}
"""So many words, one in 50 ms, of the answers to these messages: one that only a stop ends, and one to come back to."""
_GAP_S: Final = 0.05
QUESTION: Final = {"title": "Publish?", "question": "ok?"}


class WordModel(BaseChatModel):
    """Says the same words to everybody, more of them slowly where `SLOW` has the message."""

    @property
    def _llm_type(self) -> str:
        return "words"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:  # noqa: ARG002 - the base's
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(WORDS)))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(_GAP_S * SLOW.get(messages[-1].text, 0))  # as long as if it were streamed
        return self._generate(messages)

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        count = SLOW.get(messages[-1].text)
        words = [f"w{number} " for number in range(count)] if count else WORDS
        for number, word in enumerate(words):
            chunk = AIMessageChunk(word)
            if number == len(words) - 1:
                chunk.response_metadata = {"finish_reason": "stop"}
                chunk.usage_metadata = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
            yield ChatGenerationChunk(message=chunk)
            await asyncio.sleep(_GAP_S if count else 0)


_MODEL: Final = WordModel()


async def answer(state: MessagesState) -> dict[str, object]:
    get_stream_writer()({"step": "model"})
    return {"messages": [await _MODEL.ainvoke(state["messages"])]}


agent = StateGraph(MessagesState).add_node("model", answer).add_edge(START, "model").compile(name="agent")


class Draft(MessagesState, total=False):
    """A conversation with what a person said of a draft."""

    verdict: str


def draft(_state: Draft) -> dict[str, object]:
    return {"messages": [AIMessage("draft")]}


def ask(_state: Draft) -> dict[str, object]:
    return {"verdict": str(interrupt(QUESTION))}


def finish(state: Draft) -> dict[str, object]:
    return {"messages": [AIMessage(f"done {state['verdict']}")]}


asker = (
    StateGraph(Draft)
    .add_node("draft", draft)
    .add_node("ask", ask)
    .add_node("finish", finish)
    .add_edge(START, "draft")
    .add_edge("draft", "ask")
    .add_edge("ask", "finish")
    .compile(name="asker")
)


def fails(_state: MessagesState) -> dict[str, object]:
    raise ValueError("bad thing")


failing = StateGraph(MessagesState).add_node("fails", fails).add_edge(START, "fails").compile(name="failing")
