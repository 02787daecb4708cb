"""The flags of `ws_bench run`: Go's dialect (one dash or two) into one frozen value."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from ws_bench.errors import UsageError
from ws_bench.golang import parse_bool, parse_duration

DEFAULT_URL = "ws://127.0.0.1:8000/agentic/v1/chatbot/query/ws"
NATIVE_SUBPROTOCOL = "turnwise.v1"
_SOCKET_PATHS = ("/chatbot/query/ws-baseline", "/chatbot/query/ws")
_MAX_CLIENTS = 20_000
_HELP_FLAGS = frozenset({"h", "help"})


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What one run does. Durations in seconds; `requests` counts only in total mode (`requests_per_client` 0)."""

    url: str
    session_url: str
    token: str = field(repr=False)
    token_in_query: bool
    agent: str
    message: str
    prompts: tuple[str, ...]
    """What the turns ask, one after the other and over again; empty: each asks `message`."""
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
    native: bool
    runtime_context: dict[str, object]
    json_path: str

    @property
    def per_client(self) -> bool:
        """Whether each client runs its own number of turns on one socket, rather than all sharing a total."""
        return self.requests_per_client > 0

    @property
    def total(self) -> int:
        """Turns that the run means to make."""
        return self.clients * self.requests_per_client if self.per_client else self.requests

    @property
    def owns_sessions(self) -> bool:
        """Whether sessions are created (and deleted) by the run."""
        return self.create_session and not self.session

    @property
    def dial_url(self) -> str:
        """The URL to connect to: holds the token where `-token-in-query` asks for it. Never print it."""
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
    def auth_headers(self) -> dict[str, str]:
        """The bearer header of REST calls and, without `-token-in-query`, of the handshake."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError` instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse_run_flags(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> RunConfig:
    """The configuration that flags and `AGENTIC_TOKEN` ask for.

    Raises `UsageError`; `-h` prints the help and raises SystemExit(0).
    """
    flags = _flags()
    values = flags.parser.parse_args(join_go_flags(argv, frozenset(flags.value_flags)))
    environment = os.environ if environ is None else environ
    _check(values)
    parts = _socket_parts(values.url)
    requests = values.requests
    if values.requests_per_client == 0 and requests == 0:
        requests = values.clients
    clients = values.clients if values.requests_per_client else min(values.clients, requests)
    return RunConfig(
        url=values.url,
        session_url=values.session_url or session_url_of(parts, needed=values.create_session and not values.session),
        token=_token(values, parts, environment),
        token_in_query=values.token_in_query,
        agent=values.agent,
        message=values.message,
        prompts=_prompts(values.prompts),
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
        native=values.native,
        runtime_context=_runtime_context(values),
        json_path=values.json,
    )


def join_go_flags(argv: Sequence[str], value_flags: frozenset[str]) -> list[str]:
    """Each `-name value` and `--name value` as `--name=value`, so that a value may begin with a dash as in Go."""
    joined: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        if name in _HELP_FLAGS and word.startswith("-"):
            joined.append("--help")
        elif not word.startswith("-") or not name:
            joined.append(word)
        elif equals or name not in value_flags:
            joined.append(f"--{name}{equals}{value}")
        else:
            following = next(rest, None)
            if following is None:
                raise UsageError(f"flag needs an argument: -{name}")
            joined.append(f"--{name}={following}")
    return joined


def session_url_of(socket: SplitResult, *, needed: bool = True) -> str:
    """The REST address of sessions beside a socket address. Raises `UsageError` where it cannot be told."""
    for path in _SOCKET_PATHS:
        if path in socket.path:
            scheme = {"ws": "http", "wss": "https"}[socket.scheme]
            rest = socket.path.replace(path, "/chatbot/session", 1)
            return urlunsplit((scheme, socket.netloc, rest, "", ""))
    if needed:
        raise UsageError(f"cannot derive the session URL from {socket.path!r}: set -session-url")
    return ""


class _Flags:
    """The parser under construction; remembers which flags take a value, which Go's dialect needs to know."""

    def __init__(self) -> None:
        self.parser = _Parser(prog="ws_bench run", allow_abbrev=False, description="Load an agentic service.")
        self.value_flags: set[str] = set()

    def value(self, name: str, default: object, kind: Callable[[str], object], help_text: str) -> None:
        """A flag that needs a value, given as `-name value` or `-name=value`."""
        self.value_flags.add(name)
        self.parser.add_argument(f"--{name}", default=default, type=_converter(kind), help=help_text, metavar="VALUE")

    def switch(self, name: str, help_text: str, *, default: bool = False) -> None:
        """A boolean: `-name` alone means true; `-name=false` as in Go, and `-name false`, which Go misreads."""
        self.parser.add_argument(
            f"--{name}",
            nargs="?",
            const=True,
            default=default,
            type=_converter(parse_bool),
            help=help_text,
            metavar="BOOL",
        )


def _flags() -> _Flags:
    flags = _Flags()
    flags.value("url", DEFAULT_URL, str.strip, "socket of the agentic service")
    flags.value("token", "", str.strip, "bearer token (or env AGENTIC_TOKEN, else fake-token)")
    flags.switch("token-in-query", "send the token as ?token=")
    flags.switch("allow-empty-token", "send no token where none is given")
    flags.value("agent", "Georges", str.strip, "agent id")
    flags.value("message", "Hello", str, "what each turn asks")
    flags.value("prompts", "", str.strip, "file of messages, one a line, that the turns ask in order")
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
    flags.switch("native", f"speak {NATIVE_SUBPROTOCOL}: first token and gaps are those of deltas")
    flags.value("json", "", str.strip, "write the result to this file")
    return flags


def _converter(kind: Callable[[str], object]) -> Callable[[str], object]:
    """`kind` with its refusals in argparse's own error, which names the flag."""

    def convert(text: str) -> object:
        try:
            return kind(text)
        except UsageError as failure:
            raise argparse.ArgumentTypeError(str(failure)) from failure
        except ValueError as failure:
            raise argparse.ArgumentTypeError(f"invalid value {text!r}") from failure

    return convert


def _csv(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


def _prompts(path: str) -> tuple[str, ...]:
    """The lines of the file that are not empty."""
    if not path:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"-prompts: cannot read {path}") from failure
    prompts = tuple(line.strip() for line in lines if line.strip())
    if not prompts:
        raise UsageError(f"-prompts: {path} holds no message")
    return prompts


def _optional_bool(text: str) -> bool | None:
    return parse_bool(text.strip().lower()) if text.strip() else None


def _check(values: argparse.Namespace) -> None:
    if not 0 < values.clients <= _MAX_CLIENTS:
        raise UsageError(f"-clients must be in 1..{_MAX_CLIENTS}")
    if values.requests_per_client < 0 or values.requests < 0:
        raise UsageError("-requests and -requests-per-client cannot be negative")
    if values.timeout <= 0:
        raise UsageError("-timeout must be above 0")
    if values.prepare_concurrency < 1:
        raise UsageError("-prepare-concurrency must be at least 1")
    if values.protocol != "ws":
        raise UsageError("-protocol: only ws is offered")
    if values.read_limit_bytes < 1:
        raise UsageError("-read-limit-bytes must be at least 1")


def _socket_parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in {"ws", "wss"} or not parts.hostname:
        raise UsageError("-url must be ws://host[:port]/path or wss://host[:port]/path")
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
        "native": config.native,
        "clients": config.clients,
        "requests_per_client": config.requests_per_client,
        "requests": config.requests,
        "ramp_s": config.ramp_s,
        "timeout_s": config.timeout_s,
        "create_session": config.create_session,
        "prepare_sessions": config.prepare_sessions,
        "delete_session": config.delete_session,
        "runtime_context": config.runtime_context,
    }
