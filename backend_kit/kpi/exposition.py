"""What /metrics has beyond the metrics themselves: buckets, compatible names, GC pauses, and the endpoint."""

import gc
import json
import socket
import socketserver
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import isinf
from threading import BoundedSemaphore
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Histogram, make_wsgi_app
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector

from backend_kit.aio import Vigil, WatchedThread
from backend_kit.kpi.rollup import Seen
from backend_kit.kpi.statements import StatementSeen

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_MAX_SCRAPES: Final = 16
_NO_DESCRIPTOR_S: Final = 0.1
DISTRIBUTIONS_PATH: Final = "/distributions"
STATEMENTS_PATH: Final = "/statements"

TURN_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Of whole turns, model calls and phases, in seconds: from a cached read to a turn's deadline."""

SHORT_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Of waits that ought to be near nothing, in seconds: loop lag, pools, locks, sends."""

COUNT_BUCKETS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
"""Of tokens, records, batch sizes."""


class LegacyPhaseHistogram(Collector):
    """`app_phase_latency_ms{phase,service}`, derived from the histogram in seconds when it is scraped.

    Statuses are summed, as the original had none. It costs nothing per observation.
    """

    def __init__(self, seconds: Histogram, service: str) -> None:
        self._seconds = seconds
        self._service = service

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The empty family, so that registering does not collect."""
        return [self._family()]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The family with a sample set per phase."""
        buckets: dict[str, dict[float, float]] = {}
        sums: dict[str, float] = {}
        for metric in self._seconds.collect():
            for sample in metric.samples:
                phase = sample.labels["phase"]
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    of_phase = buckets.setdefault(phase, {})
                    of_phase[bound] = of_phase.get(bound, 0.0) + sample.value
                elif sample.name.endswith("_sum"):
                    sums[phase] = sums.get(phase, 0.0) + sample.value
        family = self._family()
        for phase, of_phase in buckets.items():
            rows = [(_le(bound), of_phase[bound]) for bound in sorted(of_phase)]
            family.add_metric([phase, self._service], rows, sums.get(phase, 0.0) * 1e3)
        return [family]

    @staticmethod
    def _family() -> HistogramMetricFamily:
        return HistogramMetricFamily(
            "app_phase_latency_ms",
            "Compatible name of app_phase_latency_seconds, milliseconds, all statuses.",
            labels=["phase", "service"],
        )


def _le(seconds: float) -> str:
    # Rounded: 0.035 s is 35 ms to a reader, not the 35.00000000000001 that binary fractions make of it.
    return "+Inf" if isinf(seconds) else str(round(seconds * 1e3, 6))


class GcPauses(Collector):
    """`app_gc_pause_seconds`: how long each garbage collection stopped the process.

    It does not use a Histogram: a collection may begin anywhere, also while the library holds a lock.
    Collections never nest, so plain increments are enough.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts = [0] * (len(SHORT_BUCKETS) + 1)
        self._sum = 0.0
        self._began = 0.0
        self._taken = (0, 0.0)
        self._longest = 0.0
        registry.register(self)

    def start(self) -> None:
        """Begin to count."""
        gc.callbacks.append(self._collection)

    def close(self) -> None:
        """Stop counting. Does nothing where it was not started."""
        if self._collection in gc.callbacks:
            gc.callbacks.remove(self._collection)

    def take(self) -> tuple[int, float, float]:
        """How many pauses there were since the last call, their seconds in all, and the longest."""
        count, total, longest = sum(self._counts), self._sum, self._longest
        self._longest = 0.0
        taken, self._taken = self._taken, (count, total)
        return count - taken[0], total - taken[1], longest

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The empty family, so that registering does not collect."""
        return [HistogramMetricFamily("app_gc_pause_seconds", "Pauses by garbage collection.")]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The family with its one sample set."""
        family = HistogramMetricFamily("app_gc_pause_seconds", "Pauses by garbage collection.")
        bounds = [*(str(bound) for bound in SHORT_BUCKETS), "+Inf"]
        family.add_metric([], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return [family]

    def _collection(self, phase: str, info: dict[str, int]) -> None:  # noqa: ARG002  # gc calls it with both
        if phase == "start":
            self._began = perf_counter()
        elif self._began:
            pause = perf_counter() - self._began
            self._counts[bisect_left(SHORT_BUCKETS, pause)] += 1
            self._sum += pause
            self._longest = max(self._longest, pause)


class MetricsPortTaken(OSError):
    """The metrics endpoint cannot listen on the configured port. The message names address, port and key."""


class MetricsServer:
    """Serves a registry from separate threads, so that a scrape (6 ms for 50 label sets) never runs on the event loop
    and an overloaded loop still shows its metrics. `/distributions` is finer than the registry's buckets; `/statements`
    are those of the database, one by one."""

    def __init__(
        self,
        registry: CollectorRegistry,
        address: str,
        port: int,
        distributions: Callable[[], Mapping[str, Seen]] = dict,
        statements: Callable[[], Sequence[StatementSeen]] = list,
        *,
        vigil: Vigil | None = None,
    ) -> None:
        """Port 0 takes a free one. `distributions` are what `Kpi.distributions` gives, `statements` what
        `StatementCounts.seen` does."""
        self._vigil = vigil or Vigil()
        self._thread: WatchedThread | None = None
        pages = {DISTRIBUTIONS_PATH: distributions, STATEMENTS_PATH: statements}
        self._app = _with_pages(make_wsgi_app(registry), pages)
        self._address = address
        self._port = port
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen. Raises MetricsPortTaken."""
        try:
            server = _Server((self._address, self._port), _Handler)
        except OSError as exc:
            raise MetricsPortTaken(
                exc.errno,
                f"app.metrics_port: cannot listen on {self._address}:{self._port} ({exc.strerror}); "
                "choose another port or stop what listens there",
            ) from exc
        server.set_app(self._app)
        self._server = server
        self._thread = WatchedThread(self._vigil, "kpi-metrics", server.serve_until_closed, essential=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Does nothing where it was not started."""
        if self._server is not None and self._thread is not None:
            self._server.end()
            self._thread.end(1.0)
            self._server.server_close()
            self._server = None

    @property
    def port(self) -> int | None:
        """The port in use, None while not started."""
        return self._server.server_port if self._server is not None else None


def _with_pages(metrics: "WSGIApplication", pages: Mapping[str, Callable[[], object]]) -> "WSGIApplication":
    """The metrics, and pages of JSON by path: a changed `started` (Unix time) shows that the process restarted."""
    started = time.time()

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        page = pages.get(path)
        if page is None:
            return metrics(environ, start_response)
        body = json.dumps({"unit": "ms", "started": started, path.removeprefix("/"): page()}).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return app


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = _MAX_SCRAPES

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._slots = BoundedSemaphore(_MAX_SCRAPES)
        self._ending = False
        super().__init__(address, handler)

    def serve_until_closed(self) -> None:
        """Answer until `end`. Unlike `serve_forever` it wakes for requests only."""
        while not self._ending:
            self.handle_request()

    def end(self) -> None:
        """Have `serve_until_closed` return. From another thread."""
        self._ending = True
        # What waits for a connection to accept is woken by it.
        self.socket.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        # The parent resolves the host's full name, which may take seconds and is not needed.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            # Without a free descriptor the caller stays in the queue, and the server's loop would spin.
            if not self._ending:
                sleep(_NO_DESCRIPTOR_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started, so none returns the place
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a scraper that went away; the parent would print a traceback."""


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds a client may keep a thread without sending

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the parent's signature
        """Scrapes are not logged."""
