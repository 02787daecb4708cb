"""`ws_bench micro`: what the smallest pieces of a client cost on this machine, and of a service where one is named."""

import asyncio
import os
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import ClientSession, web
from websockets.asyncio.server import ServerConnection, serve

from backend_kit.wire import dumps
from ws_bench.cli.commands import check_one_table
from ws_bench.config.flags import RunConfig, config_of
from ws_bench.config.golang import Flags, parse_duration
from ws_bench.config.runflags import run_flags
from ws_bench.errors import BenchError, TurnBroken, UsageError
from ws_bench.load.client import ClientSocket, WebsocketsConnector
from ws_bench.load.engines import connector_of
from ws_bench.load.service import ServiceApi
from ws_bench.record.dialects import NativeTurn, ask_frame, clock, parse_event
from ws_bench.record.results import Histogram
from ws_bench.record.summary import EXIT_GATE, EXIT_OK
from ws_bench.record.timing import HEAD, Run, empty, measure, pinned, row
from ws_bench.report.report import Style, write_file

SCHEMA = "turnwise.ws_bench.micro"
SCHEMA_VERSION = 1
_EXCHANGE = "4f1f0f6d6d6a4c0f8b6c1f0e6a5d4c3b"
_AT_A_TIME = 20
_PAGE = b"x" * 4096
_PING = '{"type":"ping"}'


@dataclass(frozen=True, slots=True)
class Piece:
    """An operation to time. `bound_us` is about ten times what a core of 2024 takes; None where the machine decides."""

    name: str
    run: Run
    bound_us: float | None = None
    each: int = 1
    """Operations in a repetition."""


def micro_command(argv: list[str]) -> int:
    """Time every piece and print the table. Returns 1 where one is above its bound. Raises `BenchError`."""
    values = _flags().parse(argv)
    if values.seconds <= 0 or not Path(values.dir).is_dir():
        raise UsageError("-seconds must be above 0, and -dir a directory")
    config = config_of(values)
    if config.protocol != "ws":
        raise UsageError("micro is for -protocol ws")
    check_one_table(config)
    named = any(word.lstrip("-").partition("=")[0] == "url" for word in argv)
    over = 0
    samples_us: dict[str, list[float]] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, disk_pieces(values.dir) as disk:
        pieces = [*code_pieces(), *disk, *loop_pieces(runner)]
        with _opened(runner, config if named else None) as remote, pinned() as where:
            print(Style.of(sys.stdout)("WS BENCH MICRO", "\033[1m", "\033[36m"))
            print(f"source: this process, {where}, {values.seconds:g} s a piece; µs, the least is held to `bound`")
            print(HEAD)
            nothing = measure(empty, values.seconds, 0.0).least
            for piece in [*pieces, *remote]:
                if values.only in piece.name:
                    timings = measure(piece.run, values.seconds, nothing, piece.each)
                    samples_us[piece.name] = timings.costs
                    line, good = row(piece.name, timings, piece.bound_us)
                    over += not good
                    print(line, flush=True)
    if not samples_us:
        raise UsageError(f"-only {values.only}: no piece is called so")
    if config.outputs.json:
        content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "samples_us": samples_us}
        write_file(config.outputs.json, dumps(content) + b"\n")
    return EXIT_GATE if over else EXIT_OK


def code_pieces() -> list[Piece]:
    """Work of a client without a system call: frames, tokens, figures."""
    head = {"session_id": "s", "exchange_id": _EXCHANGE}
    delta = dumps({"type": "delta", **head, "seq": 1, "rank": 1, "channel": "final", "text": " phase"})
    final = dumps(_final(head))
    event = parse_event(delta)
    histogram = Histogram()

    def feed(times: range) -> None:
        turn = NativeTurn(_EXCHANGE)
        for number in times:
            turn.feed({**event, "seq": number + 1}, 0.0)

    return [
        Piece("clock: read", _repeated(clock), 2.0),
        Piece("frame encode: an ask", _repeated(lambda: ask_frame("session", _EXCHANGE, "Hello", "Rico", {})), 30.0),
        Piece("frame decode: a delta, turnwise.v1", _repeated(lambda: parse_event(delta)), 30.0),
        Piece("turn: a delta of turnwise.v1 is timed", feed, 30.0),
        Piece(
            "turn: a final with nine phases, decoded and joined",
            _repeated(lambda: NativeTurn(_EXCHANGE).feed(parse_event(final), 0.0)),
            500.0,
        ),
        Piece("histogram: a gap is counted", _repeated(lambda: histogram.add(12.5)), 20.0),
    ]


def _repeated(operation: Callable[[], object]) -> Run:
    def repeat(times: range) -> None:
        for _ in times:
            operation()

    return repeat


def _final(head: dict[str, Any]) -> dict[str, Any]:
    ledger = [
        {"phase": f"phase_{n}", "start_ms": float(n), "ms": 2.5, "depth": n % 3, "status": "ok"} for n in range(9)
    ]
    parts = [{"type": "text", "text": "Each turn is timed phase by phase. " * 10}]
    said = {**head, "rank": 1, "role": "assistant", "channel": "final", "parts": parts, "metadata": {}}
    return {"type": "final", **head, "seq": 2, "messages": [said], "session": {}, "ledger": ledger, "warnings": []}


@contextmanager
def disk_pieces(directory: str) -> Iterator[list[Piece]]:
    """What acknowledging by a disk costs: a page made durable, and a row committed as a spool does it."""
    with tempfile.TemporaryDirectory(prefix="ws_bench-", dir=directory) as place:
        file = os.open(Path(place) / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        rows = sqlite3.connect(Path(place) / "spool.sqlite", isolation_level=None)
        rows.execute("PRAGMA journal_mode = WAL")
        rows.execute("PRAGMA synchronous = FULL")
        rows.execute("CREATE TABLE record (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

        def append(times: range) -> None:
            for _ in times:
                os.write(file, _PAGE)
                os.fsync(file)

        def commit(times: range) -> None:
            for _ in times:
                rows.execute("INSERT INTO record (body) VALUES (?)", (_PAGE,))

        try:
            yield [
                Piece(f"disk: append 4 KiB and fsync, in {directory}", append),
                Piece("disk: commit a row of 4 KiB (SQLite, WAL, synchronous)", commit),
            ]
        finally:
            rows.close()
            os.close(file)


def loop_pieces(runner: asyncio.Runner) -> list[Piece]:
    """The event loop itself, over which everything else goes."""

    async def task() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))

    return [
        _each(runner, "loop: one round", lambda: asyncio.sleep(0)),
        _each(runner, "loop: a task begins and ends", task),
    ]


@contextmanager
def _opened(runner: asyncio.Runner, config: RunConfig | None) -> Iterator[list[Piece]]:
    """Round trips over this machine's loopback, and, of a service, over the way to it."""
    context = _round_trips(runner, config)
    pieces = runner.run(context.__aenter__())
    try:
        yield pieces
    finally:
        runner.run(context.__aexit__(None, None, None))


@asynccontextmanager
async def _round_trips(runner: asyncio.Runner, config: RunConfig | None) -> AsyncIterator[list[Piece]]:
    async def echo(connection: ServerConnection) -> None:
        async for frame in connection:
            await connection.send(frame)

    app = web.Application()
    app.add_routes([web.get("/", _answer)])
    web_runner = web.AppRunner(app, access_log=None)
    await web_runner.setup()
    await web.TCPSite(web_runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{web_runner.addresses[0][1]}/"
    async with serve(echo, "127.0.0.1", 0, compression=None) as server, ClientSession() as http:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await WebsocketsConnector(f"ws://127.0.0.1:{port}/", {}, max_size=65536).connect()

        async def get() -> None:
            async with http.get(url) as answer:
                await answer.read()

        pieces = [
            _each(runner, "websocket: echo over loopback, both ends here", lambda: _echoed(socket)),
            _each(runner, "http: GET over loopback, both ends here", get),
        ]
        try:
            if config is None:
                yield pieces
            else:
                async with ServiceApi(config) as service:
                    await service.require_alive()
                    yield [*pieces, *await _service_pieces(runner, config, service)]
        finally:
            await socket.close()
            await web_runner.cleanup()


async def _service_pieces(runner: asyncio.Runner, config: RunConfig, service: ServiceApi) -> list[Piece]:
    config = replace(config, native=True)
    try:
        socket = await connector_of(config).connect()
        await _ponged(socket)
    except TurnBroken as broken:
        raise BenchError(f"no chat socket at {config.shown_url}: {broken}") from broken
    return [
        _each(runner, "service: GET /healthz", lambda: service.get("/healthz")),
        _each(runner, "service: ping of a chat socket", lambda: _ponged(socket)),
    ]


async def _answer(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _echoed(socket: ClientSocket) -> None:
    await socket.send(_PING)
    await socket.recv()


async def _ponged(socket: ClientSocket) -> None:
    await socket.send(_PING)
    while parse_event(await socket.recv()).get("type") != "pong":
        continue


def _each(runner: asyncio.Runner, name: str, operation: Callable[[], Awaitable[object]]) -> Piece:
    """Several of them one after the other, since entering the loop costs as much as some of what is timed."""

    async def repeat(times: range) -> None:
        for _ in range(len(times) * _AT_A_TIME):
            await operation()

    return Piece(name, lambda times: runner.run(repeat(times)), each=_AT_A_TIME)


def _flags() -> Flags:
    flags = run_flags("ws_bench micro", "What the smallest pieces of a client cost here; with -url, round trips to it.")
    flags.group("the pieces", "-only disk -dir /var/lib/turnwise -seconds 2s")
    flags.value("only", "", str.strip, "the pieces whose name holds this", "websocket")
    flags.value("dir", tempfile.gettempdir(), str.strip, "the directory whose disk is asked", "/var/lib/turnwise")
    flags.value("seconds", 0.5, parse_duration, "how long each piece is sampled", "2s")
    return flags
