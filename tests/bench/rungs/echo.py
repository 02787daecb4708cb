"""The lowest rung: our WebSocket server alone, sending the frames of a streamed turn at the model's pace.

python -m tests.bench.rungs.echo --port 9000 --tokens 50 --gap-ms 5
"""

import argparse
import asyncio
import sys
from typing import Any
from uuid import uuid4

import orjson

from backend_kit.http import listen, serve
from tests.bench.comparators.options import READY_PATH
from tests.bench.driver import NATIVE

Message = dict[str, Any]


class Echo:
    """An ASGI application whose only model is a clock."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self._tokens = tokens
        self._gap_s = gap_s

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Handle one connection, or the lifespan."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept", "subprotocol": NATIVE})
            while (message := await receive())["type"] == "websocket.receive":
                await self._turn(orjson.loads(message["text"]), send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200 if scope["path"] == READY_PATH else 404})
            await send({"type": "http.response.body"})
        else:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    async def _turn(self, ask: Message, send: Any) -> None:
        head = f'"session_id":"{ask["session_id"]}","exchange_id":"{uuid4()}"'
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(self._tokens):
            await asyncio.sleep(began + number * self._gap_s - loop.time())
            text = f'"seq":{number + 2},"rank":1,"channel":"final","text":" token"'
            await send({"type": "websocket.send", "text": f'{{"type":"delta",{head},{text}}}'})
        answer = " token" * self._tokens
        parts = f'[{{"type":"text","text":"{answer}"}}]'
        await send({"type": "websocket.send", "text": f'{{"type":"final",{head},"messages":[{{"parts":{parts}}}]}}'})


async def _nothing_to_drain() -> None:
    """An echo has no work to end."""


def main() -> int:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--gap-ms", type=float, required=True)
    options = parser.parse_args()
    app = Echo(options.tokens, options.gap_ms / 1e3)
    return serve(app, listen("127.0.0.1", options.port), drain=_nothing_to_drain)


if __name__ == "__main__":
    sys.exit(main())
