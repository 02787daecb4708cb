"""What the agentic service takes in memory for answers and uploads of any size; figure, bound and verdict.

    make bench-memory           this, then `tests.bench.memory`

Hypothesis: memory follows bounds and not requests: 20 exports of a conversation of 178 MB take 50 MiB at most, whether
their clients read fast or slowly, as do six readers of histories that hardly read; 60 attachments of 20 MB for no
session leave nothing on the disk. Control: the same process before each.
Command: `python -m tests.bench.bounded` (`--short` for a conversation of a tenth). RSS and files are read every 20 ms.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import psycopg

from tests.bench.bench import Verdicts
from tests.bench.deployment import BASE, Deployment, Server, deployed, rss_mb

GROWTH_MIB: Final = 50.0
ROWS: Final = 3_000
ROW_BYTES: Final = 59_000
HISTORY_ROWS: Final = 1_000
_MB: Final = 1_000_000
_SLOW_FOR_S: Final = 8.0
_LOOKS_EVERY_S: Final = 0.02

# Random text: what compresses well would be smaller on the disk than on the wire.
_ROW = """
INSERT INTO session_history (session_id, user_id, rank, "timestamp", role, channel, exchange_id, parts_json,
    metadata_json)
SELECT %(session)s, 'admin', n, now(), 'tool', 'tool_result', 'x' || n / 4, jsonb_build_array(jsonb_build_object(
    'type', 'tool_result', 'call_id', 'c', 'content',
    (SELECT string_agg(md5(n::text || m::text), '') FROM generate_series(1, %(bytes)s / 32) AS m))), '{}'
FROM generate_series(0, %(rows)s - 1) AS n
"""


class Watched:
    """The most that a process held, and the most temporary bytes, while the block ran."""

    def __init__(self, server: Server, uploads: Path) -> None:
        self._pid = server.process.pid
        self._uploads = uploads
        self.before_mib = rss_mb(self._pid)
        self.most_mib = self.before_mib
        self.most_bytes = 0

    async def watch(self) -> None:
        """Look, until cancelled."""
        while True:
            self.most_mib = max(self.most_mib, rss_mb(self._pid))
            self.most_bytes = max(self.most_bytes, await asyncio.to_thread(self._temporary))
            await asyncio.sleep(_LOOKS_EVERY_S)

    def _temporary(self) -> int:
        found = 0
        for one in Path(f"/proc/{self._pid}/fd").iterdir():
            try:
                if str(one.readlink()).startswith(str(self._uploads)):
                    found += one.stat().st_size
            except OSError:
                continue  # closed meanwhile
        return found


async def watched(server: Server, uploads: Path, work: Awaitable[None]) -> Watched:
    """What was held while `work` ran."""
    found = Watched(server, uploads)
    watching = asyncio.ensure_future(found.watch())
    try:
        await work
    finally:
        watching.cancel()
    return found


async def new_session(http: aiohttp.ClientSession) -> str:
    """A session of the one user."""
    async with http.post(f"{BASE}/chatbot/session", json={}) as made:
        return str((await made.json())["id"])


async def conversation(http: aiohttp.ClientSession, server: Server, rows: int) -> str:
    """A session of so many large messages."""
    session_id = await new_session(http)
    values = {"session": session_id, "rows": rows, "bytes": ROW_BYTES}
    async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as connection:
        await connection.execute(_ROW, values)
    return session_id


async def read_all(http: aiohttp.ClientSession, path: str, least: int) -> None:
    """Read an answer to its end, of at least so many bytes."""
    read = 0
    async with http.get(path) as answer:
        async for piece in answer.content.iter_any():
            read += len(piece)
    if read < least:
        raise RuntimeError(f"{path}: {read} bytes of {least}")


async def hardly_read(http: aiohttp.ClientSession, path: str) -> None:
    """Ask, and read a little now and then; the service may end it."""
    try:
        async with http.get(path) as answer:
            until = time.monotonic() + _SLOW_FOR_S
            while time.monotonic() < until:
                await answer.content.readany()
                await asyncio.sleep(1.0)
    except aiohttp.ClientError:
        pass


async def many(count: int, one: Callable[[], Awaitable[None]]) -> None:
    """So many at once."""
    await asyncio.gather(*(one() for _ in range(count)))


async def attach_to_none(http: aiohttp.ClientSession) -> None:
    """20 MB for a session that does not exist, which is refused."""
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("session_id", "AAAAAAAAAAA")
    form.add_field("file", bytes(20 * _MB), filename="a.md")
    try:
        async with http.post(f"{BASE}/chatbot/upload", data=form) as answer:
            if answer.status != 403:
                raise RuntimeError(f"an attachment for no session: {answer.status}")
    except aiohttp.ClientConnectionError:
        pass  # cut while it was sent


async def cases(server: Server, uploads: Path, rows: int, verdicts: Verdicts) -> None:
    """All of them, one after the other on the same process."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{server.target.port}", timeout=timeout, connector=connector, read_bufsize=4096
    ) as http:
        long, shorter = [await conversation(http, server, count) for count in (rows, min(rows, HISTORY_ROWS))]
        export = f"{BASE}/chatbot/session/{long}/export?format=json"
        history = f"{BASE}/chatbot/session/{shorter}/history"
        least = rows * ROW_BYTES * 9 // 10
        await read_all(http, history, 0)  # warm
        for what, work in (
            ("20 exports, read at once", many(20, partial(read_all, http, export, least))),
            ("20 exports, hardly read", many(20, partial(hardly_read, http, export))),
            ("6 histories, hardly read", many(6, partial(hardly_read, http, history))),
            ("60 attachments for no session", many(60, partial(attach_to_none, http))),
        ):
            found = await watched(server, uploads, work)
            verdicts.hold(what, found.most_mib - found.before_mib, GROWTH_MIB, "MiB more")
        verdicts.hold("temporary files meanwhile", found.most_bytes / _MB, 0.0, "MB")


def started(deployment: Deployment, uploads: Path) -> Server:
    """The service by its bench configuration, with a directory for uploads."""

    def change(config: dict[str, Any]) -> None:
        config["ai"]["attachments_dir"] = str(uploads)
        config["persistence"]["spool_dir"] = str(deployment.work / "spool")

    return deployment.service("bounded", "mock", change=change)


def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bounded")
    parser.add_argument("--short", action="store_true", help="a conversation of 18 MB")
    options = parser.parse_args()
    verdicts = Verdicts()
    with deployed() as deployment:
        uploads = deployment.work / "uploads"
        server = started(deployment, uploads)
        verdicts.tell("RSS at the start", rss_mb(server.process.pid), "MiB")
        asyncio.run(cases(server, uploads, ROWS // 10 if options.short else ROWS, verdicts))
        verdicts.tell("RSS at the end", rss_mb(server.process.pid), "MiB")
    return int(verdicts.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
