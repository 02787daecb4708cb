"""`ws_bench mock-llm`: a model server without a model, which speaks the wires of several providers.

Routes: `POST /v1/chat/completions` (OpenAI and what is compatible with it; Azure OpenAI below
`/openai/deployments/NAME`), `POST /v1/responses` (OpenAI), `POST /v1/messages` (Anthropic), `POST /api/chat` (Ollama),
each streamed or not; `POST /v1/embeddings`, `POST /rerank` (also below /v1 and /v2), `GET /v1/models`, `GET
/v1/models/NAME`, `GET /stats`, `GET /healthz`. Any key is accepted.

Every knob is a flag for all requests (`--ttft 3000 --gap 20`) and a key in the model name for one of them
(`mock;ttft=3000;gap=20;tokens=50`); `ws_bench.fakes.knobs` documents the syntax and each key. Without `tokens` the
answer is made from the prompt (`ws_bench.fakes.answers`).
"""

import asyncio
import errno
import gc
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ws_bench.config.golang import Flags, parse_duration
from ws_bench.errors import PreparationFailed, UsageError
from ws_bench.fakes.completions import Completions, MockLlmStats
from ws_bench.fakes.embedding import embedding_body, embedding_request
from ws_bench.fakes.http import BadRequest, Connection, Request, error_body
from ws_bench.fakes.knobs import KNOBS, BadKnob, Knobs, parse_knob, with_knobs
from ws_bench.fakes.plan import Wire
from ws_bench.fakes.reranking import rerank_body, rerank_request
from ws_bench.fakes.timer_wheel import TimerWheel
from ws_bench.fakes.wires.anthropic import MessagesWire
from ws_bench.fakes.wires.chat import ChatWire
from ws_bench.fakes.wires.ollama import OllamaWire
from ws_bench.fakes.wires.responses import ResponsesWire

_MODEL: Final = "/v1/models/"
_AZURE: Final = re.compile(r"/openai/deployments/[^/]+/chat/completions")


@dataclass(frozen=True, slots=True)
class MockOptions:
    """How the fake model server runs. `keep` is how many requests `/stats` shows."""

    host: str
    port: int
    model: str
    knobs: Knobs
    embed_latency_s: float
    rerank_latency_s: float
    keep: int
    seed: int


def parse_mock_flags(argv: Sequence[str]) -> MockOptions:
    """The options that flags ask for. Raises `UsageError`; `-h` prints the help and raises SystemExit(0)."""
    flags = Flags(
        "ws_bench mock-llm",
        "Serve a fake model on the wires of OpenAI, Anthropic and Ollama. Each knob may also stand in the model name: "
        "mock;ttft=3000;gap=20;tokens=50;error=0.1;status=429;stall=10;truncate=5",
    )
    flags.value("host", "127.0.0.1", str, "address to listen on")
    flags.value("port", 8099, int, "port to listen on; 0: a free one")
    flags.value("model", "mock", str, "the name that /v1/models lists")
    flags.value("embed-latency", 0.0, parse_duration, "time to wait before embeddings, such as 20ms")
    flags.value("rerank-latency", 0.0, parse_duration, "time to wait before reranks, such as 200ms")
    flags.value("keep", 20, int, "how many requests /stats shows")
    flags.value("seed", 0, int, "seed of what is drawn: refusals, times, lengths")
    for name in KNOBS:
        flags.value(name, None, str, f"knob {name}: times in ms, see ws_bench.fakes.knobs")
    values = flags.parse(argv)
    if not 0 <= values.port <= 65_535:
        raise UsageError("--port must be in 0..65535")
    try:
        given = {name: getattr(values, name) for name in KNOBS if getattr(values, name) is not None}
        knobs = with_knobs(Knobs(), {name: parse_knob(name, text) for name, text in given.items()})
    except BadKnob as failure:
        raise UsageError(str(failure)) from failure
    return MockOptions(
        host=values.host,
        port=values.port,
        model=values.model,
        knobs=knobs,
        embed_latency_s=values.embed_latency,
        rerank_latency_s=values.rerank_latency,
        keep=max(values.keep, 0),
        seed=values.seed,
    )


class MockLlm:
    """The server: `start`, `port`, `close`. Use it inside a running loop."""

    def __init__(self, options: MockOptions) -> None:
        self._options = options
        self.stats = MockLlmStats()
        self._wheel = TimerWheel(asyncio.get_running_loop())
        self._completions = Completions(self._wheel, self.stats, options.knobs, seed=options.seed, keep=options.keep)
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._routes: dict[str, tuple[str, Callable[[Request, Connection], None]]] = {
            "/v1/chat/completions": ("POST", self._speaks(ChatWire())),
            "/v1/responses": ("POST", self._speaks(ResponsesWire())),
            "/v1/messages": ("POST", self._speaks(MessagesWire())),
            "/api/chat": ("POST", self._speaks(OllamaWire())),
            "/v1/embeddings": ("POST", self._embeddings),
            "/rerank": ("POST", self._rerank),
            "/v1/rerank": ("POST", self._rerank),
            "/v2/rerank": ("POST", self._rerank),
            "/v1/models": ("GET", self._models),
            "/stats": ("GET", lambda _, out: out.respond(200, self.stats.as_json())),
            "/healthz": ("GET", lambda _, out: out.respond(200, {"status": "ok"})),
        }

    async def start(self) -> None:
        """Listen. Raises `PreparationFailed` if the address cannot be used."""
        loop, options = asyncio.get_running_loop(), self._options
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._handle, self._connections), options.host, options.port, backlog=2048
            )
        except OSError as failure:
            taken = failure.errno == errno.EADDRINUSE
            reason = "the port is taken" if taken else failure.strerror or str(failure)
            raise PreparationFailed(f"cannot listen on {options.host}:{options.port}: {reason}") from failure

    @property
    def port(self) -> int:
        """The port that the server listens on. Raises RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("not started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and close every connection; open streams break off, as in a crash."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def _handle(self, request: Request, connection: Connection) -> None:
        route = self._routes.get(request.path)
        if route is None and _AZURE.fullmatch(request.path):
            route = self._routes["/v1/chat/completions"]
        if route is None and request.path.startswith(_MODEL):
            route = ("GET", self._model)
        if route is None:
            connection.respond(404, error_body(f"no such path: {request.path}", "invalid_request_error"))
        elif request.method != route[0]:
            body = error_body(f"use {route[0]}", "invalid_request_error")
            connection.respond(405, body, ((b"allow", route[0].encode()),))
        else:
            route[1](request, connection)

    def _speaks(self, wire: Wire) -> Callable[[Request, Connection], None]:
        return lambda request, connection: self._completions.handle(wire, request.body, connection)

    def _models(self, _: Request, connection: Connection) -> None:
        self.stats.model_requests += 1
        entry = {"id": self._options.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        connection.respond(200, {"object": "list", "data": [entry]})

    def _model(self, request: Request, connection: Connection) -> None:
        """Any name is a model here: what comes after the first semicolon says how it behaves."""
        self.stats.model_requests += 1
        connection.respond(200, {"id": request.path.removeprefix(_MODEL), "object": "model", "owned_by": "turnwise"})

    def _embeddings(self, request: Request, connection: Connection) -> None:
        self.stats.embedding_requests += 1
        try:
            wanted = embedding_request(request.body)
        except BadRequest as failure:
            self._refuse(connection, failure)
        else:
            self._later(self._options.embed_latency_s, connection, lambda: embedding_body(wanted))

    def _rerank(self, request: Request, connection: Connection) -> None:
        self.stats.rerank_requests += 1
        try:
            wanted = rerank_request(request.body)
        except BadRequest as failure:
            self._refuse(connection, failure)
        else:
            self._later(self._options.rerank_latency_s, connection, lambda: rerank_body(wanted))

    def _refuse(self, connection: Connection, failure: BadRequest) -> None:
        self.stats.refused += 1
        connection.respond(400, error_body(str(failure), "invalid_request_error"))

    def _later(self, latency_s: float, connection: Connection, body: Callable[[], object]) -> None:
        def answer() -> None:
            if connection.alive:
                connection.respond(200, body())

        if latency_s > 0:
            self._wheel.call_at(self._wheel.time() + latency_s, answer)
        else:
            answer()


async def serve(options: MockOptions) -> None:
    """Serve until SIGTERM or SIGINT. The first line on stdout names the address. Raises `PreparationFailed`."""
    server = MockLlm(options)
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # Imported modules stay: the collector need not traverse them again for every generation of requests.
    gc.collect()
    gc.freeze()
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(f"mock-llm listening on http://{host}:{server.port}", flush=True)
    try:
        await stop.wait()
    finally:
        await server.close()
