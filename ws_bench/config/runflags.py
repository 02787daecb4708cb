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
    # Not every command takes all of them; `run` does.
    flags.program = "ws_bench run"
    _target_flags(flags)
    _ask_flags(flags)
    _session_flags(flags)
    _closed_flags(flags)
    _open_flags(flags)
    _misbehaviour_flags(flags)
    _watch_flags(flags)
    _result_flags(flags)
    flags.program = prog
    return flags


def _target_flags(flags: Flags) -> None:
    flags.group("the service", f"-url {DEFAULT_URL} -token tw-key -protocol sse")
    flags.value("url", DEFAULT_URL, str.strip, "the service's chat socket (with another -protocol its door, or this)",
                "ws://host:8000/agentic/v1/chatbot/query/ws")  # fmt: skip
    flags.value(
        "protocol", "ws", str.strip,
        "ws: the chat socket; sse: event streams; openai: chat completions; langgraph: runs of the Agent Server API "
        "(-engine is the same)",
        "sse", also=("engine",),
    )  # fmt: skip
    flags.value("stream-mode", ("messages-tuple",), _modes, "langgraph: the stream modes of a run, comma between",
                "messages-tuple,values")  # fmt: skip
    flags.switch("native", f"ws: speak {NATIVE_SUBPROTOCOL}: first token and gaps are those of deltas")
    flags.switch("deflate", "ws: offer per-message compression, and refuse a service that does not take it")
    flags.value("token", "", str.strip, "bearer token (or env AGENTIC_TOKEN, else fake-token)", "tw-key")
    flags.switch("token-in-query", "ws: send the token as ?token=")
    flags.switch("allow-empty-token", "send no token where none is given")
    flags.switch("insecure", "do not verify TLS certificates")
    flags.value("timeout", 90.0, parse_duration, "deadline of one turn", "30s")
    flags.value("read-limit-bytes", 4 * 1024 * 1024, int, "largest event that is read", "1048576")
    flags.switch("debug-events", "print each event to stderr")


def _ask_flags(flags: Flags) -> None:
    flags.group("what is asked", "-agent Rico -prompts questions.txt -search-policy hybrid")
    flags.value("agent", "Georges", str.strip, "agent id", "Rico")
    flags.value("message", "Hello", str, "what each turn asks", "'How are you?'")
    flags.value(
        "prompts", "", str.strip,
        "file of messages (.txt, .csv, .jsonl with scripts of several turns and weights)", "questions.txt",
    )  # fmt: skip
    flags.value("seed", 0, int, "seed of arrivals, think times and drawn prompts", "7")
    flags.value("document-library-ids", "", _csv, "runtime_context.selected_document_libraries_ids", "lib1,lib2")
    flags.value("document-uids", "", _csv, "runtime_context.selected_document_uids", "uid1,uid2")
    flags.value("search-policy", "", str.strip, "runtime_context.search_policy: hybrid, semantic or strict", "strict")
    flags.value("search-rag-scope", "", str.strip, "runtime_context.search_rag_scope", "general_only")
    flags.value("include-session-scope", "", _optional_bool, "runtime_context.include_session_scope", "false")
    flags.value("include-corpus-scope", "", _optional_bool, "runtime_context.include_corpus_scope", "true")


def _session_flags(flags: Flags) -> None:
    flags.group("sessions", "-prepare-sessions -prepare-concurrency 50 -delete-session=false")
    flags.value("session", "", str.strip, "one existing session for all clients", "zUNcjWSFX4M")
    flags.value("session-url", "", str.strip, "REST address of sessions (derived from -url)",
                "http://host:8000/agentic/v1/chatbot/session")  # fmt: skip
    flags.value("session-title", "Benchmark", str.strip, "title of created sessions", "'Load test'")
    flags.switch("create-session", "create sessions", default=True)
    flags.switch("prepare-sessions", "create all sessions before the first turn (not in total mode)")
    flags.value("prepare-concurrency", 20, int, "session calls at a time in preparation and clean-up", "50")
    flags.switch("delete-session", "delete created sessions", default=True)
    flags.switch("verify-history", "after the run, look up every acknowledged turn in its session's history")


def _closed_flags(flags: Flags) -> None:
    flags.group("the load, closed loop", "-clients 20 -requests-per-client 10 -ramp-duration 2s -think exp:5s")
    flags.value("clients", 150, int, "concurrent clients", "20")
    flags.value("requests-per-client", 10, int, "turns of each client; 0: total mode, a new session each", "50")
    flags.value("requests", 0, int, "turns in all, in total mode (0: one a client)", "500")
    flags.value("duration", 0.0, parse_duration, "how long turns begin (closed loop: instead of a number of turns)",
                "60s")  # fmt: skip
    flags.value("ramp-duration", 10.0, parse_duration, "client starts are spread over this time", "2s")
    flags.value("think", None, _times, f"pause between a client's turns: {FORMS}", "exp:5s")
    flags.value("expected-interval", 0.0, parse_duration, "correct for turns not asked during stalls, one each", "5s")
    flags.value("warmup", NO_CUT, parse_cut, "left out of the steady window at its begin: 10s, 10%% or turns", "10s")
    flags.value("cooldown", NO_CUT, parse_cut, "left out of the steady window at its end: 10s, 10%% or turns", "10%")
    flags.value("grace", 5.0, parse_duration, "after Ctrl-C, time for running turns to end", "10s")
    flags.value("workers", 1, int, "processes that share the load", "4")


def _open_flags(flags: Flags) -> None:
    flags.group("the load, open loop", "-rate 20/s -duration 60s -arrival poisson -clients 300")
    flags.value("rate", 0.0, parse_rate, "turns that arrive a second, whatever the service does", "20/s")
    flags.value("stages", (), parse_stages, "rates to move to and in which time", "0:10s,50:30s")
    flags.value("arrival", "constant", str.strip, "constant (evenly spaced) or poisson", "poisson")


def _misbehaviour_flags(flags: Flags) -> None:
    flags.group("misbehaving clients beside the measured ones (ws)", "-native -hangup-rate 5% -hangup-after first")
    flags.value("hangup-rate", 0.0, parse_percent, "so many a turn that hang up", "5%")
    flags.value("hangup-after", None, _hangup, "when they hang up: first (token) or a time after the ask", "500ms")
    flags.switch("reconnect", "who hangs up comes back, resumes (native) and waits for the end")
    flags.value("slow-reader", (0.0, 0.0), parse_slow_readers, "clients that read slowly: share and speed", "10%:2KB/s")
    flags.value("burst", 0, int, "so many clients that all come at once, for one turn", "100")
    flags.value("burst-at", 0.0, parse_duration, "when they come, from the first ask on", "10s")
    flags.value("idle-clients", 0, int, "sockets that are open and silent", "500")


def _watch_flags(flags: Flags) -> None:
    flags.group("what is watched", "-server-metrics http://127.0.0.1:9005/metrics -watch-pid 4711")
    flags.value("server-metrics", (), _urls, "the services' /metrics, comma between, read over the steady window",
                "http://host:9005/metrics")  # fmt: skip
    flags.value("server-interval", 1.0, parse_duration, "time between two reads of them", "5s")
    flags.value("postgres", "", str.strip, "DSN: print what statements cost, by pg_stat_statements or the services",
                "postgresql://user@host/db")  # fmt: skip
    flags.value("watch-pid", (), parse_pids, "processes whose memory, CPU, files and sockets are recorded", "4711,4712")
    flags.switch("no-live", "say nothing while the run lasts")
    flags.value("live-interval", 0.0, parse_duration, "time between two live lines (1s on a terminal, 5s elsewhere)",
                "2s")  # fmt: skip
    flags.switch("progress", argparse.SUPPRESS)


def _result_flags(flags: Flags) -> None:
    flags.group("gates and files", "-threshold 'turn_p95<4s' -threshold 'errors:rate<0.1%' -json result.json")
    flags.many("threshold", parse_gate, "gate: exit 1 where it does not hold; may be given again", "'turn_p95<4s'")
    flags.switch("abort-on-fail", "end the run as soon as a threshold does not hold")
    flags.value("goodput", {}, parse_goodput, "limits that make a turn good", "'ttft:300ms turn:4s'")
    flags.value("json", "", str.strip, "write the result to this file", "result.json")
    flags.value("csv", "", str.strip, "write a row for each turn to this file", "turns.csv")
    flags.value("html", "", str.strip, "write a report with charts to this file", "report.html")
    flags.value("md", "", str.strip, "write the tables to this file as Markdown", "report.md")


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
    beside = values.hangup_rate or values.slow_reader[0] or values.burst or values.idle_clients
    if beside and values.protocol != "ws":
        raise UsageError("misbehaving clients come with -protocol ws")
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


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(_csv(text))
    if "messages-tuple" not in modes:
        raise UsageError("needs messages-tuple: without it no token is seen")
    return modes


def _csv(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


def _optional_bool(text: str) -> bool | None:
    return parse_bool(text.strip().lower()) if text.strip() else None
