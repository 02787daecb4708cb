"""`ws_bench matrix`: the same load over every combination of what a client can choose, round by round."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict

from backend_kit.wire import dumps
from ws_bench.cli.commands import check_one_table, run_in_loop
from ws_bench.config.flags import RunConfig, config_of
from ws_bench.config.golang import Flags
from ws_bench.config.runflags import run_flags
from ws_bench.errors import UsageError
from ws_bench.load.rounds import Case, CaseSeries, exit_code_of, run_rounds
from ws_bench.load.service import ServiceApi
from ws_bench.record.summary import EXIT_INTERRUPTED
from ws_bench.report.report import Style, text_table, write_file

SCHEMA = "turnwise.ws_bench.matrix"
SCHEMA_VERSION = 1
_MOST = 64
_NEW = "-requests-per-client=0"
_AGAIN = "(the first once more)"
_PROTOCOLS = {
    "compatible": ("-protocol=ws", "-native=false"),
    "native": ("-protocol=ws", "-native"),
    "sse": ("-protocol=sse", "-native=false"),
    "openai": ("-protocol=openai", "-native=false"),
    "langgraph": ("-protocol=langgraph", "-native=false"),
}
_VARIED = ("protocol", "deflate", "connection", "agent", "search-policy", "search-rag-scope", "include-session-scope",
           "include-corpus-scope", "clients", "message")  # fmt: skip
Varied = tuple[str, tuple[str, ...]]


def matrix_command(argv: list[str]) -> int:
    """Run every combination in every round and print the table. Returns 1 where one of them had failures, 3 where
    nothing succeeded. Raises `BenchError`."""
    flags = _flags()
    values = flags.parse(argv)
    base = config_of(values)
    check_one_table(base)
    if base.load.open or base.load.duration_s or base.workers > 1 or values.rounds < 1:
        raise UsageError("matrix is for a closed loop of a number of turns in one process, at least one -round")
    varied = values.vary or [_parse_varied("protocol=" + ",".join(_PROTOCOLS))]
    cases, left_out = combinations(flags, argv, varied)

    async def measured() -> tuple[dict[str, CaseSeries], bool]:
        async with ServiceApi(base) as service:
            await service.require_alive()
        return await run_rounds(cases, values.rounds, argv)

    outcome = run_in_loop(measured)
    if outcome is None:
        return EXIT_INTERRUPTED
    series, interrupted = outcome
    print(matrix_text(series, left_out, values.rounds, Style.of(sys.stdout)), end="")
    _write(base, series)
    return exit_code_of(series, interrupted=interrupted)


def combinations(flags: Flags, argv: Sequence[str], varied: Sequence[Varied]) -> tuple[list[Case], list[str]]:
    """The loads, the first one again at their end, and which combinations there are not and why. Raises `UsageError`
    for an invalid value, for too many combinations, or if none is left."""
    for name, given in varied:
        for value in given:
            config_of(flags.parse([*argv, *_as_flags(name, value)]))
    products = list(itertools.product(*([(name, value) for value in given] for name, given in varied)))
    if len(products) > _MOST:
        raise UsageError(f"{len(products)} combinations: at most {_MOST}")
    cases: list[Case] = []
    left_out: list[str] = []
    for chosen in products:
        title = " ".join(f"{name}={value}" for name, value in chosen)
        extra = [word for name, value in chosen for word in _as_flags(name, value)]
        try:
            cases.append(Case(title, _as_many_turns(flags, argv, extra)))
        except UsageError as failure:
            left_out.append(f"{title}: {failure}")
    if not cases:
        raise UsageError(f"no combination can be run; {left_out[0]}")
    return [*cases, Case(_AGAIN, cases[0].config)], left_out


def _as_many_turns(flags: Flags, argv: Sequence[str], extra: Sequence[str]) -> RunConfig:
    """The run of these flags, with as many turns on new connections as there would be on kept ones."""
    kept = config_of(flags.parse([*argv, *(word for word in extra if word != _NEW)]))
    turns = kept.clients * kept.requests_per_client
    return config_of(flags.parse([*argv, *extra, f"-requests={turns}"])) if _NEW in extra else kept


def matrix_text(series: dict[str, CaseSeries], left_out: Sequence[str], rounds: int, style: Style) -> str:
    """A row for each combination, beside the first; the one that is the first again shows what chance does."""
    head = ("combination", "p50 ms", "x first", "rounds", "", "p95 ms", "first token", "turns/s", "service CPU ms",
            "own CPU ms", "errors")  # fmt: skip
    first = next(iter(series.values()))
    rows = [head, *(_row(name, one, first) for name, one in series.items())]
    lines = [
        style("WS BENCH MATRIX", "\033[1m", "\033[36m"),
        f"source: this client's clock, median of {rounds} round(s); service CPU a turn from -server-metrics",
        *text_table(rows),
        *(f"left out: {text}" for text in left_out),
        *(f"! {name}: {kind} x {count}" for name, one in series.items() for kind, count in one.failures.items()),
        *(f"! {name}: the generator was the limit" for name, one in series.items() if one.limited),
    ]
    return "\n" + "\n".join(lines) + "\n"


def judged(ratios: Sequence[float]) -> str:
    """Slower or faster where every round of at least three says so, else noise."""
    if len(ratios) < 3 or min(ratios) <= 1 <= max(ratios):
        return "noise"
    return "slower" if min(ratios) > 1 else "faster"


def _row(name: str, one: CaseSeries, first: CaseSeries) -> tuple[str, ...]:
    ratios = one.ratios(first)
    beside = ("", "", "")
    if one is not first and ratios:
        middle = sorted(ratios)[len(ratios) // 2]
        beside = (f"{middle:.2f}", f"{min(ratios):.2f}..{max(ratios):.2f}", judged(ratios))
    return (
        name,
        cell(one.middle("p50_ms"), 1),
        *beside,
        cell(one.middle("p95_ms"), 1),
        cell(one.middle("first_ms"), 1),
        cell(one.middle("turns_per_s"), 1),
        cell(one.middle("cpu_ms"), 2),
        cell(one.middle("own_cpu_ms"), 2),
        str(sum(one.failures.values())),
    )


def cell(value: float | None, decimals: int) -> str:
    """A figure of a table, a dash where it was not measured."""
    return "-" if value is None else f"{value:.{decimals}f}"


def _as_flags(name: str, value: str) -> tuple[str, ...]:
    if name == "protocol":
        if value not in _PROTOCOLS:
            raise UsageError(f"-vary protocol: one of {', '.join(_PROTOCOLS)}")
        return _PROTOCOLS[value]
    if name == "connection":
        if value not in {"kept", "new"}:
            raise UsageError("-vary connection: kept or new")
        return () if value == "kept" else (_NEW,)
    return (f"-{name}={value}",)


def _parse_varied(text: str) -> Varied:
    name, equals, given = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in given.split(",") if value.strip()))
    if name not in _VARIED or not equals or not values:
        raise UsageError(f"-vary takes NAME=VALUE,VALUE with a name of {', '.join(_VARIED)}")
    return name, values


def _write(config: RunConfig, series: dict[str, CaseSeries]) -> None:
    if config.outputs.json:
        found = {name: [asdict(one) for one in each.samples] for name, each in series.items()}
        failures = {name: each.failures for name, each in series.items()}
        content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "samples": found, "failures": failures}
        write_file(config.outputs.json, dumps(content) + b"\n")


def _flags() -> Flags:
    flags = run_flags("ws_bench matrix", "The same load over every combination of what a client can choose.")
    flags.group("the combinations", "-vary protocol=native,sse -vary search-policy=hybrid,strict -agent Rico -rounds 5")
    flags.many(
        "vary", _parse_varied,
        f"one choice and its values, may be given again: {', '.join(_VARIED)} (compatible, native, sse, openai and "
        "langgraph are the protocols, and are varied where nothing is given; connection is kept or new for each turn)",
        "protocol=native,sse",
    )  # fmt: skip
    flags.value("rounds", 3, int, "how often each combination is measured", "5")
    flags.parser.set_defaults(clients=8, ramp_duration=0.0)
    return flags
