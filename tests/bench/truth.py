"""Is every figure true? One run of a whole deployment, and each line of its KPI summaries beside what others saw.

    make bench-truth                  150 clients for 100 s; six minutes in all
    make bench-truth ARGS=--short     20 clients for ten seconds: counts hold on any machine, times on a quiet one

Hypothesis: each figure is within 2 % of what somebody else says, who uses none of our clocks and counters. Control: the
clients' own clocks, relays in a process of their own between all programs (`tests.bench.wiretap`), strace for flushes,
/proc for what a process takes, pings from outside for the loop, a callback for garbage collections, and rows in
Postgres. One summary covers the whole run. What only OpenSearch and the local reranker feed comes from a second
knowledge flow before it (`tests.bench.truth_search`), which needs a JDK and Maven.

Most of what is timed is short beside the noise of a machine. So the run makes it long, equally for both: the relays put
off each answer of Postgres, knowledge flow, the embedder, the reranker and the tools (`truth_stage.DELAYS_MS`), flushes
take 900 ms longer, the model is silent for half a second in the middle of an answer, fewer turns may run than there are
clients, pools ping their connections (the wait for one is then a round trip). When all others have ended, a client
leaves answers of 4 MiB unread, and an agent blocks the loop for seconds. What the service needs itself for each of
these, a few milliseconds, is so below 2 %, and stands in the column `by`. `MISSING` is a line that the service did not
print, `unseen` one whose reason says why nobody else can see it.
"""

import argparse
import asyncio
import json
import pickle
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from tests.bench.deployment import Deployment, deployed
from tests.bench.truth_lines import Database, Evidence, Process, collections_in, commit, flushes_in, rows_of
from tests.bench.truth_load import Clients, Role, Tokens
from tests.bench.truth_search import searched
from tests.bench.truth_stage import Stage, Used, Watched
from tests.bench.truth_table import line_at, printed, samples_of, summary_of
from tests.support.processes import ModuleProcess

_PLACES = 0.7
"""Share of the clients whose turns may run at once: the others wait for a slot."""
_NOWHERE = {"selected_document_libraries_ids": ["of-nobody"]}
_GENERAL = {"search_rag_scope": "general_only"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much load: its seconds, those in which clients begin, their share of 150. `around_s` is left before and
    behind it for starts, unread answers, the `blocks` of the loop, and what is written after the last turn."""

    seconds: float
    ramp_s: float
    factor: float
    around_s: float
    blocks: int


FULL = Size(100.0, 10.0, 1.0, 110.0, 3)
SHORT = Size(10.0, 1.0, 0.13, 100.0, 3)
_STALLS, _STALL_S = 2, 8.0
_STARTS_S = 8.0
"""Left for the interval to begin before the pings do, and for them to be read after."""


def roles(factor: float) -> list[Role]:
    """Who asks: natively and in the compatible protocol, of Georges, Rico and Sammy."""

    def some(clients: int) -> int:
        return max(1, round(clients * factor))

    return [
        Role("Georges", some(83)),
        Role("Carla", some(20), native=False),
        Role("Rico", some(20), contexts=({}, _GENERAL, {}, _NOWHERE)),
        Role("Rita", some(4), native=False),
        Role("Rico", some(3), padding=1000),
        Role("Sammy", some(20)),
    ]


def measured(stack: ExitStack, deployment: Deployment, size: Size) -> Evidence:
    """The run, and all that was seen of it."""
    search = searched(deployment)
    stage = Stage(stack, deployment)
    asked = roles(size.factor)
    stage.fill()
    sessions = earlier_life(stage, asked)
    interval_s = size.seconds + size.around_s
    knowledge = stage.knowledge(interval_s + 10.0)
    places = round(sum(role.clients for role in asked) * _PLACES)
    agentic = stage.agentic(interval_s, under=stage.slow_flushes(), most_turns=places)
    tokens = Tokens(stage.issuer.token)
    clients = Clients(
        agentic.port,
        asked,
        seconds=size.seconds,
        questions=stage.questions,
        first_mark=1000,
        tokens=tokens,
        rerank_url=stage.rerank_url,
    )
    clients.sessions = sessions
    pinged_s = interval_s - _STARTS_S
    tokens.shown += 1
    with ModuleProcess("tests.bench.truth_ping", str(agentic.port), str(pinged_s), tokens.fresh()) as pinger:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(stage.taps.slow_down())
            runner.run(clients.run(ramp_s=size.ramp_s))
            runner.run(clients.run_unread("talk", _STALLS, _STALL_S))
            runner.run(clients.run_alone("block", size.blocks))
            ended = time.perf_counter()
        pings = json.loads(pinger.wait_for_line(r"^pings (.*)$", pinged_s).group(1))
    if ended > agentic.began.at + interval_s - _STARTS_S:
        seen = f"{len(clients.finished)} turns, {dict(clients.failures)}"
        raise RuntimeError(f"a summary came before the load had ended: the machine is too slow for this: {seen}")
    with ThreadPoolExecutor() as threads:
        waiting = {
            "agentic": threads.submit(_seen_after, agentic, "VERDICT", interval_s),
            "knowledge": threads.submit(_seen_after, knowledge, "open_fds", interval_s),
        }
        told = {name: seen.result() for name, seen in waiting.items()}
    records = stage.taps.records(stage.work / "records.jsonl")
    database = Database.of(deployment.postgres.dsn_of("agentic"))
    flushes = flushes_in(stage.flushes(), time.time() - time.perf_counter())
    spooled = sum(file.stat().st_size for file in stage.spool.rglob("*") if file.is_file())
    return Evidence(clients, records, told, flushes, database, pings, spooled, places, commit(), search)


def earlier_life(stage: Stage, asked: Sequence[Role]) -> dict[int, str]:
    """A turn in a session of each second client, by a service that ends then: the next one has to read them."""
    service = stage.agentic(3600.0, model="mock;tokens=5")
    once = [replace(role, contexts=(_GENERAL,), padding=0) for role in asked]
    tokens = Tokens(stage.issuer.token)
    clients = Clients(service.port, once, seconds=0.0, questions=("Hi",), first_mark=1, tokens=tokens)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(clients.run_once())
    service.process.stop()
    return {place: id_ for place, id_ in clients.sessions.items() if place % 2}


def _seen_after(service: Watched, last: str, interval_s: float) -> Process:
    """The process right after its summary."""
    with Used.watched(service.pid) as used:
        service.process.wait_for_line(rf"\[KPI\].*{last}", interval_s)
    now = time.perf_counter()
    written_at = line_at(service.process.output, "[KPI][SUMMARY] cpu_pct", time.time() - now) or now
    # Not with what the summary itself takes, which is behind what it tells.
    seen = Process.of(service, max((one for one in used if one.at <= written_at), default=used[-1]))
    url = f"http://127.0.0.1:{service.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        seen.exposed = samples_of(answer.read().decode())
    seen.summary = summary_of(service.process.output)
    seen.collections_s = collections_in(service.process.output)
    seen.since = service.began.at
    seen.until = line_at(service.process.output, "[KPI][SUMMARY]", time.time() - now) or now
    return seen


def main() -> int:
    """The run and its table; 1 where a figure is off or missing."""
    parser = argparse.ArgumentParser(description="Each KPI line beside what somebody else saw.")
    parser.add_argument("--short", action="store_true", help="few clients, seconds")
    parser.add_argument("--keep", type=Path, help="a file for all that was seen, for `--again`")
    parser.add_argument("--again", type=Path, help="print the table of a run that was kept")
    options = parser.parse_args()
    if options.again:
        evidence = pickle.loads(options.again.read_bytes())  # noqa: S301 - a file of our own
    else:
        with deployed() as deployment, ExitStack() as stack:
            evidence = measured(stack, deployment, SHORT if options.short else FULL)
    if options.keep:
        options.keep.write_bytes(pickle.dumps(evidence))
    rows = rows_of(evidence)
    print("\n".join(printed(rows)))
    if failures := evidence.clients.failures:
        print("failed turns:", dict(failures))
    return 1 if any(row.verdict in ("MISS", "MISSING") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
