"""The obvious stack, nothing hampered: FastAPI, ChatOpenAI as it comes, LangGraph's own streaming, the ORM in a task.

One shared client with keep-alive, one graph compiled at the start, uvicorn's defaults, log level warning. The graph is
one model node: a prebuilt agent without tools costs more (docs/libraries.md#langgraphs-streaming), so this favours it.
"""

import asyncio
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, SecretStr
from sqlalchemy import JSON, DateTime
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.bench.comparators.options import READY_PATH, SOCKET_PATH, Options, parse_options

USER = "admin"


class Base(DeclarativeBase):
    """The ORM's registry."""


class SessionRow(Base):
    """A session."""

    __tablename__ = "session"
    session_id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str]
    agent_id: Mapped[str]
    session_data: Mapped[dict[str, Any]] = mapped_column(JSON)
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class HistoryRow(Base):
    """A message."""

    __tablename__ = "session_history"
    session_id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    timestamp: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    role: Mapped[str]
    channel: Mapped[str]
    exchange_id: Mapped[str]
    parts_json: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    metadata_json: Mapped[dict[str, Any]] = mapped_column(JSONB)


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"] = "text"
    text: str


class Metadata(BaseModel):
    """What is known of a message."""

    model: str | None = None
    finish_reason: str | None = None


class ChatMessage(BaseModel):
    """A message, or a fragment of one."""

    session_id: str
    exchange_id: str
    rank: int
    timestamp: datetime
    role: Literal["user", "assistant"]
    channel: Literal["final"] = "final"
    parts: list[TextPart]
    metadata: Metadata = Metadata()


class StreamEvent(BaseModel):
    """A fragment of the answer."""

    type: Literal["stream"] = "stream"
    message: ChatMessage


class FinalEvent(BaseModel):
    """The end of a turn."""

    type: Literal["final"] = "final"
    messages: list[ChatMessage]


class Ask(BaseModel):
    """A question."""

    session_id: str
    agent_id: str
    message: str


class Naive:
    """The application and what it shares between sockets."""

    def __init__(self, options: Options) -> None:
        self._model = ChatOpenAI(
            model=options.model, base_url=options.model_url, api_key=SecretStr("none"), stream_usage=True
        )
        graph = StateGraph(MessagesState)
        graph.add_node("model", self._call_model)
        graph.add_edge(START, "model")
        self._graph = graph.compile()
        self._sessions = async_sessionmaker(create_async_engine(options.sqlalchemy_url))
        self._ranks: defaultdict[str, int] = defaultdict(int)
        self.app = FastAPI()
        self.app.add_api_route(READY_PATH, self.ready)
        self.app.add_api_websocket_route(SOCKET_PATH, self.chat)

    async def ready(self) -> dict[str, str]:
        """Say that we are up."""
        return {"status": "ready"}

    async def chat(self, websocket: WebSocket) -> None:
        """Answer the asks of one socket."""
        await websocket.accept()
        async with asyncio.TaskGroup() as stores:
            try:
                while True:
                    ask = Ask.model_validate_json(await websocket.receive_text())
                    messages = await self._turn(websocket, ask)
                    stores.create_task(self._store(ask, messages))
            except WebSocketDisconnect:
                return

    async def _call_model(self, state: MessagesState) -> dict[str, Any]:
        return {"messages": [await self._model.ainvoke(state["messages"])]}

    async def _turn(self, websocket: WebSocket, ask: Ask) -> list[ChatMessage]:
        exchange_id = str(uuid.uuid4())
        rank = self._ranks[ask.session_id]
        self._ranks[ask.session_id] += 2

        def message(role: Literal["user", "assistant"], text: str) -> ChatMessage:
            return ChatMessage(
                session_id=ask.session_id,
                exchange_id=exchange_id,
                rank=rank + (role == "assistant"),
                timestamp=datetime.now(UTC),
                role=role,
                parts=[TextPart(text=text)],
            )

        question = message("user", ask.message)
        await websocket.send_text(StreamEvent(message=question).model_dump_json())
        text = ""
        state = MessagesState(messages=[HumanMessage(ask.message)])
        async for mode, value in self._graph.astream(state, stream_mode=["messages", "updates"]):
            if mode == "messages":
                chunk: Any = value[0]  # (message chunk, metadata)
                if chunk.content:
                    event = StreamEvent(message=message("assistant", chunk.content))
                    await websocket.send_text(event.model_dump_json())
            elif isinstance(value, dict):
                text = value["model"]["messages"][-1].content
        messages = [question, message("assistant", text)]
        await websocket.send_text(FinalEvent(messages=messages).model_dump_json())
        return messages

    async def _store(self, ask: Ask, messages: list[ChatMessage]) -> None:
        async with self._sessions() as session, session.begin():
            row = SessionRow(
                session_id=ask.session_id,
                user_id=USER,
                agent_id=ask.agent_id,
                session_data={"title": "Bench", "next_rank": messages[-1].rank + 1},
                updated_at=datetime.now(UTC),
            )
            await session.merge(row)
            for message in messages:
                await session.merge(
                    HistoryRow(
                        session_id=ask.session_id,
                        user_id=USER,
                        rank=message.rank,
                        timestamp=message.timestamp,
                        role=message.role,
                        channel=message.channel,
                        exchange_id=message.exchange_id,
                        parts_json=[part.model_dump() for part in message.parts],
                        metadata_json=message.metadata.model_dump(exclude_none=True),
                    )
                )


if __name__ == "__main__":
    chosen = parse_options(__doc__.splitlines()[0])
    uvicorn.run(Naive(chosen).app, port=chosen.port, log_level="warning")
