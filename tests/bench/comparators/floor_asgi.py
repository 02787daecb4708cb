"""What a turn costs with nothing in between: raw ASGI, aiohttp, orjson, one statement for many turns.

No framework, no LangChain, no LangGraph, no metrics, no limits and no deadlines: the least that still streams each
token as a frame of its own and stores every turn. Not a service, a floor.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import aiohttp
import orjson
import psycopg
import uvicorn

from tests.bench.comparators.options import READY_PATH, Options, parse_options

USER = "admin"
LINGER_S = 0.02
MAX_BATCH = 64

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]

# The last turn of a session in the batch counts: an upsert meets each row once.
WRITE = """
WITH turn AS (
    SELECT v->'session' AS s, v->'history' AS h, ord FROM jsonb_array_elements(%s) WITH ORDINALITY AS t(v, ord)
),
sessions AS (
    INSERT INTO session SELECT DISTINCT ON (x.session_id) x.*
    FROM turn CROSS JOIN LATERAL jsonb_populate_record(NULL::session, s) AS x ORDER BY x.session_id, ord DESC
    ON CONFLICT (session_id) DO UPDATE
        SET session_data = excluded.session_data, updated_at = excluded.updated_at
)
INSERT INTO session_history
SELECT x.* FROM turn CROSS JOIN LATERAL jsonb_populate_recordset(NULL::session_history, h) AS x
ON CONFLICT DO NOTHING
"""


class Floor:
    """The ASGI application; lives as long as its lifespan."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._url = f"{options.model_url}/chat/completions"
        self._http: aiohttp.ClientSession | None = None
        self._ranks: dict[str, int] = {}
        self._turns: list[bytes] = []
        self._some = asyncio.Event()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one connection, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._chat(receive, send)
        else:
            await send({"type": "http.response.start", "status": 200 if scope["path"] == READY_PATH else 404})
            await send({"type": "http.response.body"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            connector = aiohttp.TCPConnector(limit=0)
            self._http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            database = await psycopg.AsyncConnection.connect(self._options.dsn, autocommit=True)
            await stack.enter_async_context(database)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            writer = group.create_task(self._write(database))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            writer.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _chat(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await self._turn(orjson.loads(message["text"]), send)

    async def _turn(self, ask: Message, send: Send) -> None:
        session_id = ask["session_id"]
        exchange_id = str(uuid.uuid4())
        rank = self._ranks.get(session_id, 0)
        self._ranks[session_id] = rank + 2
        prefix = f'{{"type":"delta","session_id":"{session_id}","exchange_id":"{exchange_id}","rank":{rank + 1},"text":'
        pieces = []
        async for piece in self._stream(ask["message"]):
            pieces.append(piece)
            await send({"type": "websocket.send", "text": f"{prefix}{orjson.dumps(piece).decode()}}}"})
        now = datetime.now(UTC).isoformat()
        both = enumerate((("user", ask["message"]), ("assistant", "".join(pieces))))
        shared = {"session_id": session_id, "exchange_id": exchange_id, "timestamp": now, "channel": "final"}
        messages = [
            {**shared, "rank": rank + place, "role": role, "parts": [{"type": "text", "text": text}], "metadata": {}}
            for place, (role, text) in both
        ]
        await send({"type": "websocket.send", "text": orjson.dumps({"type": "final", "messages": messages}).decode()})
        self._push(ask, messages, now)

    async def _stream(self, question: str) -> AsyncIterator[str]:
        body = {"model": self._options.model, "stream": True, "messages": [{"role": "user", "content": question}]}
        assert self._http is not None
        async with self._http.post(
            self._url, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
        ) as r:
            rest = b""
            async for data in r.content.iter_any():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if event == b"data: [DONE]":
                        continue
                    for choice in orjson.loads(event[6:])["choices"]:
                        if text := choice["delta"].get("content"):
                            yield text

    def _push(self, ask: Message, messages: list[Message], now: str) -> None:
        data = {"title": "Bench", "next_rank": messages[-1]["rank"] + 1}
        session = {
            "session_id": ask["session_id"],
            "user_id": USER,
            "agent_id": ask["agent_id"],
            "session_data": data,
            "updated_at": now,
        }
        rows = [
            {**m, "user_id": USER, "parts_json": m.pop("parts"), "metadata_json": m.pop("metadata")} for m in messages
        ]
        self._turns.append(orjson.dumps({"session": session, "history": rows}))
        self._some.set()

    async def _write(self, database: "psycopg.AsyncConnection[tuple[object, ...]]") -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(LINGER_S)
            while self._turns:
                batch, self._turns = self._turns[:MAX_BATCH], self._turns[MAX_BATCH:]
                await database.execute(WRITE, [(b"[" + b",".join(batch) + b"]").decode()])
            self._some.clear()


if __name__ == "__main__":
    chosen = parse_options(__doc__.splitlines()[0])
    uvicorn.run(Floor(chosen), port=chosen.port, log_level="warning", ws="websockets-sansio")
