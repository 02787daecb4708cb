"""What the relays, the clients, the kernel and Postgres say of each line of the KPI summary."""

import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import psycopg

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.deployment import rss_mb
from tests.bench.truth_load import Clients, ClientTurn
from tests.bench.truth_search import SearchEvidence
from tests.bench.truth_search import rows as search_rows
from tests.bench.truth_stage import (
    ANSWERS,
    BLOCKED_S,
    DELAYS_MS,
    FLUSH_S,
    PRICES,
    TITLES,
    TOOLED,
    Used,
    Watched,
)
from tests.bench.truth_table import Figures, Row, timer
from tests.support.odd_agent import TALK

Record = dict[str, Any]
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CALL = re.compile(r"^(\d+\.\d+) (pwrite64|fdatasync|fsync)\(\d+<([^>]*)>(.*)\) = .*<(\d+\.\d+)>$", re.MULTILINE)
_TOGETHER_S = 0.01
"""Writes that follow one another sooner than this are of one commit."""
_COLLECTED = re.compile(r"collected in (\d+\.\d+) s")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_STALLS_S = 0.1
_AT_ONCE_S = 0.06
"""A search is sooner at the embedder's relay if no other is under way, and an embedding takes 1.5 s."""
_PING = ";"
_NEW = ("LOGIN", "select pg_catalog.version()", "select current_schema()", "show ", "SHOW ")
"""What begins a connection: a part of the wait for it."""


@dataclass(slots=True)
class Process:
    """A service as the kernel saw it right after its summary, with what it said itself; `since` and `until` are its
    start and that moment."""

    cpu_pct: float
    loop_pct: float
    rss_mb: float
    vms_mb: float
    open_fds: int
    threads: int
    summary: dict[str, Figures] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    collections_s: list[float] = field(default_factory=list)
    since: float = 0.0
    until: float = 0.0

    @classmethod
    def of(cls, service: Watched, used: Used) -> "Process":
        """The process now; CPU of all its threads, and of its loop's, since its first window began."""
        pid, began = service.pid, service.began
        seconds = used.at - began.at
        proc = Path(f"/proc/{pid}")
        vms_pages = int((proc / "statm").read_text().split()[0])
        return cls(
            cpu_pct=(used.cpu_s - began.cpu_s) / seconds * 100,
            loop_pct=(used.loop_s - began.loop_s) / seconds * 100,
            rss_mb=rss_mb(pid),
            vms_mb=vms_pages * _PAGE / 2**20,
            open_fds=len(list((proc / "fd").iterdir())),
            threads=len(list((proc / "task").iterdir())),
        )


@dataclass(frozen=True, slots=True)
class Database:
    """What Postgres says of itself after the run: exchanges it has, connections by application."""

    exchanges: frozenset[str]
    connections: dict[str, int]

    @classmethod
    def of(cls, dsn: str) -> "Database":
        """Ask it, past the relays."""
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("SELECT DISTINCT exchange_id FROM session_history").fetchall()
            count = "SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1"
            return cls(frozenset(str(row[0]) for row in rows), dict(connection.execute(count).fetchall()))


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A connection of a pool as it was in use once: the wait for it, and the statements on it. Seconds."""

    begun: float
    waited_s: float
    statements: Sequence[Record]

    @property
    def ended(self) -> float:
        """The end of its last statement."""
        return max((one["ended"] for one in self.statements), default=self.begun + self.waited_s)

    def has(self, sql: str, value: str = "") -> bool:
        """Whether one of its statements begins so, with this among its first parameters."""
        return any(
            one["sql"].lstrip().startswith(sql) and (not value or any(value in said for said in one.get("values", ())))
            for one in self.statements
        )


def borrowed(records: Sequence[Record], *, pinged: bool) -> list[Borrowed]:
    """The uses of the connections that these statements went over. A pool that pings its connections does so at the
    beginning of each use; of another one each transaction is a use, for which the wait is not seen (0)."""
    found = []
    by_link = defaultdict(list)
    for record in records:
        by_link[record["link"]].append(record)
    for link in by_link.values():
        link.sort(key=lambda one: one["begun"])
        uses: list[list[Record]] = []
        fresh = False
        for record in link:
            begins = record["sql"] == "LOGIN" or (
                not fresh and record["sql"] == (_PING if pinged else "BEGIN")
            )  # fmt: skip
            if begins:
                uses.append([])
            fresh = record["sql"].startswith(_NEW) or (fresh and record["sql"] == "ROLLBACK")
            if uses:
                uses[-1].append(record)
        found += [_use(use) for use in uses]
    return sorted(found, key=lambda use: use.begun)


def _use(records: Sequence[Record]) -> Borrowed:
    begun, ready = records[0]["begun"], records[0]["begun"]
    statements: list[Record] = []
    opening: Record | None = None
    for record in records:
        sql = record["sql"]
        if not statements and (sql == _PING or sql.startswith(_NEW) or (opening is None and sql == "ROLLBACK")):
            ready, opening = record["ended"], None
        elif sql == "BEGIN":
            opening = record
        elif sql != "ROLLBACK":
            statements.append(record if opening is None else record | {"begun": opening["begun"]})
            opening = None
    return Borrowed(begun, ready - begun, statements)


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush of the log as strace wrote it: of which thread, when it began, on our clock, and its seconds with the
    delay and with what was written just before it."""

    thread: int
    begun: float
    took_s: float


def flushes_in(calls: Mapping[int, str], clocks_apart_s: float) -> list[Flush]:
    """Those of all threads. Where the log begins anew its head is flushed for itself: nobody waits for that."""
    return [flush for thread, lines in calls.items() for flush in _flushes_of(thread, lines, clocks_apart_s)]


def _flushes_of(thread: int, lines: str, clocks_apart_s: float) -> Iterator[Flush]:
    writing = ended = float("-inf")
    of_head = False
    for at, call, path, arguments, took in _CALL.findall(lines):
        now, took_s = float(at), float(took)
        if now - ended > _TOGETHER_S:
            writing = now
        if call == "pwrite64":
            of_head = of_head or (path.endswith("-wal") and arguments.endswith(", 32, 0"))
            ended = now + took_s
            continue
        ended = now + took_s + FLUSH_S
        if path.endswith("-wal"):
            if not of_head:
                yield Flush(thread, writing - clocks_apart_s, ended - writing)
            of_head = False
        writing = ended


def collections_in(output: str) -> list[float]:
    """The seconds of each garbage collection between the line of a service's start and its summary, as the interpreter
    wrote them."""
    window = output.partition("[KPI][START]")[2].partition("[KPI][SUMMARY]")[0]
    return [float(seconds) for seconds in _COLLECTED.findall(window)]


def stalls_in(pings: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Each time that pings went unanswered for 100 ms: since when, and until when. What the pinging process was itself
    late with is taken off."""
    found: list[tuple[float, float]] = []
    for due, late_s, own_s in sorted(pings):
        if late_s - own_s > _STALLS_S and not (found and due < found[-1][1]):
            found.append((due, due + late_s))
    return found


@dataclass
class Evidence:
    """All that was seen of a run."""

    clients: Clients
    records: dict[str, list[Record]]
    told: dict[str, Process]
    flushes: Sequence[Flush]
    database: Database
    pings: Sequence[tuple[float, float, float]]
    spool_bytes: int
    places: int
    commit: str
    search: SearchEvidence

    def during(self, tap: str, service: str = "agentic") -> list[Record]:
        """What passed a relay within the service's window."""
        process = self.told[service]
        return [one for one in self.records[tap] if one["begun"] >= process.since and one["ended"] <= process.until]

    @cached_property
    def reads(self) -> list[Borrowed]:
        """The agentic pool of reads."""
        rows = [one for one in self.during("agentic_sql") if one["application"] == "turnwise-agentic-main"]
        return borrowed(rows, pinged=True)

    @cached_property
    def reads_of(self) -> dict[str, list[Borrowed]]:
        """The same by the session that they are about."""
        found = defaultdict(list)
        for use in self.reads:
            for session_id in {one["values"][0] for one in use.statements if one.get("values")}:
                found[session_id].append(use)
        return found

    @cached_property
    def batches(self) -> list[Borrowed]:
        """The batcher's transactions."""
        rows = [one for one in self.during("agentic_sql") if one["application"] == "turnwise-agentic-batch"]
        return borrowed(rows, pinged=False)

    @cached_property
    def knowledge_uses(self) -> list[Borrowed]:
        """Both pools of knowledge flow."""
        rows = [one for one in self.during("knowledge_sql", "knowledge") if "migrate" not in one["application"]]
        return borrowed([one for one in rows if one["application"].startswith("turnwise-knowledge")], pinged=True)

    @cached_property
    def answers(self) -> dict[int, list[Record]]:
        """Calls of the model by turn, titles aside."""
        return self._by_mark([one for one in self.during("model") if one.get("model") != TITLES])

    @cached_property
    def stalls(self) -> list[tuple[float, float]]:
        """When the loop of the agentic service answered nobody."""
        return stalls_in(self.pings)

    def read_at(self, came: float) -> float:
        """When the agentic service could read what came: during a stall at its end."""
        return next((until for since, until in self.stalls if since <= came <= until), came)

    def calls_of(self, turn: ClientTurn) -> list[Record]:
        """What a turn asked others, in order; of one that asks nobody what its agent does, which nobody else sees."""
        if turn.agent in _ALONE:
            took_s = BLOCKED_S if turn.agent == "block" else 0.0
            return [{"begun": turn.asked, "ended": turn.asked + took_s, "block": True}]
        calls = [*self.searches.get(turn.mark, ()), *self.answers.get(turn.mark, ())]
        return sorted(calls, key=lambda one: float(one["begun"]))

    @cached_property
    def streamed(self) -> list[ClientTurn]:
        """The turns whose answers a model streamed."""
        return [turn for turn in self.clients.finished if turn.agent not in _ALONE]

    @cached_property
    def searches(self) -> dict[int, list[Record]]:
        """Searches by turn."""
        return self._by_mark([one for one in self.during("knowledge") if one["path"].endswith("/vector/search")])

    @staticmethod
    def _by_mark(records: Sequence[Record]) -> dict[int, list[Record]]:
        found = defaultdict(list)
        for record in records:
            if record["marks"]:
                # A prompt has the questions before, too: the newest is the one that is asked.
                found[record["marks"][-1]].append(record)
        return found


_ALONE = ("block", "talk")
"""Agents that ask nobody."""
_PHASES = """
    session_read agent_init history_restore llm_invoke llm_invoke_title vector_search vector_rerank kf_vector_search
    kf_vector_rerank answer_general_only answer_no_results answer_no_sources answer_with_sources stream_agent_response
    persist_tx stream_total session_list session_write history_get attachments_list_on_delete embed_query os_query
"""
NAMES = (
    *(f"phase={name}" for name in _PHASES.split()),
    *("app.turn_latency_ms", "app.ttft_ms", "app.stream_gap_ms", "app.ws_send_ms", "app.overhead_ms"),
    *("llm.ttft_ms", "llm.request_latency_ms", "llm.pool_wait_ms", "tokens", "cost", "turns|"),
    *("event_loop_lag_ms", "event_loop_busy_pct", "event_loop_stall", "persist_pool_wait_ms", "persist_sql_ms"),
    *("persist_queue_depth", "persist_oldest_ms", "persist_lost", "persist_lag_ms", "persist_batch", "persist_retries"),
    *("persist_replayed", "persist_dead_letters", "rank_conflicts", "db_pool=", "ws_connections", "turns_inflight"),
    *("kf.requests|route=search", "kf.requests|route=rerank", "process of", "app_gc_pause_seconds", "app_build_info"),
    *("spool_ack_ms", "spool_records", "spool_bytes", "spool_commit_ms", "turn_unattributed_ms", "admission_wait_ms"),
    *("turns_queued", "replay_events", "replay_bytes", "outbox_bytes", "embed", "embed_queue", "rerank_queue"),
    *(f"cache|cache={name}" for name in ("graph", "history", "jwt", "jwks")),
    *("cache|cache=statement", "cache|cache=mcp_tools", "embed_texts"),
)
"""How the lines begin, or what is in them, that the summary is known by: each needs a row."""


def rows_of(evidence: Evidence) -> list[Row]:
    """The table; a line of `NAMES` at which nobody looks is a miss."""
    parts = (
        *(_turns, _streams, _models, _knowledge, _reads, _persistence, _rest, _counters, _pools, _search, _loop),
        *(_unread, _tokens),
    )  # fmt: skip
    rows = [row for part in (*parts, _processes) for row in part(evidence)]
    rows += search_rows(evidence.search)
    told = [key for process in evidence.told.values() for key in process.summary]
    for name in NAMES:
        if not any(row.line.startswith(name) or f"|{name}" in row.line for row in rows):
            printed = any(key.startswith(name) or f"|{name}" in key for key in told)
            rows.append(Row(name, "any", 1.0 if printed else None, None, "nobody yet"))
    return rows


def _phase(name: str) -> str:
    return f"app.phase_latency_ms|phase={name}"


def _took(record: Record) -> float:
    return float(record["ended"] - record["begun"])


def _turns(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    turns = evidence.clients.finished
    for agent in sorted({turn.agent for turn in turns}):
        mine = [turn for turn in turns if turn.agent == agent]
        key = f"app.turn_latency_ms|agent={agent}"
        if agent != "talk":  # its client has it only when it reads again
            yield from timer(key, told.get(key), [turn.ended - turn.asked for turn in mine], "clients")
        yield Row(f"turns|agent={agent}", "count", _count(told, f"turns|agent={agent}"), len(mine), "clients")
        if agent in _ALONE:
            continue
        key = f"app.ttft_ms|agent={agent}"
        native = all(turn.native for turn in mine)
        source = "clients" if native else "clients' ask to first token at the model's relay"
        yield from timer(key, told.get(key), [_first(evidence, turn) - turn.asked for turn in mine], source)
    whole = [turn.ended - turn.asked for turn in turns]
    yield from timer(_phase("stream_total"), told.get(_phase("stream_total")), whole, "clients")
    overhead = [turn.ended - turn.asked - _elsewhere(evidence, turn) for turn in turns]
    yield from timer("app.overhead_ms", told.get("app.overhead_ms"), overhead, "clients less model and search relays")
    frames = [turn.unattributed_ms / 1e3 for turn in turns if turn.unattributed_ms is not None]
    line = told.get("turn_unattributed_ms", {})
    yield Row("turn_unattributed_ms", "count", line.get("count"), len(turns), "clients")
    why = "the rest of the service's own account: what others time is taken from it; frames say it of each native turn"
    yield Row("turn_unattributed_ms", "avg", line.get("avg"), None, f"frames: {fmean(frames) * 1e3:.2f}", reason=why)
    most = min(evidence.places, evidence.clients.most_running)
    yield Row("turns_inflight", "max", line_of(told, "turns_inflight", "max"), most, "clients, and max_turns")
    yield Row("turns_inflight", "last", line_of(told, "turns_inflight", "last"), 0, "clients")


def _first(evidence: Evidence, turn: ClientTurn) -> float:
    if turn.first is not None:
        return turn.first
    return max(float(one.get("text_at", 0.0)) for one in evidence.answers[turn.mark])


def _elsewhere(evidence: Evidence, turn: ClientTurn) -> float:
    return sum(_took(one) for one in evidence.calls_of(turn) if "block" not in one)


def _streams(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    turns = evidence.streamed
    gaps = [turn.gap_s if turn.native else _relayed_gap(evidence, turn) for turn in turns]
    at_once = [turn for turn in evidence.clients.finished if turn.agent == "talk"]
    gaps += [0.0 for _ in at_once]
    yield from timer("app.stream_gap_ms", told.get("app.stream_gap_ms"), gaps, "native clients, else model's relay")
    deltas = [turn.deltas for turn in turns if turn.native]
    texts = [evidence.answers[turn.mark][-1].get("texts", 0) for turn in turns if not turn.native]
    seen = sum(deltas) + sum(texts) + len(at_once) * len(TALK)
    yield Row("turn_deltas", "count", _count(told, "turn_deltas"), seen, "native clients, else model's relay")
    runs = []
    for turn in evidence.clients.finished:
        calls = evidence.calls_of(turn)
        runs.append(max(one["ended"] for one in calls) - calls[0]["begun"])
    key = _phase("stream_agent_response")
    yield from timer(key, told.get(key), runs, "relays: first request to last answer of a turn")
    line = told.get("admission_wait_ms", {})
    yield Row("admission_wait_ms", "count", line.get("count"), len(evidence.clients.finished), "clients")
    waits, known = [], set()
    for turn in sorted(turns, key=lambda one: one.asked):
        waits.append(_slot_wait(evidence, turn, first=turn.session_id not in known))
        known.add(turn.session_id)
    avg = sum(waits) * 1e3 / len(evidence.clients.finished)
    yield Row("admission_wait_ms", "avg", line.get("avg"), avg, "clients' ask, or its last read, to its first request")
    yield Row("turns_queued", "last", line_of(told, "turns_queued", "last"), 0, "clients")


def _slot_wait(evidence: Evidence, turn: ClientTurn, *, first: bool) -> float:
    """Of the session's first turn here without its reads, which come before; others read nothing."""
    begun = float(evidence.calls_of(turn)[0]["begun"])
    if turn.agent == "Sammy":  # may first have to ask which tools there are
        others = [one["begun"] for one in evidence.during("tools") if one.get("call") != "tools/call"]
        found = [at for at in others if turn.asked <= at <= begun - DELAYS_MS["tools"] / 1e3]
        begun = min([begun, *found])
    read = [use.ended for use in evidence.reads_of[turn.session_id] if turn.asked <= use.begun and use.ended <= begun]
    return begun - max(read if first else (), default=turn.asked)


def _relayed_gap(evidence: Evidence, turn: ClientTurn) -> float:
    return float(evidence.answers[turn.mark][-1].get("gap", 0.0))


def _models(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    calls = evidence.during("model")
    source = "relay before the model"
    for model in sorted({one["model"] for one in calls if "model" in one}):
        mine = [one for one in calls if one.get("model") == model]
        key = f"llm.request_latency_ms|model={model}"
        yield from timer(key, told.get(key), list(map(_took, mine)), source)
        key = f"llm.ttft_ms|model={model}"
        yield from timer(
            key, told.get(key), [one["text_at"] - one["begun"] for one in mine if "text_at" in one], source
        )
        for place, kind in enumerate(("input", "output")):
            key = f"tokens|model={model}|type={kind}"
            spent = sum(one["usage"][place] for one in mine if "usage" in one)
            yield Row(key, "count", _count(told, key), spent, "usage in the model's relay")
    agents = [one for one in calls if one.get("model") in (ANSWERS, TOOLED)]
    yield from timer(_phase("llm_invoke"), told.get(_phase("llm_invoke")), list(map(_took, agents)), source)
    titles = [_took(one) for one in calls if one.get("model") == TITLES]
    yield from timer(_phase("llm_invoke_title"), told.get(_phase("llm_invoke_title")), titles, source)
    (price,) = PRICES
    priced = [one["usage"] for one in calls if one.get("model") == price["model"] and "usage" in one]
    cost = sum(read * price["input_per_million"] + wrote * price["output_per_million"] for read, wrote in priced) / 1e6
    yield Row("cost", "count", _count(told, f"cost|model={price['model']}"), cost, "usage in the relay by the price")
    line = told.get("llm.pool_wait_ms")
    why = "" if line else "max_connections of the configuration is above the clients: no call waits, and none is told"
    yield Row(
        "llm.pool_wait_ms", "count", line_of(told, "llm.pool_wait_ms", "count") or 0, 0, "configuration", reason=why
    )


_ANSWERS = ("answer_with_sources", "answer_general_only", "answer_no_results", "answer_no_sources")


def _knowledge(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    searches = [one for calls in evidence.searches.values() for one in calls]
    good = [one for one in searches if one["status"] == 200]
    bad = [one for one in searches if one["status"] != 200]
    source = "relay before knowledge flow"
    for name in ("vector_search", "kf_vector_search"):
        for status, some in (("", good), ("|status=error", bad)):
            key = _phase(name) + status
            if some:
                yield from timer(key, told.get(key), list(map(_took, some)), source)
    reranks = _reranks(evidence, good)
    for name in ("vector_rerank", "kf_vector_rerank"):
        yield from timer(_phase(name), told.get(_phase(name)), reranks, "relay before the reranker, 0 without hits")
    by_kind = defaultdict(list)
    for mark, calls in evidence.answers.items():
        if (turn := evidence_turn(evidence, mark)) is not None and turn.agent in ("Rico", "Rita"):
            by_kind[_kind(evidence, mark)].append(_took(calls[-1]))
    for name in _ANSWERS:
        yield from timer(_phase(name), told.get(_phase(name)), by_kind[name], "model's relay, by what the search found")


def evidence_turn(evidence: Evidence, mark: int) -> ClientTurn | None:
    """The client's turn of a mark."""
    return next((turn for turn in evidence.clients.turns if turn.mark == mark), None)


def _kind(evidence: Evidence, mark: int) -> str:
    searches = evidence.searches.get(mark)
    if not searches:
        return "answer_general_only"
    if searches[-1]["status"] != 200:
        return "answer_no_sources"
    return "answer_with_sources" if searches[-1].get("bytes", 0) > 2 else "answer_no_results"


def _reranks(evidence: Evidence, searches: Sequence[Record]) -> list[float]:
    by_mark = {mark: one for one in evidence.during("rerank", "knowledge") for mark in one["marks"]}
    return [_took(by_mark[one["marks"][-1]]) if one["marks"][-1] in by_mark else 0.0 for one in searches]


_GET, _IDS, _TOUCH = (
    "SELECT session_id, user_id, agent_id, session_data",
    "SELECT exchange_id FROM",
    "UPDATE session SET used",
)
_HELD = "SELECT count(*) AS held FROM documents"
_REMEMBERED = "SELECT exchange_id, role, metadata_json"


def _reads(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    read, restored, known = [], [], set()
    for turn in sorted(evidence.clients.finished, key=lambda one: one.asked):
        began = min(one["begun"] for one in evidence.calls_of(turn))
        mine = [use for use in evidence.reads_of[turn.session_id] if turn.asked <= use.begun and use.ended <= began]
        first = [use for use in mine if any(use.has(sql, turn.session_id) for sql in (_GET, _IDS, _TOUCH))]
        if first and turn.session_id not in known:
            read.append(max(use.ended for use in first) - first[0].begun)
        known.add(turn.session_id)
        restored.append(sum(use.ended - use.begun for use in mine if use.has(_REMEMBERED)))
    source = "relay before Postgres"
    yield from timer(_phase("session_read"), told.get(_phase("session_read")), read, source)
    yield from timer(_phase("history_restore"), told.get(_phase("history_restore")), restored, source, shares=())
    misses = sum(1 for one in restored if one)
    for result, seen in (("hit", len(restored) - misses), ("miss", misses)):
        key = f"cache|cache=history|result={result}"
        yield Row(key, "count", _count(told, key), seen, f"clients' turns and {source}")


def _persistence(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    commits = [(use, use.statements[-1]["ended"]) for use in evidence.batches if use.has("COMMIT")]
    source = "relay before Postgres"
    key = _phase("persist_tx")
    yield from timer(key, told.get(key), [ended - use.begun for use, ended in commits], source)
    committed: dict[str, float] = {}
    records = 0
    for use, ended in commits:
        for one in use.statements:
            for exchange in one.get("exchanges", ()):
                committed.setdefault(exchange, ended)
            records += one["sql"].startswith("UPDATE session SET updated_at")
            records += len(one.get("exchanges", ())) if one["sql"].startswith("WITH record") else 0
    turns = evidence.clients.finished
    yield Row("persist_batch", "count", _count(told, "persist_batch"), records, source)
    stored = sum(turn.exchange_id in evidence.database.exchanges for turn in turns)
    yield Row("persist_turns", "count", _count(told, "persist_turns"), stored, "rows in session_history")
    handed = {turn.mark: evidence.calls_of(turn)[-1]["ended"] for turn in turns}
    lags = [committed[turn.exchange_id] - handed[turn.mark] for turn in turns if turn.exchange_id in committed]
    yield from timer("persist_lag_ms", told.get("persist_lag_ms"), lags, "model's last byte to commit, by the relays")
    # Both come the same way, so that its length does not count; of others it is from the model's last byte.
    said = {turn.mark: turn.last_delta for turn in turns if turn.native and turn.agent not in _ALONE}
    acks = [turn.ended - (said.get(turn.mark) or handed[turn.mark]) for turn in turns if turn.agent != "talk"]
    source = "native clients' last delta to their final, else model's last byte to the client's final"
    for key in ("spool_ack_ms", _phase("spool_ack")):
        line = told.get(key, {})
        yield Row(key, "count", line.get("count"), len(turns), "clients")
        yield from timer(key, line, acks, source)[1:]
    process = evidence.told["agentic"]
    flushes = [one for one in evidence.flushes if process.since <= one.begun <= process.until]
    writer = Counter(one.thread for one in flushes).most_common(1)
    took = [one.took_s for one in flushes if one.thread == writer[0][0]]
    yield from timer("spool_commit_ms", told.get("spool_commit_ms"), took, "strace, flushes of the log by its writer")
    yield Row("spool_bytes", "last", line_of(told, "spool_bytes", "last"), evidence.spool_bytes, "files on disk")
    for key in ("persist_queue_depth", "persist_oldest_ms", "spool_records"):
        yield Row(key, "last", line_of(told, key, "last"), 0, "all exchanges are in session_history")
    for key in ("persist_lost", "persist_dead_letters", "rank_conflicts", "persist_retries", "persist_replayed"):
        seen = len(turns) - stored if key == "persist_lost" else 0
        yield Row(key, "count", _count(told, key), seen, "rows in session_history")


def _rest(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    calls = evidence.clients.calls
    source = "relay before Postgres, within the client's call"

    def span(what: str, sql: str) -> list[float]:
        spans = []
        for call in (one for one in calls if one.what == what):
            mine = [
                use for use in evidence.reads if call.begun <= use.begun and use.ended <= call.ended and use.has(sql)
            ]
            value = call.session_id
            mine = [use for use in mine if what == "list" or use.has(sql, value)]
            ends = [use.ended for use in mine]
            spans.append(max(ends) - mine[0].begun if mine else 0.0)
        return spans

    yield from timer(_phase("session_list"), told.get(_phase("session_list")), span("list", "WITH pending"), source)
    history = span("history", "WITH RECURSIVE wanted")
    yield from timer(_phase("history_get"), told.get(_phase("history_get")), history, source, shares=())
    listed = [use for use in evidence.reads if use.has("SELECT document_uid, l.user_id")]
    key = _phase("attachments_list_on_delete")
    yield from timer(key, told.get(key), [use.ended - use.begun for use in listed], "relay before Postgres")
    # A user's calls wait for one another before they are one's turn, so that is no part of the writing.
    writes = span("create", "INSERT INTO session (") + [
        call.ended - call.begun for call in calls if call.what == "prefer"
    ]
    source = "relay before Postgres for new sessions, clients' calls for preferences"
    yield from timer(_phase("session_write"), told.get(_phase("session_write")), writes, source)


def _counters(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    clients = evidence.clients
    asked = Counter(call.what for call in clients.calls)
    agents = len({turn.agent for turn in clients.turns})
    lookups = len(clients.turns) + asked["create"]
    init = told.get(_phase("agent_init"), {})
    yield Row(_phase("agent_init"), "count", init.get("count"), len(clients.turns), "clients")
    for result, seen in (("hit", lookups - agents), ("miss", agents)):
        key = f"cache|cache=graph|result={result}"
        yield Row(key, "count", _count(told, key), seen, "clients: turns and new sessions, agents")
        yield Row(f"agent_cache_{result}_total", "count", _count(told, f"agent_cache_{result}_total"), seen, "clients")
    yield Row(
        "chat_user_message_total", "count", _count(told, "chat_user_message_total"), len(clients.turns), "clients"
    )
    searches = [one for calls in evidence.searches.values() for one in calls if one["status"] == 200]
    yield Row(
        "rag_search_total", "count", _count(told, "rag_search_total"), len(searches), "relay before knowledge flow"
    )
    empty = sum(one.get("bytes", 0) <= 2 for one in searches)
    yield Row("rag_search_empty_total", "count", _count(told, "rag_search_empty_total"), empty, "its answers")
    yield Row(
        "ws_connections",
        "max",
        line_of(told, "ws_connections", "max"),
        clients.most_sockets + 1,
        "clients, with the one that pings",
    )
    yield Row("ws_connections", "last", line_of(told, "ws_connections", "last"), clients.open_sockets, "clients")
    tools = [one for one in evidence.during("tools") if one.get("call") == "tools/call"]
    key = "tool.call_latency_ms|server=samples|tool=current_time"
    yield from timer(key, told.get(key), list(map(_took, tools)), "relay before the tools")
    keys = [key for key in told if key.startswith("cache|cache=mcp_tools")]
    sammy = [turn for turn in clients.finished if turn.agent == "Sammy"]
    model = sum(len(evidence.answers[turn.mark]) for turn in sammy)
    yield Row(
        "cache|cache=mcp_tools", "count", sum(_count(told, key) or 0 for key in keys), len(sammy) + model,
        "Sammy's turns and model calls",
    )  # fmt: skip


def _pools(evidence: Evidence) -> Iterator[Row]:
    source = "relay before Postgres"
    for service, uses in (("agentic", [*evidence.reads, *evidence.batches]), ("knowledge", evidence.knowledge_uses)):
        told = evidence.told[service].summary
        read_at = evidence.read_at if service == "agentic" else float
        waits = [read_at(use.begun + use.waited_s) - use.begun if use.waited_s else 0.0 for use in uses]
        yield from _named(service, timer("persist_pool_wait_ms", told.get("persist_pool_wait_ms"), waits, source))
        statements = [read_at(one["ended"]) - one["begun"] for use in uses for one in use.statements]
        yield from _named(service, timer("persist_sql_ms", told.get("persist_sql_ms"), statements, source))
    told = evidence.told["agentic"].summary
    seen = len([one for use in [*evidence.reads, *evidence.batches] for one in use.statements])
    looked = [_count(told, f"cache|cache=statement|result={result}") or 0 for result in ("hit", "miss")]
    yield Row("cache|cache=statement", "count", sum(looked), seen, source)
    for pool in ("main", "batch"):
        line = told.get(f"db_pool={pool}", {})
        have = line.get("checked_in", 0) + line.get("checked_out", 0) if line else None
        known = evidence.database.connections.get(f"turnwise-agentic-{pool}", 0)
        yield Row(f"db_pool={pool}", "open", have, known, "pg_stat_activity")


def _named(service: str, rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        yield Row(f"{row.line} of {service}", row.figure, row.told, row.seen, row.source)


def _search(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["knowledge"].summary
    calls = [one for one in evidence.during("knowledge", "knowledge") if one["path"].endswith("/vector/search")]
    source = "relay before knowledge flow, its delay aside"
    for status, some in (
        ("", [one for one in calls if one["status"] == 200]),
        ("|status=rejected", [one for one in calls if one["status"] != 200]),
    ):
        key = f"kf.requests|route=search{status}"
        if some and status:
            # A refusal takes less than its way here and back: its time is not seen.
            yield Row(key, "count", line_of(told, key, "count"), len(some), source)
        elif some:
            yield from timer(key, told.get(key), [one["answered"] - one["begun"] for one in some], source)
    good = [one for one in calls if one["status"] == 200]
    calls = [one for one in evidence.during("knowledge", "knowledge") if one["path"].endswith("/vector/rerank")]
    key = "kf.requests|route=rerank"
    yield from timer(key, told.get(key), [one["answered"] - one["begun"] for one in calls], source)
    key = _phase("vector_rerank")
    asked = [_took(one) for one in evidence.during("rerank", "knowledge") if not one["marks"]]
    seen = [*_reranks(evidence, good), *asked]
    yield from _named("knowledge", timer(key, told.get(key), seen, "relay before the reranker, 0 without hits"))
    embeds = evidence.during("embed", "knowledge")
    yield from timer("embed", told.get("embed"), list(map(_took, embeds)), "relay before the embedder")
    texts = sum(one["inputs"] for one in embeds)
    yield Row("embed_texts", "count", line_of(told, "embed_texts", "count"), texts, "relay before the embedder")
    by_mark = {mark: one for one in embeds for mark in one["marks"]}
    embedded = [(one, by_mark[one["marks"][-1]]) for one in good if one["marks"][-1] in by_mark]
    source = "search at knowledge flow's relay to the embedder's relay"
    # A search that the words answer with nothing does not wait for its vector.
    whole = [embed["ended"] - one["asked"] for one, embed in embedded if embed["ended"] <= one["answered"]]
    yield from timer(_phase("embed_query"), told.get(_phase("embed_query")), whole, source)
    key = f"{_phase('embed_query')}|status=cancelled"
    yield Row(key, "count", line_of(told, key, "count") or 0, len(good) - len(whole), source)
    arrivals = [*((one["asked"], embed) for one, embed in embedded), *_uploaded(evidence, embeds)]
    waits = queued(embeds, arrivals)
    line = told.get("embed_queue", {})
    yield Row("embed_queue", "count", line.get("count"), texts, "relay before the embedder")
    source = f"{source}, where others were under way, less what it takes where none is"
    wait_ms = sum(waits) * 1e3 / texts if texts else None
    yield Row("embed_queue", "avg", line.get("avg"), wait_ms, source)


def queued(embeds: Sequence[Record], asked: Sequence[tuple[float, Record]]) -> list[float]:
    """How long requests to an embedder waited that takes one at a time, each by when it was asked for. One during whose
    way no other ended did not wait, nor one that was there at once; what the latter took on average is the way of
    all."""
    took = [(at, embed["begun"], embed["begun"] - at) for at, embed in asked]
    ways = [seconds for *_, seconds in took if seconds < _AT_ONCE_S]
    way_s = fmean(ways) if ways else 0.0
    ends = [one["ended"] for one in embeds]
    return [
        seconds - way_s if seconds >= _AT_ONCE_S and any(at < end <= begun for end in ends) else 0.0
        for at, begun, seconds in took
    ]


def _uploaded(evidence: Evidence, embeds: Sequence[Record]) -> Iterator[tuple[float, Record]]:
    """The embeddings of uploads, which have no mark: of the one at a time that these clients make. It embeds after it
    has asked what its session holds."""
    held = [one for one in evidence.during("knowledge_sql", "knowledge") if one["sql"].startswith(_HELD)]
    for upload in evidence.during("knowledge", "knowledge"):
        if upload["path"].endswith("/fast/ingest"):
            begun, ended = upload["asked"], upload["ended"]
            at = max((one["ended"] for one in held if begun <= one["begun"] <= ended), default=begun)
            yield from ((at, one) for one in embeds if not one["marks"] and at <= one["begun"] <= ended)


def _unread(evidence: Evidence) -> Iterator[Row]:
    """What clients cause that do not read."""
    told = evidence.told["agentic"].summary
    stalls = [stall.resumed - stall.asked for stall in evidence.clients.stalls]
    turns = evidence.clients.finished
    source = "clients that did not read"
    line = told.get("app.ws_send_ms", {})
    yield Row("app.ws_send_ms", "count", line.get("count"), len(turns), "clients")
    yield Row("app.ws_send_ms", "avg", line.get("avg"), sum(stalls) * 1e3 / len(turns), source)
    yield Row("app.ws_send_ms", "max", line.get("max"), max(stalls) * 1e3, source)
    waiting = max(stall.waiting_bytes for stall in evidence.clients.stalls)
    source = "what they got less what the kernel held"
    yield Row("outbox_bytes", "max", line_of(told, "outbox_bytes", "max"), waiting, source)
    yield Row("outbox_bytes", "last", line_of(told, "outbox_bytes", "last"), 0, "clients")
    unread = [turn for turn in turns if turn.agent == "talk"]
    kept = unread[-1].events + sum(turn.events for turn in turns if turn.agent == "block")
    source = "numbers of their last events, of all since the last answer of 4 MiB: there is room for one"
    yield Row("replay_events", "last", line_of(told, "replay_events", "last"), kept, source)
    why = "what the events weigh in this process' memory, which nobody else can see"
    yield Row("replay_bytes", "last", line_of(told, "replay_bytes", "last"), None, "-", reason=why)


def _tokens(evidence: Evidence) -> Iterator[Row]:
    told = evidence.told["agentic"].summary
    tokens = evidence.clients.tokens
    for cache, hits, misses in (
        ("jwt", tokens.shown - tokens.distinct, tokens.distinct),
        ("jwks", tokens.distinct, 0),
    ):
        for result, seen in (("hit", hits), ("miss", misses)):
            key = f"cache|cache={cache}|result={result}"
            yield Row(key, "count", _count(told, key) or 0, seen, "tokens that clients showed")


def _loop(evidence: Evidence) -> Iterator[Row]:
    process = evidence.told["agentic"]
    told = process.summary
    late = [(seconds - own_s) * 1e3 for _, seconds, own_s in evidence.pings]
    pinged_s = evidence.pings[-1][0] - evidence.pings[0][0]
    idle = nearest_rank(sorted(late), 0.5)
    whole_s = process.until - process.since
    seen = (fmean(late) * pinged_s + idle * (whole_s - pinged_s)) / whole_s
    source = "pings from outside, 100 a second; their median for the rest of the window"
    yield Row("event_loop_lag_ms", "avg", line_of(told, "event_loop_lag_ms", "avg"), seen, source)
    yield Row("event_loop_lag_ms", "max", line_of(told, "event_loop_lag_ms", "max"), max(late), source)
    stalls = len(evidence.stalls)
    yield Row("event_loop_stall", "count", _count(told, "event_loop_stall"), stalls, "pings from outside")
    busy = line_of(told, "event_loop_busy_pct", "avg")
    yield Row("event_loop_busy_pct", "avg", busy, process.loop_pct, "/proc: schedstat of the first thread")


def _processes(evidence: Evidence) -> Iterator[Row]:
    for name, process in evidence.told.items():
        line = process.summary.get("cpu_pct", {})
        for figure in ("cpu_pct", "rss_mb", "vms_mb", "open_fds", "threads"):
            yield Row(f"process of {name}", figure, line.get(figure), getattr(process, figure), "/proc")
        total = Path("/proc/meminfo").read_text().split(maxsplit=2)[1]
        yield Row(f"process of {name}", "rss_pct", line.get("rss_pct"), process.rss_mb * 102400 / int(total), "/proc")
        paused = process.collections_s
        for figure, seen in (
            ("gc_count", len(paused)),
            ("gc_ms", sum(paused) * 1e3),
            ("gc_max_ms", max(paused, default=0.0) * 1e3),
        ):
            yield Row(
                f"app_gc_pause_seconds of {name}",
                figure,
                line.get(figure),
                seen,
                "a callback of our own in the process",
            )
        info = next((key for key in process.exposed if key.startswith("app_build_info{")), "")
        labels = dict(_LABEL.findall(info))
        same = float((labels.get("version"), labels.get("git_sha")) == (version("turnwise"), evidence.commit))
        yield Row(f"app_build_info of {name}", "value", same if info else None, 1.0, "git, and the installed package")


def commit() -> str:
    """The commit that is checked out."""
    return subprocess.run(("git", "rev-parse", "HEAD"), capture_output=True, text=True, check=True).stdout.strip()


def line_of(told: dict[str, Figures], key: str, figure: str) -> float | None:
    """One figure of a line, None where it is not there."""
    return told.get(key, {}).get(figure)


def _count(told: dict[str, Figures], key: str) -> float | None:
    return line_of(told, key, "count")
