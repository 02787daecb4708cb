"""The flags of `ws_bench run`: Go's dialect (one dash or two) into one frozen value."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from ws_bench.config.options import Gates, Load, Misbehaviour, Observe, Outputs
from ws_bench.config.prompts import Script, digest, read_scripts
from ws_bench.config.runflags import load_of, misbehaviour_of, observe_of, outputs_of, run_flags
from ws_bench.errors import UsageError

_DOOR_PATHS = ("/chatbot/query/ws-baseline", "/chatbot/query/ws", "/chatbot/query/stream")
_COMPLETIONS_PATH = "/v1/chat/completions"
PROTOCOLS = ("ws", "sse", "openai", "langgraph")
_HTTP = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_MAX_CLIENTS = 20_000
_MAX_WORKERS = 64


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What one run does. Durations in seconds; `requests` counts only in total mode (`requests_per_client` 0)."""

    url: str
    session_url: str
    token: str = field(repr=False)
    token_in_query: bool
    agent: str
    message: str
    prompts: tuple[Script, ...]
    """What the turns ask (`ws_bench.config.prompts`); if empty, each asks `message`."""
    session: str
    session_title: str
    create_session: bool
    prepare_sessions: bool
    prepare_concurrency: int
    delete_session: bool
    ramp_s: float
    clients: int
    requests: int
    requests_per_client: int
    timeout_s: float
    grace_s: float
    insecure: bool
    debug_events: bool
    read_limit_bytes: int
    protocol: str
    """`ws`, `sse`, `openai` or `langgraph`; `url` is the address of that door, of the last one its base."""
    stream_mode: tuple[str, ...]
    """Of a run of LangGraph's API."""
    native: bool
    deflate: bool
    runtime_context: dict[str, object]
    load: Load
    misbehaviour: Misbehaviour
    observe: Observe
    outputs: Outputs
    gates: Gates
    verify_history: bool
    workers: int

    @property
    def per_client(self) -> bool:
        """Whether a client keeps its socket for all its turns instead of opening one for each."""
        return self.requests_per_client > 0 or self.load.open

    @property
    def mode(self) -> str:
        """What decides how many turns there are."""
        if self.load.open:
            return "open-loop"
        if self.requests_per_client == 0:
            return "total-requests"
        return "duration" if self.load.duration_s else "per-client"

    @property
    def owns_sessions(self) -> bool:
        """Whether sessions are created (and deleted) by the run."""
        return self.create_session and not self.session

    @property
    def dial_url(self) -> str:
        """The URL to connect to, with the token if `-token-in-query` is set. Never print it."""
        if not (self.token_in_query and self.token):
            return self.url
        parts = urlsplit(self.url)
        query = [(key, value) for key, value in parse_qsl(parts.query) if key != "token"]
        return urlunsplit(parts._replace(query=urlencode([*query, ("token", self.token)])))

    @property
    def shown_url(self) -> str:
        """The URL as given, a token in its query replaced: this one may be printed and stored."""
        parts = urlsplit(self.url)
        if not _has_token(parts):
            return self.url
        query = [(key, "***" if key == "token" else value) for key, value in parse_qsl(parts.query)]
        return urlunsplit(parts._replace(query=urlencode(query, safe="*")))

    @property
    def threads_url(self) -> str:
        """Where the sessions of LangGraph's API are."""
        return f"{self.url.rstrip('/')}/threads"

    def rest_url(self, path: str) -> str:
        """An address below the base path of the service. Raises `UsageError` where the base path is not known."""
        known = urlsplit(self.session_url or self.url)
        base, chatbot, _ = known.path.partition("/chatbot/")
        if not chatbot:
            raise UsageError("-session-url says where the service's REST is, which this -url does not")
        return urlunsplit((_HTTP[known.scheme], known.netloc, base + path, "", ""))

    @property
    def auth_headers(self) -> dict[str, str]:
        """The bearer header of REST calls and, without `-token-in-query`, of the handshake."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def parse_run_flags(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> RunConfig:
    """The configuration that flags and `AGENTIC_TOKEN` ask for.

    Raises `UsageError`; `-h` prints the help and raises SystemExit(0).
    """
    return config_of(run_flags("ws_bench run", "Load an agentic service.").parse(argv), environ)


def config_of(values: argparse.Namespace, environ: Mapping[str, str] | None = None) -> RunConfig:
    """The configuration of parsed flags. Raises `UsageError`."""
    environment = os.environ if environ is None else environ
    _check(values)
    parts = _door_parts(values.url, values.protocol)
    load = load_of(values)
    requests = values.requests
    if values.requests_per_client == 0 and requests == 0:
        requests = values.clients
    total_mode = values.requests_per_client == 0 and not load.open
    clients = min(values.clients, requests) if total_mode else values.clients
    return RunConfig(
        url=door_url(parts, values.protocol),
        session_url=values.session_url or session_url_of(parts, needed=_needs_sessions(values)),
        token=_token(values, parts, environment),
        token_in_query=values.token_in_query,
        agent=values.agent,
        message=values.message,
        prompts=read_scripts(values.prompts) if values.prompts else (),
        session=values.session,
        session_title=values.session_title,
        create_session=values.create_session,
        prepare_sessions=values.prepare_sessions,
        prepare_concurrency=values.prepare_concurrency,
        delete_session=values.delete_session,
        ramp_s=values.ramp_duration,
        clients=clients,
        requests=requests,
        requests_per_client=values.requests_per_client,
        timeout_s=values.timeout,
        grace_s=values.grace,
        insecure=values.insecure,
        debug_events=values.debug_events,
        read_limit_bytes=values.read_limit_bytes,
        protocol=values.protocol,
        stream_mode=values.stream_mode,
        native=values.native,
        deflate=values.deflate,
        runtime_context=_runtime_context(values),
        load=load,
        misbehaviour=misbehaviour_of(values),
        observe=observe_of(values),
        outputs=outputs_of(values),
        gates=Gates(tuple(values.threshold), values.goodput, values.abort_on_fail),
        verify_history=values.verify_history,
        workers=values.workers,
    )


def session_url_of(socket: SplitResult, *, needed: bool = True) -> str:
    """The REST address of sessions for a door's address. Raises `UsageError` if needed and not derivable."""
    for path in _DOOR_PATHS:
        if path in socket.path:
            rest = socket.path.replace(path, "/chatbot/session", 1)
            return urlunsplit((_HTTP[socket.scheme], socket.netloc, rest, "", ""))
    if needed:
        raise UsageError(
            f"cannot derive the session URL from {socket.path!r}: set -session-url (or -create-session=false)"
        )
    return ""


def door_url(parts: SplitResult, protocol: str) -> str:
    """The address of a protocol's door: the one that is given, or the one beside a chat socket."""
    if protocol == "ws" or parts.scheme in {"http", "https"}:
        return urlunsplit(parts)
    path = {"openai": _COMPLETIONS_PATH, "langgraph": ""}.get(protocol)
    if path is None:
        head, _, _ = parts.path.partition("/chatbot/query/")
        path = f"{head}/chatbot/query/stream"
    return urlunsplit((_HTTP[parts.scheme], parts.netloc, path, "", ""))


def spoken(config: Mapping[str, Any]) -> str:
    """The name of what a run spoke, from `config_as_json`."""
    doors = {"sse": "turnwise.v1, event stream", "openai": "OpenAI chat completions", "langgraph": "LangGraph runs"}
    socket = "turnwise.v1" if config["native"] else "compatible"
    deflated = ", deflate" if config.get("deflate") else ""
    return doors.get(config.get("protocol", "ws"), socket + deflated)


def streams(config: Mapping[str, Any]) -> bool:
    """Whether what a run spoke brings an answer in pieces, from `config_as_json`."""
    return bool(config.get("native")) or config.get("protocol", "ws") != "ws"


def _check(values: argparse.Namespace) -> None:
    if not 0 < values.clients <= _MAX_CLIENTS:
        raise UsageError(f"-clients must be in 1..{_MAX_CLIENTS}")
    if values.requests_per_client < 0 or values.requests < 0:
        raise UsageError("-requests and -requests-per-client cannot be negative")
    if values.timeout <= 0:
        raise UsageError("-timeout must be above 0")
    if values.prepare_concurrency < 1:
        raise UsageError("-prepare-concurrency must be at least 1")
    _check_protocol(values)
    if not 0 < values.workers <= _MAX_WORKERS:
        raise UsageError(f"-workers must be in 1..{_MAX_WORKERS}")
    if values.abort_on_fail and not values.threshold:
        raise UsageError("-abort-on-fail needs a -threshold")
    if values.read_limit_bytes < 1:
        raise UsageError("-read-limit-bytes must be at least 1")


def _check_protocol(values: argparse.Namespace) -> None:
    if values.protocol not in PROTOCOLS:
        raise UsageError(f"-protocol must be one of {', '.join(PROTOCOLS)}")
    if values.protocol != "ws" and (values.native or values.deflate or values.token_in_query):
        raise UsageError("-native, -deflate and -token-in-query are for -protocol ws")
    if values.protocol in {"openai", "langgraph"}:
        if _runtime_context(values):
            raise UsageError("only ws and sse have a runtime_context, so no -search-…, -document-… or -include-…")
        if values.verify_history:
            raise UsageError(f"-verify-history is not for -protocol {values.protocol}")
    if values.protocol == "openai" and values.prepare_sessions:
        raise UsageError("-prepare-sessions is not for -protocol openai, whose service makes the sessions")


def _needs_sessions(values: argparse.Namespace) -> bool:
    """Whether the run makes sessions over REST; threads are made at the door."""
    return bool(values.create_session and not values.session and values.protocol != "langgraph")


def _door_parts(url: str, protocol: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ({"ws", "wss"} if protocol == "ws" else _HTTP) or not parts.hostname:
        raise UsageError("-url must be ws://host[:port]/path or wss://host[:port]/path (http and https with -protocol)")
    return parts


def _has_token(parts: SplitResult) -> bool:
    return bool(parse_qs(parts.query).get("token"))


def _token(values: argparse.Namespace, parts: SplitResult, environ: Mapping[str, str]) -> str:
    token: str = values.token or environ.get("AGENTIC_TOKEN", "").strip()
    if token or values.allow_empty_token or _has_token(parts):
        return token
    return "fake-token"


def _runtime_context(values: argparse.Namespace) -> dict[str, object]:
    wanted = {
        "selected_document_libraries_ids": values.document_library_ids,
        "selected_document_uids": values.document_uids,
        "search_policy": values.search_policy,
        "search_rag_scope": values.search_rag_scope,
        "include_session_scope": values.include_session_scope,
        "include_corpus_scope": values.include_corpus_scope,
    }
    return {key: value for key, value in wanted.items() if value not in ("", None, [])}


def config_as_json(config: RunConfig) -> dict[str, object]:
    """The configuration for a result file: everything except credentials."""
    return {
        "url": config.shown_url,
        "session_url": config.session_url,
        "agent": config.agent,
        "message": config.message,
        "prompts": len(config.prompts),
        "prompts_digest": digest(config.prompts) if config.prompts else "",
        "mode": config.mode,
        "protocol": config.protocol,
        "native": config.native,
        "stream_mode": list(config.stream_mode),
        "deflate": config.deflate,
        "clients": config.clients,
        "requests_per_client": config.requests_per_client,
        "requests": config.requests,
        "ramp_s": config.ramp_s,
        "timeout_s": config.timeout_s,
        "create_session": config.create_session,
        "prepare_sessions": config.prepare_sessions,
        "delete_session": config.delete_session,
        "runtime_context": config.runtime_context,
        "load": asdict(config.load),
        "misbehaviour": asdict(config.misbehaviour),
        "server_metrics": list(config.observe.metrics_urls),
        "thresholds": [gate.text for gate in config.gates.thresholds],
        "goodput": dict(config.gates.goodput),
        "verify_history": config.verify_history,
        "workers": config.workers,
    }
