"""`ws_bench ladder`: what each layer of a turn costs against a service, from a connection to an agent that searches."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from backend_kit.wire import dumps
from ws_bench.cli.commands import check_one_table, run_in_loop
from ws_bench.cli.matrix import cell
from ws_bench.config.flags import RunConfig, config_of
from ws_bench.config.golang import Flags
from ws_bench.config.runflags import run_flags
from ws_bench.errors import BenchError, PreparationFailed, TurnBroken, UsageError
from ws_bench.load.engines import connector_of
from ws_bench.load.rounds import Case, CaseSeries, exit_code_of, quiet, run_rounds
from ws_bench.load.run import run_load
from ws_bench.load.service import ServiceApi
from ws_bench.record.dialects import clock, parse_event
from ws_bench.record.results import percentile
from ws_bench.record.summary import EXIT_INTERRUPTED, build_report, sample_of
from ws_bench.report.report import Style, text_table, write_file

SCHEMA = "turnwise.ws_bench.ladder"
SCHEMA_VERSION = 1
_PROBES = 20
_SEARCH_PHASES = frozenset({"vector_search", "kf_vector_search"})
_BASELINE = "ws-baseline: one model call"
_PHASES = 6
Probe = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Rungs:
    """The agents' loads, and of each the rung that it stands on."""

    cases: tuple[Case, ...]
    below: Mapping[str, str]


def ladder_command(argv: list[str]) -> int:
    """Climb every rung in every round and print the table. Returns 1 where turns failed, 3 where none succeeded.
    Raises `BenchError`, also for an agent that does not answer."""
    values = _flags().parse(argv)
    config = config_of(values)
    check_one_table(config)
    if config.protocol != "ws" or config.load.open or config.load.duration_s or config.workers > 1:
        raise UsageError("ladder is for -protocol ws in a closed loop of a number of turns, in one process")
    if values.rounds < 1:
        raise UsageError("-rounds must be at least 1")
    config = replace(config, native=True)

    async def climbed() -> tuple[dict[str, list[float]], Rungs, dict[str, CaseSeries], bool]:
        async with ServiceApi(config) as service:
            requests = await _requests(service, config, values.knowledge_url)
            rungs = await _rungs(service, config, values.agents, argv)
        series, interrupted = await run_rounds(rungs.cases, values.rounds, argv)
        return requests, rungs, series, interrupted

    outcome = run_in_loop(climbed)
    if outcome is None:
        return EXIT_INTERRUPTED
    requests, rungs, series, interrupted = outcome
    print(ladder_text(requests, rungs, series, Style.of(sys.stdout)), end="")
    _write(config, requests, series)
    return exit_code_of(series, interrupted=interrupted)


def ladder_text(
    requests: Mapping[str, Sequence[float]], rungs: Rungs, series: Mapping[str, CaseSeries], style: Style
) -> str:
    """The rungs without a turn, those with one beside the rung that each stands on, and the phases of the agents."""
    alone = [("without a turn", "p50 ms", "p95 ms")]
    alone += [(name, f"{percentile(ms, 0.5):.2f}", f"{percentile(ms, 0.95):.2f}") for name, ms in requests.items()]
    head = ("a turn of", "p50 ms", "p95 ms", "added ms", "x below", "first token", "service ms", "service CPU ms",
            "turns/s", "errors")  # fmt: skip
    turns = [head, *(_row(name, one, series.get(rungs.below.get(name, ""))) for name, one in series.items())]
    lines = [
        style("WS BENCH LADDER", "\033[1m", "\033[36m"),
        "source: this client's clock; service ms from the ledger of each turn, its CPU from -server-metrics",
        *text_table(alone),
        "",
        *text_table(turns),
        "",
        "ms of a turn by phase, each without those inside it, from its ledger:",
        *(f"{name}: {_phases(one)}" for name, one in series.items()),
        *(f"! {name}: {kind} x {count}" for name, one in series.items() for kind, count in one.failures.items()),
        *(f"! {name}: the generator was the limit" for name, one in series.items() if one.limited),
    ]
    return "\n" + "\n".join(lines) + "\n"


def _row(name: str, one: CaseSeries, below: CaseSeries | None) -> tuple[str, ...]:
    added, ratios = (one.added(below), one.ratios(below)) if below else (None, [])
    return (
        name,
        cell(one.middle("p50_ms"), 1),
        cell(one.middle("p95_ms"), 1),
        "" if added is None else f"{added:+.1f}",
        f"{median(ratios):.2f}" if ratios else "",
        cell(one.middle("first_ms"), 1),
        cell(one.middle("server_ms"), 1),
        cell(one.middle("cpu_ms"), 2),
        cell(one.middle("turns_per_s"), 1),
        str(sum(one.failures.values())),
    )


def _phases(one: CaseSeries) -> str:
    names = {name for sample in one.samples for name in sample.own}
    means = {name: median(sample.own.get(name, 0.0) for sample in one.samples) for name in names}
    shown = sorted(means.items(), key=lambda item: -item[1])[:_PHASES]
    return "  ".join(f"{name} {ms:.1f}" for name, ms in shown) or "none told"


async def _requests(service: ServiceApi, config: RunConfig, knowledge_url: str) -> dict[str, list[float]]:
    """Times in ms, ascending, of what a turn stands on: connection, route, token, handshake, frame, and of searches."""
    probes: dict[str, Probe] = {
        "connection": lambda: _connected(config),
        "GET /healthz: the loop answers": lambda: service.timed_get("/healthz"),
        "GET /agents: token, admission, route": lambda: service.timed_get("/agents"),
        "handshake of a chat socket": lambda: _shaken(config),
        "ping of a chat socket": lambda: _pinged(config),
    }
    if knowledge_url:
        url = f"{knowledge_url.rstrip('/')}/vector/search"
        search: dict[str, Any] = {"question": config.message, "top_k": 10}
        probes["knowledge flow: search"] = lambda: service.timed_post(url, search)
        probes["knowledge flow: search and rerank"] = lambda: service.timed_post(url, {**search, "rerank": {}})
    return {name: sorted([await probe() for _ in range(_PROBES)]) for name, probe in probes.items()}


async def _connected(config: RunConfig) -> float:
    parts = urlsplit(config.url)
    begin = clock()
    try:
        _, writer = await asyncio.open_connection(parts.hostname, parts.port or (443 if parts.scheme == "wss" else 80))
    except OSError as failure:
        raise PreparationFailed(f"the service cannot be reached: {parts.netloc}: {failure.strerror}") from failure
    took = (clock() - begin) * 1e3
    writer.close()
    return took


async def _shaken(config: RunConfig) -> float:
    begin = clock()
    try:
        socket = await connector_of(config).connect()
    except TurnBroken as broken:
        raise PreparationFailed(f"no chat socket at {config.shown_url}: {broken}") from broken
    took = (clock() - begin) * 1e3
    await socket.close()
    return took


async def _pinged(config: RunConfig) -> float:
    """A ping on a socket that has had one already."""
    try:
        socket = await connector_of(config).connect()
        took = 0.0
        for _ in range(2):
            begin = clock()
            await socket.send('{"type":"ping"}')
            while parse_event(await socket.recv()).get("type") != "pong":
                continue
            took = (clock() - begin) * 1e3
    except TurnBroken as broken:
        raise PreparationFailed(f"no pong at {config.shown_url}: {broken}") from broken
    await socket.close()
    return took


async def _rungs(service: ServiceApi, config: RunConfig, wanted: Sequence[str], argv: Sequence[str]) -> Rungs:
    """The bare model, and each agent on top of it; of one that searches also a turn without. Raises `BenchError`."""
    known = [str(agent["id"]) for agent in await service.get("/agents") if agent.get("enabled", True)]
    if missing := [agent for agent in wanted if agent not in known]:
        raise UsageError(f"-agents: the service has no {', '.join(missing)} for this token; it has {', '.join(known)}")
    bare = replace(config, url=_baseline_url(config.url), create_session=False, session="ladder", runtime_context={})
    cases, below = [Case(_BASELINE, bare)], {}
    await _phases_of_one(bare, _BASELINE, argv)
    for agent in wanted or known:
        asked, stands_on = replace(config, agent=agent), _BASELINE
        if _SEARCH_PHASES & await _phases_of_one(asked, agent, argv):
            stands_on = f"{agent}, without search"
            silent = {**config.runtime_context, "search_rag_scope": "general_only"}
            cases.append(Case(stands_on, replace(asked, runtime_context=silent)))
            below[stands_on] = _BASELINE
        cases.append(Case(agent, asked))
        below[agent] = stands_on
    return Rungs(tuple(cases), below)


async def _phases_of_one(config: RunConfig, name: str, argv: Sequence[str]) -> frozenset[str]:
    """The phases of one turn, which must succeed. Raises `BenchError`."""
    one = replace(quiet(config), clients=1, requests_per_client=1, requests=0)
    report = build_report(await run_load(one, argv))
    if report.tally.success != 1:
        why = sample_of(report.recording.turns[0]) if report.recording.turns else "interrupted"
        raise BenchError(f"{name} does not answer: {why}")
    return frozenset(report.recording.turns[0].phases)


def _baseline_url(url: str) -> str:
    return url if "/ws-baseline" in url else url.replace("/chatbot/query/ws", "/chatbot/query/ws-baseline", 1)


def _write(config: RunConfig, requests: Mapping[str, Sequence[float]], series: Mapping[str, CaseSeries]) -> None:
    if config.outputs.json:
        turns = {name: [asdict(one) for one in each.samples] for name, each in series.items()}
        content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "requests_ms": requests, "turns": turns}
        write_file(config.outputs.json, dumps(content) + b"\n")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flags() -> Flags:
    flags = run_flags("ws_bench ladder", "What each layer of a turn costs, from a connection to a search.")
    flags.group("the rungs", "-agents Georges,Rico -rounds 5 -knowledge-url http://127.0.0.1:8111/knowledge-flow/v1")
    flags.value("agents", (), _names, "which agents (all that the token may ask)", "Georges,Rico")
    flags.value("knowledge-url", "", str.strip, "knowledge flow, whose searches become rungs of their own, asked with "
                "the same -token", "http://host:8111/knowledge-flow/v1")  # fmt: skip
    flags.value("rounds", 3, int, "how often each rung is measured", "5")
    flags.parser.set_defaults(clients=4, ramp_duration=0.0)
    return flags
