"""One user's flood, as a program: `python -m tests.chaos.flooder FLOOD`, a `Flood` as JSON.

It asks as fast as it is answered, over so many connections, until it is ended; then it prints the answers.
A process of its own, at the lowest priority: what clients cost the machine is not what is looked at.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from backend_kit.wire import dumps, loads

ANEW = "{uuid}"
"""In a path, a body or a frame: another random id each time."""
_NICE = 19
_PAUSE_S = 0.01
"""After a connection that was refused: without it the flooder only measures how fast its own machine connects."""


@dataclass(frozen=True, slots=True)
class Flood:
    """What is sent, again and again, over so many connections: a request, or over a socket a frame (`method` is WS;
    without a body, handshakes). A body that is a number is a file of so many bytes.
    """

    name: str
    method: str
    url: str
    connections: int
    token: str = ""
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """As the program reads it."""
        return dumps(asdict(self)).decode()


async def _requests(flood: Flood, seen: Counter[str]) -> None:
    headers = {**flood.headers, **({"Authorization": f"Bearer {flood.token}"} if flood.token else {})}
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=1)) as http:
        while True:
            try:
                url = flood.url.replace(ANEW, str(uuid4()))
                async with http.request(flood.method, url, headers=headers, **_body(flood)) as response:
                    seen[str(response.status)] += 1
                    async for _ in response.content.iter_any():
                        pass
            except (aiohttp.ClientError, TimeoutError) as error:
                seen[type(error).__name__] += 1
                await asyncio.sleep(_PAUSE_S)


def _body(flood: Flood) -> dict[str, Any]:
    if not flood.body:
        return {}
    if flood.body.isdigit():
        form = aiohttp.FormData({"session_id": str(uuid4())})
        form.add_field("files", b"x" * int(flood.body), filename="a.txt", content_type="text/plain")
        return {"data": form}
    return {"data": flood.body.replace(ANEW, str(uuid4())).encode()}


async def _frames(flood: Flood, seen: Counter[str]) -> None:
    while True:
        try:
            async with connect(
                flood.url,
                subprotocols=[Subprotocol("turnwise.v1")],
                additional_headers={"Authorization": f"Bearer {flood.token}"},
                compression=None,
                ping_interval=None,
            ) as socket:
                seen["opened"] += 1
                while flood.body:
                    await socket.send(flood.body.replace(ANEW, str(uuid4())))
                    seen[str(loads(await socket.recv()).get("type"))] += 1
        except (OSError, WebSocketException, TimeoutError) as error:
            seen[type(error).__name__] += 1
            await asyncio.sleep(_PAUSE_S)


async def main() -> None:
    """Flood until SIGTERM."""
    flood = Flood(**loads(sys.argv[1]))
    seen: Counter[str] = Counter()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    work = _frames if flood.method == "WS" else _requests
    tasks = [asyncio.create_task(work(flood, seen)) for _ in range(flood.connections)]
    await ended.wait()
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    print(dumps(dict(seen)).decode(), flush=True)


if __name__ == "__main__":
    os.nice(_NICE)
    asyncio.run(main())
