"""Every flag of a run, and the groups of options that they make."""

import argparse

from ws_bench.config.arrivals import parse_rate, parse_stages, steady_stages
from ws_bench.config.distributions import FORMS, RandomVariable, parse_distribution
from ws_bench.config.golang import Flags, parse_bool, parse_duration
from ws_bench.config.options import (
    NO_CUT,
    Load,
    Misbehaviour,
    Observe,
    Outputs,
    parse_cut,
    parse_gate,
    parse_goodput,
    parse_percent,
    parse_pids,
    parse_slow_readers,
)
from ws_bench.errors import UsageError

DEFAULT_URL = "ws://127.0.0.1:8000/agentic/v1/chatbot/query/ws"
NATIVE_SUBPROTOCOL = "turnwise.v1"


def run_flags(prog: str, description: str) -> Flags:
    """The flags of a run, for `run` itself and for the commands that start several runs."""
    flags = Flags(prog, description)
    _compatible_flags(flags)
    _load_flags(flags)
    _misbehaviour_flags(flags)
    _watch_flags(flags)
    return flags


def _compatible_flags(flags: Flags) -> None:
    flags.value("url", DEFAULT_URL, str.strip, "socket of the agentic service")
    flags.value("token", "", str.strip, "bearer token (or env AGENTIC_TOKEN, else fake-token)")
    flags.switch("token-in-query", "send the token as ?token=")
    flags.switch("allow-empty-token", "send no token where none is given")
    flags.value("agent", "Georges", str.strip, "agent id")
    flags.value("message", "Hello", str, "what each turn asks")
    flags.value("session", "", str.strip, "one existing session for all clients")
    flags.value("session-url", "", str.strip, "REST address of sessions (derived from -url)")
    flags.value("session-title", "Benchmark", str.strip, "title of created sessions")
    flags.switch("create-session", "create sessions", default=True)
    flags.switch("prepare-sessions", "create all sessions before the first turn (not in total mode)")
    flags.value("prepare-concurrency", 20, int, "session calls at a time in preparation and clean-up")
    flags.switch("delete-session", "delete created sessions", default=True)
    flags.value("ramp-duration", 10.0, parse_duration, "client starts are spread over this time")
    flags.value("clients", 150, int, "concurrent clients")
    flags.value("requests", 0, int, "turns in all, in total mode (0: one a client)")
    flags.value("requests-per-client", 10, int, "turns of each client; 0: total mode, a new session each")
    flags.value("timeout", 90.0, parse_duration, "deadline of one turn")
    flags.value("grace", 5.0, parse_duration, "after Ctrl-C, time for running turns to end")
    flags.switch("insecure", "do not verify TLS certificates")
    flags.switch("debug-events", "print each event to stderr")
    flags.value("read-limit-bytes", 4 * 1024 * 1024, int, "largest event that is read")
    flags.value("document-library-ids", "", _csv, "runtime_context.selected_document_libraries_ids")
    flags.value("document-uids", "", _csv, "runtime_context.selected_document_uids")
    flags.value("search-policy", "", str.strip, "runtime_context.search_policy: hybrid, semantic or strict")
    flags.value("search-rag-scope", "", str.strip, "runtime_context.search_rag_scope")
    flags.value("include-session-scope", "", _optional_bool, "runtime_context.include_session_scope")
    flags.value("include-corpus-scope", "", _optional_bool, "runtime_context.include_corpus_scope")
    flags.value("protocol", "ws", str.strip, "transport: ws")


def _load_flags(flags: Flags) -> None:
    flags.switch("native", f"speak {NATIVE_SUBPROTOCOL}: first token and gaps are those of deltas")
    flags.value(
        "prompts", "", str.strip, "file of messages (.txt, .csv, .jsonl with scripts of several turns and weights)"
    )
    flags.value("seed", 0, int, "seed of arrivals, think times and drawn prompts")
    flags.value("rate", 0.0, parse_rate, "open loop: turns that arrive a second, such as 20/s")
    flags.value("stages", (), parse_stages, "open loop: rates to move to and in which time, such as 0:10s,50:30s")
    flags.value("arrival", "constant", str.strip, "open loop: constant (evenly spaced) or poisson")
    flags.value("duration", 0.0, parse_duration, "how long turns begin (closed loop: instead of a number of turns)")
    flags.value("think", None, _times, f"closed loop: pause between a client's turns: {FORMS}")
    flags.value(
        "expected-interval", 0.0, parse_duration, "closed loop: correct for turns not asked during stalls, one each"
    )
    flags.value("warmup", NO_CUT, parse_cut, "left out of the steady window at its begin: 10s, 10%% or turns")
    flags.value("cooldown", NO_CUT, parse_cut, "left out of the steady window at its end: 10s, 10%% or turns")
    flags.value("workers", 1, int, "processes that share the load")


def _misbehaviour_flags(flags: Flags) -> None:
    flags.value("hangup-rate", 0.0, parse_percent, "beside the turns, so many a turn that hang up: 5%%")
    flags.value("hangup-after", None, _hangup, "when they hang up: first (token) or a time after the ask")
    flags.switch("reconnect", "who hangs up comes back, resumes (native) and waits for the end")
    flags.value("slow-reader", (0.0, 0.0), parse_slow_readers, "clients beside the others that read slowly: 10%%:2KB/s")
    flags.value("burst", 0, int, "so many clients beside the others that all come at once, for one turn")
    flags.value("burst-at", 0.0, parse_duration, "when they come, from the first ask on")
    flags.value("idle-clients", 0, int, "sockets that are open and silent")
    flags.switch("verify-history", "after the run, look up every acknowledged turn in its session's history")


def _watch_flags(flags: Flags) -> None:
    flags.value("server-metrics", (), _urls, "the services' /metrics, comma between, read over the steady window")
    flags.value("server-interval", 1.0, parse_duration, "time between two reads of them")
    flags.value(
        "postgres",
        "",
        str.strip,
        "DSN: print the statements of the steady window, by pg_stat_statements or the services",
    )
    flags.value("watch-pid", (), parse_pids, "processes whose memory, CPU, files and sockets are recorded")
    flags.many("threshold", parse_gate, "gate such as turn_latency:p95<4000ms: exit 1 where it does not hold")
    flags.switch("abort-on-fail", "end the run as soon as a threshold does not hold")
    flags.value("goodput", {}, parse_goodput, "limits that make a turn good, such as 'ttft:300ms turn:4s'")
    flags.value("json", "", str.strip, "write the result to this file")
    flags.value("csv", "", str.strip, "write a row for each turn to this file")
    flags.value("html", "", str.strip, "write a report with charts to this file")
    flags.value("md", "", str.strip, "write the tables to this file as Markdown")
    flags.switch("no-live", "say nothing while the run lasts")
    flags.value("live-interval", 0.0, parse_duration, "time between two live lines")
    flags.switch("progress", argparse.SUPPRESS)


def load_of(values: argparse.Namespace) -> Load:
    """When turns begin. Raises `UsageError` if the flags contradict each other."""
    stages = values.stages
    if values.rate and stages:
        raise UsageError("-rate and -stages exclude each other")
    if values.rate:
        if not values.duration:
            raise UsageError("-rate needs -duration")
        stages = steady_stages(values.rate, values.duration)
    if values.arrival not in {"constant", "poisson"}:
        raise UsageError("-arrival must be constant or poisson")
    if stages and (values.think or values.expected_interval):
        raise UsageError("-think and -expected-interval are for a closed loop")
    if values.duration and values.requests_per_client == 0 and not stages:
        raise UsageError("-duration needs -requests-per-client above 0 or -rate")
    return Load(
        stages=stages,
        arrival=values.arrival,
        duration_s=0.0 if stages else values.duration,
        think=values.think,
        expected_interval_s=values.expected_interval,
        warmup=values.warmup,
        cooldown=values.cooldown,
        seed=values.seed,
    )


def misbehaviour_of(values: argparse.Namespace) -> Misbehaviour:
    """The misbehaving clients. Raises `UsageError`."""
    if values.burst < 0 or values.idle_clients < 0:
        raise UsageError("-burst and -idle-clients cannot be negative")
    if values.reconnect and not values.native:
        raise UsageError("-reconnect needs -native: only there a turn can be resumed")
    return Misbehaviour(
        hangup_share=values.hangup_rate,
        hangup_after_s=values.hangup_after,
        reconnect=values.reconnect,
        slow_share=values.slow_reader[0],
        slow_bytes_per_s=values.slow_reader[1],
        burst=values.burst,
        burst_at_s=values.burst_at,
        idle=values.idle_clients,
    )


def observe_of(values: argparse.Namespace) -> Observe:
    """What to monitor. Raises `UsageError`."""
    if values.server_interval <= 0:
        raise UsageError("-server-interval must be above 0")
    return Observe(values.server_metrics, values.server_interval, values.postgres, values.watch_pid)


def outputs_of(values: argparse.Namespace) -> Outputs:
    """Files and live output."""
    return Outputs(
        json=values.json,
        csv=values.csv,
        html=values.html,
        markdown=values.md,
        live=not values.no_live,
        live_interval_s=values.live_interval,
        progress=values.progress,
    )


def _times(text: str) -> RandomVariable:
    return parse_distribution(text, parse_duration)


def _hangup(text: str) -> float | None:
    return None if text.strip() == "first" else parse_duration(text)


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(item.strip() for item in text.split(",") if item.strip())
    if not all(url.startswith(("http://", "https://")) for url in urls):
        raise UsageError("needs http:// or https:// addresses")
    return urls


def _csv(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


def _optional_bool(text: str) -> bool | None:
    return parse_bool(text.strip().lower()) if text.strip() else None
