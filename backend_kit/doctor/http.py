"""One GET to a server that is examined, and what it means where nothing comes back."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from yarl import URL

from backend_kit.client.connections import Connections
from backend_kit.client.json_client import CallFailed, HttpRequest, JsonClient
from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.doctor.clocks import ahead_of
from backend_kit.wire import InvalidJson, loads

SLOW_MS: Final = 1000.0
_CONNECT_S: Final = 3.0
_ANY: Final = range(100, 600)
_MOST_BYTES: Final = 4 << 20
_WORDS: Final = frozenset(
    {"ready", "starting", "draining", "schema_mismatch", "task_down", "storage_full", "loop_late", "cut_off",
     "fetching_model", "embedder_failed"}
)  # fmt: skip
_PASSING: Final = frozenset({"starting", "draining", "fetching_model"})


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, how long it took with its connection, and by how many seconds this machine's clock is ahead of the
    `Date` in it; None without one."""

    status: int
    body: bytes
    ms: float
    ahead_s: float | None


async def get(url: URL, headers: Mapping[str, str] | None = None) -> HttpReply:
    """The answer, whatever its status. Raises `CallFailed` where none comes, or one of over 4 MiB. No redirect is
    followed."""
    client = JsonClient(Connections(connect_s=_CONNECT_S, pool_s=None))
    try:
        request = HttpRequest(url, "GET", headers=headers or {}, max_bytes=_MOST_BYTES, good=_ANY)
        answer = await client.call(request)
        now = time.time()
    finally:
        await client.aclose()
    ms = (answer.ended - answer.began) * 1e3
    return HttpReply(answer.status, answer.body, ms, ahead_of(answer.headers.get("Date"), now))


def place(url: URL) -> str:
    """Host and port, and nothing of a URL that could be a secret."""
    host = url.host or ""
    return f"[{host}]:{url.port}" if ":" in host else f"{host}:{url.port}"


def unreached(what: str, url: URL, failure: CallFailed, remedy: str) -> Diagnosis:
    """What a call means that came to nothing."""
    if "SSL" in failure.fault or "Certificate" in failure.fault:
        trust = "have this machine trust its certificate (SSL_CERT_FILE), or put the right address"
        return Diagnosis(what, Health.WRONG, f"no TLS with {place(url)}", f"{trust}: {remedy}")
    if failure.kind == "broken":
        return Diagnosis(what, Health.WRONG, f"{place(url)} answers what cannot be used", remedy)
    how = "no answer in time from" if failure.kind == "late" else "nothing answers at"
    return Diagnosis(what, Health.AWAY, f"{how} {place(url)}", remedy)


def readiness(what: str, url: URL, reply: HttpReply, remedy: str) -> Diagnosis:
    """What an answer of `/ready` means."""
    word = _word(reply)
    if word is None:
        return Diagnosis(what, Health.WRONG, f"{place(url)} is another program (HTTP {reply.status})", remedy)
    figure = f"{word} at {place(url)}, {reply.ms:.1f} ms"
    if word != "ready":
        state = Health.AWAY if word in _PASSING else Health.WRONG
        return Diagnosis(what, state, figure, f"docs/operations.md#health says what {word} means and asks for")
    if reply.ms > SLOW_MS:
        return Diagnosis(what, Health.SLOW, figure, "its log has who is the bottleneck ([KPI][VERDICT])")
    return Diagnosis(what, Health.OK, figure)


def _word(reply: HttpReply) -> str | None:
    """What the service says of itself, of the words that there are; None where it is none of ours."""
    try:
        said = loads(reply.body)
    except InvalidJson:
        return None
    word = said.get("status") if isinstance(said, dict) else None
    return word if isinstance(word, str) and word in _WORDS else None
