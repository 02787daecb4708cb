"""CPU of one turn: ours with everything on, beside the comparators of tests/bench/comparators.

Hypothesis: a streamed turn of 50 tokens costs at most 0.06 of the CPU of the obvious stack on a saturated core, at most
0.30 at 8 turns a second, where every token wakes an idle loop, and at most twice the floor; a further token costs at
most 25 us on a saturated core (a turn of 200 less one of 50, over 150); and a turn whose answer is one frame is done at
least 6 times as often by a core as in the way of the system that Turnwise succeeds. The graph of the obvious stack,
hosted here as it is, costs at most half of that (`--only hosted`).
Control: naive.py, original_like.py and floor_asgi.py, each a server of its own, on the same core, asked by the same
clients, streaming from the same mock model, storing into the same Postgres, in turn with ours, round by round. Before
anything is timed each must pass the turn check: text exact, rows in Postgres.
Command: `make bench-turn` (`--short` in .ci/run: one round of short windows, bounds five times as wide).

The service is alone on one core; model, Postgres and load share the others. CPU is user and system time of all threads
of the process under test. Ours speaks turnwise.v1 where the answer is streamed, with metrics, KPI summary, history of
ten turns a session and the durable spool; the comparators remember and promise less. Saturated: 150 clients, one turn
after the other, the model sends a token each 5 ms; at 8 turns a second each 20 ms.
"""

import argparse
import asyncio
import hashlib
import json
import os
import platform
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
import uvloop

from tests.bench.bench import Verdicts
from tests.bench.deployment import COMPARATORS, Change, Deployment, Server, deployed
from tests.bench.driver import Load, answer_of, clients
from tests.bench.measured import Sample, Series, sample
from tests.support.patience import HANGS_S

TOKENS = 50
SATURATED_MODEL = f"mock;gap=5;tokens={TOKENS}"
CALM_MODEL = f"mock;gap=20;tokens={TOKENS}"
WHOLE_MODEL = f"mock;tokens={TOKENS}"
RATE = 8.0
MORE_TOKENS = 200
SATURATED_BOUND = 0.06
FLOOR_BOUND = 2.0
CALM_BOUND = 0.30
WHOLE_BOUND = 6.0
TOKEN_BOUND_US = 25.0
HOSTED_BOUND = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """How long, how often, and how much wider than the full run's the bounds are."""

    seconds: float
    warm_s: float
    rounds: int
    slack: float


FULL = Size(seconds=12.0, warm_s=6.0, rounds=5, slack=1.0)
SHORT = Size(seconds=4.0, warm_s=2.0, rounds=1, slack=5.0)


def with_ack(deployment: Deployment, name: str, ack: str) -> Change:
    """What `final` waits for, with a spool of its own."""

    def change(config: dict[str, Any]) -> None:
        config["persistence"] = {"ack": ack, "spool_dir": str(deployment.work / name / "spool")}

    return change


def hosting(also: Change) -> Change:
    """The agent that is asked is the graph of `naive.py`, unmodified."""

    def change(config: dict[str, Any]) -> None:
        also(config)
        config["ai"]["agents"] = [{"name": "Georges", "graph": "tests.bench.plain_graph:graph"}]

    return change


def spoken_answer(deployment: Deployment, model: str) -> str:
    """What the model answers, asked directly."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    request = urllib.request.Request(  # noqa: S310 - our own mock model on loopback
        f"{deployment.model_url}/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=HANGS_S) as answer:  # noqa: S310 - as above
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text


def checked(server: Server, answer: str) -> Server:
    """The turn check: two turns of one session, text exact, four rows of it in Postgres. Else the bench ends here."""

    async def two_turns() -> tuple[str, list[str]]:
        async with clients(server.target, 1) as (client,):
            said = [answer_of(await client.turn(question)) for question in ("Hello", "Again")]
            return client.session_id, said

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        session_id, said = runner.run(two_turns())
    if said != [answer, answer]:
        raise SystemExit(f"{server.name} fails the turn check: it said {said}")
    wanted = [(0, "user", "Hello"), (1, "assistant", answer), (2, "user", "Again"), (3, "assistant", answer)]
    rows = wait_for(lambda: stored(server, session_id), wanted)
    if rows != wanted:
        raise SystemExit(f"{server.name} fails the turn check: it stored {rows}")
    return server.answering(answer)


def stored(server: Server, session_id: str) -> list[tuple[int, str, str]]:
    """The rows of a session: rank, role, text."""
    with psycopg.connect(server.dsn) as connection:
        rows = connection.execute(
            "SELECT rank, role, parts_json->0->>'text' FROM session_history WHERE session_id = %s ORDER BY rank",
            (session_id,),
        ).fetchall()
    return [(int(rank), str(role), str(text)) for rank, role, text in rows]


def row_count(server: Server) -> int:
    """How many messages the server has stored."""
    with psycopg.connect(server.dsn) as connection:
        found = connection.execute("SELECT count(*) FROM session_history").fetchone()
    return int(found[0]) if found else 0


def wait_for(ask: Callable[[], object], wanted: object) -> object:
    """What `ask` says, once it is what is wanted or so much time has passed that it never will be."""
    give_up = time.monotonic() + HANGS_S
    while (found := ask()) != wanted and time.monotonic() < give_up:
        time.sleep(0.1)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: the stacks side by side under one load."""

    name: str
    title: str
    model: str
    stacks: tuple[str, ...]
    clients: int
    rate: float | None = None
    streamed: bool = True


SATURATED = Case("saturated", "streamed turn, saturated", SATURATED_MODEL, ("naive", "floor_asgi", "ours"), clients=150)
CALM = Case(
    "calm", f"streamed turn, {RATE:.0f} turns/s", CALM_MODEL, ("naive", "floor_asgi", "ours"), clients=64, rate=RATE
)
WHOLE = Case(
    "whole", "whole-message turn, saturated", WHOLE_MODEL, ("original_like", "ours"), clients=50, streamed=False
)
HOSTED = Case(
    "hosted", "hosted graph, streamed turn, saturated", SATURATED_MODEL, ("naive", "hosted"), clients=SATURATED.clients
)
CASES = (SATURATED, CALM, WHOLE, HOSTED)
TOKENS_CASE = "tokens"


def compare(deployment: Deployment, case: Case, size: Size, ack: str, verdicts: Verdicts) -> dict[str, Series]:
    """Start the stacks of a case, check each, measure them in turn, and hold them to what they have stored."""
    print(f"\n== {case.title}: {case.clients} clients, model {case.model!r}, {size.rounds} x {size.seconds:.0f} s")
    answer = spoken_answer(deployment, case.model)
    servers = [started(deployment, name, case, ack, answer) for name in case.stacks]
    load = Load(case.clients, size.seconds, size.warm_s, case.rate)
    series = alternate(deployment, servers, load, size.rounds)
    for server in servers:
        held_to_its_rows(server, series[server.name].samples, f"{case.name}: {server.name}", verdicts)
        server.process.stop()
    print_table(series)
    return series


def alternate(deployment: Deployment, servers: Sequence[Server], load: Load, rounds: int) -> dict[str, Series]:
    """Put the load on one server after the other, so many times; the samples by the names of the servers."""
    series: dict[str, Series] = {server.name: Series([]) for server in servers}
    for _ in range(rounds):
        for server in servers:
            series[server.name].samples.append(sample(deployment, server, load))
    return series


def further_token_us(deployment: Deployment, size: Size, ack: str, verdicts: Verdicts) -> float:
    """CPU of a token beyond the fiftieth of a streamed turn on a saturated core, in us: median of the rounds."""
    print(f"\n== further tokens: {TOKENS} and {MORE_TOKENS}, saturated, {size.rounds} x {size.seconds:.0f} s")
    servers = []
    for tokens in (TOKENS, MORE_TOKENS):
        case = replace(SATURATED, name=f"tokens_{tokens}", model=f"mock;gap=5;tokens={tokens}")
        server = started(deployment, "ours", case, ack, spoken_answer(deployment, case.model))
        servers.append(replace(server, target=replace(server.target, name=f"{tokens} tokens")))
    series = alternate(deployment, servers, Load(SATURATED.clients, size.seconds, size.warm_s), size.rounds)
    for server in servers:
        held_to_its_rows(server, series[server.name].samples, server.name, verdicts)
        server.process.stop()
    print_table(series)
    few, many = (series[server.name].samples for server in servers)
    return median(each_token_us(more.cpu_ms - less.cpu_ms) for less, more in zip(few, many, strict=True))


def each_token_us(more_ms: float) -> float:
    """What each of the further tokens costs in us, of which all together cost so many ms."""
    return more_ms * 1e3 / (MORE_TOKENS - TOKENS)


def started(deployment: Deployment, name: str, case: Case, ack: str, answer: str) -> Server:
    """A stack of a case that has passed the turn check."""
    database = f"{name}_{case.name}"
    change = with_ack(deployment, database, ack)
    if name == "ours":
        server = deployment.service(database, case.model, change=change)
    elif name == "hosted":
        own = {"PLAIN_GRAPH_MODEL": case.model, "PLAIN_GRAPH_MODEL_URL": deployment.model_url}
        server = deployment.service(database, case.model, change=hosting(change), variables=own)
    else:
        server = deployment.comparator(name, case.model, database)
    server = replace(server, target=replace(server.target, name=name))
    return checked(server if case.streamed else server.whole, answer)


def held_to_its_rows(server: Server, samples: Sequence[Sample], name: str, verdicts: Verdicts) -> None:
    """Nothing failed, and every turn that was answered is in Postgres: two rows each, the turn check's four too."""
    wanted = 4 + 2 * sum(one.turns_in_all for one in samples)
    wait_for(lambda: row_count(server) >= wanted, True)
    lost = max(0, wanted - row_count(server))  # a failed turn has rows, too, which are no answers
    failures = [failure for one in samples for failure in one.failures]
    for failure in failures[:3]:
        print(f"{name}: {failure[:300]}")
    verdicts.hold(f"{name}: failed turns, rows not in Postgres", len(failures) + lost, 0, "")


def print_table(series: dict[str, Series]) -> None:
    """One line a stack; ratios are medians over rounds against the first."""
    first = next(iter(series.values()))
    head = ("stack", "CPU ms/turn", "spread", "ratio", "turns/s/core", "turns/s", "frames", "p50 ms", "p99 ms", "core")
    print("{:14} {:>11} {:>15} {:>6} {:>12} {:>8} {:>6} {:>8} {:>8} {:>5}  doubts".format(*head))
    for name, one in series.items():
        print(
            f"{name:14} {one.cpu_ms:11.2f} {one.spread:>15} {one.ratio(first):6.3f} "
            f"{one.middle('turns_per_core_s'):12.1f} {one.middle('turns_per_s'):8.1f} "
            f"{one.middle('frames_per_turn'):6.1f} {one.middle('p50_ms'):8.1f} {one.middle('p99_ms'):8.1f} "
            f"{one.middle('service_share'):5.0%}  {one.doubts}"
        )


def hold_ratios(case: Case, series: dict[str, Series], verdicts: Verdicts, slack: float) -> None:
    """What is asked of ours beside the others of a case."""
    if case.name == HOSTED.name:
        ratio = series["hosted"].ratio(series["naive"])
        verdicts.hold("hosted graph, saturated: CPU ours / naive", ratio, HOSTED_BOUND * slack, "x")
        return
    ours = series["ours"]
    if case.name == CALM.name:
        title = f"streamed, {RATE:.0f} turns/s: CPU ours / naive"
        verdicts.hold(title, ours.ratio(series["naive"]), CALM_BOUND * slack, "x")
    elif case.streamed:
        title = "streamed, saturated: CPU ours"
        verdicts.hold(f"{title} / naive", ours.ratio(series["naive"]), SATURATED_BOUND * slack, "x")
        verdicts.hold(f"{title} / floor", ours.ratio(series["floor_asgi"]), FLOOR_BOUND * slack, "x")
    else:
        more = series["original_like"].ratio(ours)
        verdicts.hold_at_least("whole message: turns/s/core ours / original", more, WHOLE_BOUND / slack, "x")


def hold_tokens(token_us: float, verdicts: Verdicts, slack: float) -> None:
    """What is asked of a further token."""
    verdicts.hold(f"streamed, saturated: a token above {TOKENS}", token_us, TOKEN_BOUND_US * slack, "us")


def print_stage() -> None:
    """What the figures belong to: machine, Python, and the comparators as they are, by hash."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load average at the start {load}")
    for path in sorted(COMPARATORS.glob("*.py")):
        print(f"{hash_of(path)}  {path.name}")


def hash_of(path: Path) -> str:
    """The first 12 digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def main() -> int:
    """All cases; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one round of short windows, bounds five times as wide")
    parser.add_argument("--ack", choices=("spool", "db", "none"), default="spool", help="what `final` waits for")
    names = [*(case.name for case in CASES), TOKENS_CASE]
    parser.add_argument("--only", choices=names, action="append", help="this comparison; may be given again")
    options = parser.parse_args()
    chosen = options.only or names
    size = SHORT if options.short else FULL
    verdicts = Verdicts()
    print_stage()
    with deployed() as deployment:
        cases = [case for case in CASES if case.name in chosen]
        results = [(case, compare(deployment, case, size, options.ack, verdicts)) for case in cases]
        tokens = [further_token_us(deployment, size, options.ack, verdicts)] if TOKENS_CASE in chosen else []
    print()
    for case, series in results:
        hold_ratios(case, series, verdicts, size.slack)
    for token_us in tokens:
        hold_tokens(token_us, verdicts, size.slack)
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
