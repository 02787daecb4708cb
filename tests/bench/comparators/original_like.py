"""The turn of the system that Turnwise succeeds: no token streaming, three frames, the transaction before `final`.

Non-streamed ChatOpenAI with one shared client, one compiled graph with its MemorySaver per session, two upserts built
for each turn, committed before `final`. Uvicorn's defaults, log level warning. Its metrics and logs are left out.
"""

import uuid
from datetime import UTC, datetime
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import SecretStr
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import create_async_engine

from tests.bench.comparators.naive import (
    USER,
    Ask,
    ChatMessage,
    FinalEvent,
    HistoryRow,
    SessionRow,
    StreamEvent,
    TextPart,
)
from tests.bench.comparators.options import READY_PATH, SOCKET_PATH, Options, parse_options

Graph = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]


class OriginalLike:
    """The application and what it shares between sockets."""

    def __init__(self, options: Options) -> None:
        self._model = ChatOpenAI(model=options.model, base_url=options.model_url, api_key=SecretStr("none"))
        self._engine = create_async_engine(options.sqlalchemy_url, pool_size=20, max_overflow=10)
        self._graphs: dict[str, Graph] = {}
        self._ranks: dict[str, int] = {}
        self.app = FastAPI()
        self.app.add_api_route(READY_PATH, self.ready)
        self.app.add_api_websocket_route(SOCKET_PATH, self.chat)

    async def ready(self) -> dict[str, str]:
        """Say that we are up."""
        return {"status": "ready"}

    async def chat(self, websocket: WebSocket) -> None:
        """Answer the asks of one socket."""
        await websocket.accept()
        try:
            while True:
                await self._turn(websocket, Ask.model_validate_json(await websocket.receive_text()))
        except WebSocketDisconnect:
            return

    def _graph_of(self, session_id: str) -> Graph:
        """The session's graph, whose MemorySaver is all that it remembers."""
        graph = self._graphs.get(session_id)
        if graph is None:
            builder = StateGraph(MessagesState)
            builder.add_node("model", self._call_model)
            builder.add_edge(START, "model")
            graph = self._graphs[session_id] = builder.compile(checkpointer=MemorySaver())
        return graph

    async def _call_model(self, state: MessagesState) -> dict[str, Any]:
        return {"messages": [await self._model.ainvoke(state["messages"])]}

    async def _turn(self, websocket: WebSocket, ask: Ask) -> None:
        exchange_id = str(uuid.uuid4())
        rank = self._ranks.get(ask.session_id, 0)
        self._ranks[ask.session_id] = rank + 2

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
        config: RunnableConfig = {"configurable": {"thread_id": ask.session_id}}
        state = MessagesState(messages=[HumanMessage(ask.message)])
        async for update in self._graph_of(ask.session_id).astream(state, config, stream_mode="updates"):
            text = update["model"]["messages"][-1].content
        answer = message("assistant", text)
        await websocket.send_text(StreamEvent(message=answer).model_dump_json())
        await self._store(ask, [question, answer])
        await websocket.send_text(FinalEvent(messages=[question, answer]).model_dump_json())

    async def _store(self, ask: Ask, messages: list[ChatMessage]) -> None:
        session = insert(SessionRow).values(
            session_id=ask.session_id,
            user_id=USER,
            agent_id=ask.agent_id,
            session_data={"title": "Bench", "next_rank": messages[-1].rank + 1},
            updated_at=datetime.now(UTC),
        )
        session = session.on_conflict_do_update(
            index_elements=["session_id"],
            set_={"session_data": session.excluded.session_data, "updated_at": session.excluded.updated_at},
        )
        history = insert(HistoryRow).values(
            [
                {
                    "session_id": ask.session_id,
                    "user_id": USER,
                    "rank": message.rank,
                    "timestamp": message.timestamp,
                    "role": message.role,
                    "channel": message.channel,
                    "exchange_id": message.exchange_id,
                    "parts_json": [part.model_dump() for part in message.parts],
                    "metadata_json": message.metadata.model_dump(exclude_none=True),
                }
                for message in messages
            ]
        )
        history = history.on_conflict_do_update(
            index_elements=["session_id", "user_id", "rank"],
            set_={"parts_json": history.excluded.parts_json, "metadata_json": history.excluded.metadata_json},
        )
        async with self._engine.begin() as connection:
            await connection.execute(session)
            await connection.execute(history)


if __name__ == "__main__":
    chosen = parse_options(__doc__.splitlines()[0])
    uvicorn.run(OriginalLike(chosen).app, port=chosen.port, log_level="warning")
