"""What the services report about a run: their metrics over the steady window, their build and their verdict."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from backend_kit.wire import InvalidJson, loads
from ws_bench.config.flags import RunConfig
from ws_bench.errors import UsageError
from ws_bench.record.exposition import (
    Figures,
    Samples,
    build_of,
    difference,
    figures_of,
    gauge,
    label_values,
    read_samples,
)
from ws_bench.record.observed import ObservedValues, observed_figures, observed_labels, read_observed
from ws_bench.record.recorder import Recorder
from ws_bench.record.recording import ServerView
from ws_bench.record.results import SteadyWindow

_SCRAPE_TIMEOUT_S = 2.0
_VERDICT_MIN_S = 1.0
_VERDICT_MAX_S = 60.0
_NO_OPERATOR = "the service gave no verdict ({}): -token must be of somebody with one of its security.operator_roles"
_TIMERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "turn": ("app_turn_seconds", ("app.turn_latency_ms",)),
    "first token": ("app_time_to_first_token_seconds", ("app.ttft_ms",)),
    "overhead": ("app_turn_overhead_seconds", ("app.overhead_ms",)),
    "unattributed": ("app_turn_unattributed_seconds", ("turn_unattributed_ms",)),
    "admission wait": ("app_admission_wait_seconds", ("admission_wait_ms",)),
    "spool ack": ("app_spool_ack_seconds", ("spool_ack_ms",)),
    "Postgres ack": ("app_db_ack_seconds", ("db_ack_ms",)),
    "persist lag": ("app_persist_lag_seconds", ("persist_lag_ms",)),
    "socket send": ("app_ws_send_seconds", ("app.ws_send_ms",)),
    "loop lag": ("app_event_loop_lag_seconds", ("event_loop_lag_ms",)),
    "pool wait": ("app_db_pool_wait_seconds", ("persist_pool_wait_ms",)),
    "SQL": ("app_db_statement_seconds", ("persist_sql_ms",)),
    "HTTP pool wait": (
        "app_http_pool_wait_seconds",
        ("llm.pool_wait_ms", "kf.pool_wait_ms", "embed.pool_wait_ms", "rerank.pool_wait_ms"),
    ),
    "GC pause": ("app_gc_pause_seconds", ()),
    "search request": ("app_kf_request_seconds", ("kf.requests",)),
    "embedding": ("app_embed_seconds", ("embed",)),
}
"""Name in the report → histogram, and the keys of the same observations in `/distributions`."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of every address: when (seconds on the run's clock) and its text, empty if it failed.

    `observed` are the texts of `/distributions`, empty if there are none.
    """

    at: float
    texts: tuple[str, ...]
    observed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Reads:
    """Every address at the beginning and end of a window. `observed` is empty if any address has no distributions."""

    metrics: Sequence[tuple[Samples, Samples]]
    observed: Sequence[tuple[ObservedValues, ObservedValues]]

    def figures(self, family: str, keys: Sequence[str], **labels: str) -> Figures | None:
        """Figures from the observed values if the service exports them, else count and mean from a histogram."""
        return observed_figures(self.observed, keys, **labels) or figures_of(self.metrics, family, **labels)


@dataclass(slots=True)
class ServerLog:
    """What was collected during the run. It is parsed afterwards, so that the generator's loop stays free."""

    urls: tuple[str, ...] = ()
    scrapes: list[Scrape] = field(default_factory=list)
    verdict: Mapping[str, Any] | None = None
    """The verdict at the end of the steady window as planned."""
    whole_verdict: Mapping[str, Any] | None = None
    """The verdict at the end of the run."""
    failures: list[str] = field(default_factory=list)


class ServerMonitor:
    """_Reads the services' metrics at an interval, and at once when it is poked."""

    def __init__(self, config: RunConfig, recorder: Recorder) -> None:
        self.log = ServerLog(config.observe.metrics_urls)
        self._config = config
        self._recorder = recorder
        self._scrape_asked = asyncio.Event()
        self._stopping = False

    def scrape_now(self) -> None:
        """Trigger a reading: the steady window begins or ends."""
        self._scrape_asked.set()

    def stop(self) -> None:
        """Trigger the last reading and stop."""
        self._stopping = True
        self._scrape_asked.set()

    async def scrape_until_stopped(self) -> None:
        """Read until `stop`."""
        if not self.log.urls:
            return
        timeout = aiohttp.ClientTimeout(total=_SCRAPE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while not self._stopping:
                await self._scrape(http)
                try:
                    async with asyncio.timeout(self._config.observe.interval_s):
                        await self._scrape_asked.wait()
                except TimeoutError:
                    continue
                self._scrape_asked.clear()
            await self._scrape(http)

    async def ask_steady_verdict(self, seconds: float) -> None:
        """Store the service's verdict on its bottleneck over the last `seconds`, the planned steady window."""
        self.log.verdict = await self._verdict(seconds)

    async def ask_whole_verdict(self) -> None:
        """Store the verdict over the run, or over the last 60 s of a longer one."""
        self.log.whole_verdict = await self._verdict(self._recorder.now())

    async def _verdict(self, seconds: float) -> Mapping[str, Any] | None:
        """The verdict over the last `seconds`, None if there is none, which is no error."""
        if not (self.log.urls or self._config.observe.verdict):
            return None
        window_s = min(max(seconds, _VERDICT_MIN_S), _VERDICT_MAX_S)
        timeout = aiohttp.ClientTimeout(total=_SCRAPE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._config.auth_headers) as http:
            try:
                async with http.get(
                    self._config.rest_url("/kpi/verdict"), params={"window_s": f"{window_s:.3f}"}
                ) as response:
                    if response.status == 200:
                        given = loads(await response.read())
                        return given if isinstance(given, dict) else None
                    if response.status in (401, 403):
                        self._note(_NO_OPERATOR.format(response.status))
            except (aiohttp.ClientError, TimeoutError, InvalidJson):
                self._note("the service gave no verdict")
            except UsageError as failure:
                self._note(f"no verdict was asked for: {failure}")
        return None

    def _note(self, failure: str) -> None:
        if failure not in self.log.failures:
            self.log.failures.append(failure)

    async def _scrape(self, http: aiohttp.ClientSession) -> None:
        begin = self._recorder.now()
        urls = self.log.urls
        both = await asyncio.gather(*(self._read(http, url) for url in [*urls, *map(distributions_url, urls)]))
        # The figures were taken at some moment between request and answer.
        at = (begin + self._recorder.now()) / 2
        self.log.scrapes.append(Scrape(at, tuple(both[: len(urls)]), tuple(both[len(urls) :])))

    async def _read(self, http: aiohttp.ClientSession, url: str) -> str:
        try:
            async with http.get(url) as response:
                if response.status == 200:
                    return await response.text()
                failure = f"{_shown(url)} answered {response.status}"
        except (aiohttp.ClientError, TimeoutError) as broken:
            failure = f"{_shown(url)}: {type(broken).__name__}"
        self._note(failure)
        return ""


def distributions_url(metrics_url: str) -> str:
    """The address of a service's distributions: beside its metrics."""
    return urljoin(metrics_url, "distributions")


def server_view(log: ServerLog, window: SteadyWindow | None) -> ServerView | None:
    """The services over the window, between the readings nearest to its edges. None without two usable readings."""
    scrapes = [scrape for scrape in log.scrapes if all(scrape.texts)]
    if len(scrapes) < 2:
        return None
    begin = min(scrapes, key=lambda one: abs(one.at - window.begin)) if window else scrapes[0]
    end = min(scrapes, key=lambda one: abs(one.at - window.end)) if window else scrapes[-1]
    if end.at <= begin.at:
        return None
    try:
        parsed = {scrape.at: [read_samples(text) for text in scrape.texts] for scrape in scrapes}
    except ValueError as failure:
        log.failures.append(f"what an address answered is no exposition: {failure}")
        return None
    observed = _observed(scrapes, log)
    reads = _reads(parsed, observed, begin.at, end.at)
    afters = parsed[end.at]
    seconds = end.at - begin.at
    return ServerView(
        begin=begin.at,
        end=end.at,
        turns=round(sum(difference(*read, "app_turns_total") for read in reads.metrics)),
        builds=[dict(build) for samples in afters if (build := build_of(samples))],
        ended=_ended(reads),
        phases=_by_label(reads, "app_phase_latency_seconds", "app.phase_latency_ms", "phase"),
        timers={name: found for name, where in _TIMERS.items() if (found := reads.figures(*where))},
        statements=_by_label(reads, "app_db_statement_seconds", "persist_sql_ms", "op"),
        cpu=[difference(*read, "process_cpu_seconds_total") / seconds for read in reads.metrics],
        busy=max(
            (value for one in afters if (value := gauge(one, "app_event_loop_busy_ratio")) is not None), default=None
        ),
        stalls=round(sum(difference(*read, "app_event_loop_stalls_total") for read in reads.metrics)),
        lost=round(sum(difference(*read, "app_persist_failures_total") for read in reads.metrics)),
        pool_exhausted=any(_exhausted(one) for at, many in parsed.items() if begin.at <= at <= end.at for one in many),
        verdict=verdict_of(log, window),
        series=_series(parsed, observed),
        failures=log.failures,
    )


def verdict_of(log: ServerLog, window: SteadyWindow | None) -> Mapping[str, Any] | None:
    """The verdict over the steady window, else over the run: the planned window may hold few of its turns."""
    return (log.verdict if window else None) or log.whole_verdict


def _observed(scrapes: Sequence[Scrape], log: ServerLog) -> Mapping[float, list[ObservedValues]]:
    """The distributions of each scrape; empty if any address lacks them, since a part would mislead."""
    if not all(scrape.observed and all(scrape.observed) for scrape in scrapes):
        return {}
    try:
        return {scrape.at: [read_observed(text) for text in scrape.observed] for scrape in scrapes}
    except ValueError as failure:
        log.failures.append(f"no percentiles: {failure}")
        return {}


def _reads(
    parsed: Mapping[float, list[Samples]], observed: Mapping[float, list[ObservedValues]], begin: float, end: float
) -> _Reads:
    return _Reads(
        list(zip(parsed[begin], parsed[end], strict=True)),
        list(zip(observed[begin], observed[end], strict=True)) if observed else [],
    )


def _by_label(reads: _Reads, family: str, key: str, label: str) -> dict[str, Figures]:
    names = {name for _, after in reads.metrics for name in label_values(after, f"{family}_count", label)}
    names |= observed_labels([after for _, after in reads.observed], key, label)
    found = {name: reads.figures(family, (key,), **{label: name}) for name in sorted(names)}
    return {name: figures for name, figures in found.items() if figures is not None}


def _ended(reads: _Reads) -> dict[str, int]:
    counts: dict[str, int] = {}
    for before, after in reads.metrics:
        for status in label_values(after, "app_turns_total", "status"):
            grown = round(difference(before, after, "app_turns_total", status=status))
            if grown:
                counts[status] = counts.get(status, 0) + grown
    return counts


def _exhausted(samples: Samples) -> bool:
    """Whether anything waits for a database connection, by the pool's own count."""
    return (gauge(samples, "app_db_pool_waiting") or 0.0) > 0


def _series(
    parsed: Mapping[float, list[Samples]], observed: Mapping[float, list[ObservedValues]]
) -> dict[str, list[float | None]]:
    """Between consecutive readings: p95 of lag and waits in milliseconds, and turns per second."""
    columns: dict[str, list[float | None]] = {"at": [], "lag_p95": [], "pool_wait_p95": [], "sql_p95": [], "turns": []}
    ordered = sorted(parsed)
    for begin, end in itertools.pairwise(ordered):
        if end - begin < 0.05:
            continue
        reads = _reads(parsed, observed, begin, end)
        columns["at"].append((begin + end) / 2)
        for name, timer in (("lag_p95", "loop lag"), ("pool_wait_p95", "pool wait"), ("sql_p95", "SQL")):
            found = reads.figures(*_TIMERS[timer])
            columns[name].append(found.p95 if found else None)
        columns["turns"].append(sum(difference(*read, "app_turns_total") for read in reads.metrics) / (end - begin))
    return columns


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}{parts.path}" if parts.port else f"{parts.hostname}{parts.path}"
