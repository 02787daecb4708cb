"""What another user of knowledge flow notices while one floods a route: fairness-kf, route by route."""

import asyncio
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

import aiohttp
import yaml

from tests.chaos.deployment import Deployment, Size
from tests.chaos.rows import Row, at_least, at_most
from tests.knowledge_flow_backend.ingest import office
from tests.support.patience import HANGS_S
from tests.support.people import SECURITY, headers_of
from tests.support.ports import free_port
from turnwise.postgres import USER

ID: Final = "fairness-kf"
_BASE: Final = "/knowledge-flow/v1"
_QUESTION: Final = "How does a wheel turn in a mill by the river?"
_AT_ONCE: Final = 100
"""Requests of the flood at once, each followed by the next one."""
_REFUSED_S: Final = 0.1
"""Who is refused comes back so soon, ten times sooner than told: at once, and the flood, which runs in the process that
measures, would compute as much as what it floods."""
_PAUSE_S: Final = 0.05
"""Of who measures, so that it stays below `requests.per_s`."""
_UPLOADS: Final = 6
_SLOW_FILES: Final = 200
_SLOW_PARAGRAPHS: Final = 60_000
"""Of a Word file of 40 KB, whose parser takes seconds."""
_LONG: Final = b"A wheel turns in a mill by the river, and nobody sees it. " * 60
_MORE_MS: Final = 50.0
_UPLOAD_S: Final = 2.0


@dataclass(slots=True)
class _Person:
    """A user of the service, with what came of their requests."""

    http: aiohttp.ClientSession
    name: str
    long: str = ""
    """The id of a long document of theirs."""
    statuses: dict[int, int] = field(default_factory=dict)

    async def call(self, method: str, path: str, **options: Any) -> bytes:
        """One request to its end; what was answered, whatever the status is."""
        headers = {**headers_of(self.name), **options.pop("headers", {})}
        async with self.http.request(method, path, headers=headers, **options) as response:
            body = await response.read()
        self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
        if response.status in (429, 503):
            await asyncio.sleep(_REFUSED_S)
        return body

    async def search(self, question: str = _QUESTION) -> bytes:
        return await self.call("POST", f"{_BASE}/vector/search", json={"question": question, "rerank": {}})

    async def get(self) -> bytes:
        return await self.call("GET", f"{_BASE}/tags")

    async def upload(self, *files: tuple[str, bytes]) -> bytes:
        return await self.call("POST", f"{_BASE}/upload-process-documents", data=_form("files", *files))

    async def upload_long(self) -> None:
        """A text of 1 MB."""
        lines = await self.upload(("long.md", b"".join(b"# Part %d\n\n%b\n\n" % (at, _LONG) for at in range(300))))
        self.long = json.loads(lines.splitlines()[-2])["document_uid"]

    async def small(self) -> None:
        """A file of 20 bytes, to its end in the index."""
        lines = await self.upload((f"{secrets.token_hex(4)}.txt", f"Twenty bytes {secrets.token_hex(3)}.".encode()))
        if json.loads(lines.splitlines()[-1])["status"] != "success":
            self.statuses[0] = self.statuses.get(0, 0) + 1  # answered, and yet it failed


def _form(name: str, *files: tuple[str, bytes], **fields: str) -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)
    for key, value in fields.items():
        form.add_field(key, value)
    for label, data in files:
        form.add_field(name, io.BytesIO(data), filename=label, content_type="application/octet-stream")
    return form


async def _search(mallory: _Person) -> None:
    await mallory.search(f"{_QUESTION} {secrets.token_hex(4)}")


async def _rerank(mallory: _Person) -> None:
    hits = [{"content": f"{secrets.token_hex(4)} {_QUESTION * 5}"} for _ in range(40)]
    await mallory.call(
        "POST", f"{_BASE}/vector/rerank", json={"question": _QUESTION, "top_r": 5, "documents": _hits(hits)}
    )


def _hits(texts: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{**text, "uid": f"u{at}", "title": "t", "score": 0.0} for at, text in enumerate(texts)]


async def _browse(mallory: _Person) -> None:
    await mallory.call("POST", f"{_BASE}/documents/browse", json={"limit": 100})


async def _tags(mallory: _Person) -> None:
    await mallory.get()


async def _passages(mallory: _Person) -> None:
    await mallory.call("GET", f"{_BASE}/documents/{mallory.long}/chunks?limit=10000")


async def _text(mallory: _Person) -> None:
    await mallory.call("GET", f"{_BASE}/markdown/{mallory.long}")


async def _file(mallory: _Person) -> None:
    await mallory.call("GET", f"{_BASE}/raw_content/{mallory.long}")


async def _health(mallory: _Person) -> None:
    await mallory.call("GET", f"{_BASE}/ready")


async def _small_files(mallory: _Person) -> None:
    await mallory.upload(*((f"{secrets.token_hex(4)}.txt", secrets.token_bytes(8).hex().encode()) for _ in range(5)))


async def _fast_text(mallory: _Person) -> None:
    files = (f"{secrets.token_hex(4)}.txt", b"Some words. " * 2_000)
    await mallory.call("POST", f"{_BASE}/fast/text", data=_form("file", files))


async def _attachment(mallory: _Person) -> None:
    files = (f"{secrets.token_hex(4)}.txt", b"Some words. " * 2_000)
    await mallory.call("POST", f"{_BASE}/fast/ingest", data=_form("file", files, session_id="flooded"))


async def _slow_files(mallory: _Person) -> None:
    slow = _slow()
    await mallory.upload(*((f"{secrets.token_hex(4)}.docx", slow) for _ in range(_SLOW_FILES)))


async def _slow_text(mallory: _Person) -> None:
    await mallory.call("POST", f"{_BASE}/fast/text", data=_form("file", (f"{secrets.token_hex(4)}.docx", _slow())))


async def _mcp(mallory: _Person) -> None:
    asked = {"name": "search", "arguments": {"query": f"{_QUESTION} {secrets.token_hex(4)}"}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "flood", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**asked, "_meta": meta}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "search",
    }
    await mallory.call("POST", "/mcp", json=body, headers=headers)


def _slow() -> bytes:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    item = "<w:p><w:pPr><w:pStyle w:val='ListBullet'/></w:pPr><w:r><w:t>x</w:t></w:r></w:p>"
    document = f'<w:document xmlns:w="{space}"><w:body>{item * _SLOW_PARAGRAPHS}</w:body></w:document>'
    return office.repacked(office.word(), {"word/document.xml": document.encode()})


@dataclass(frozen=True, slots=True)
class _Flooding:
    """What one user does, so many at once, each as soon as the last one ended."""

    name: str
    once: Callable[[_Person], Awaitable[None]]
    at_once: int = _AT_ONCE
    reads_long: bool = False
    """Whether it wants a long document."""
    settles_s: float = 2.0
    """Until the flood is where it is to be."""


_FLOODS: Final = (
    _Flooding("search", _search),
    _Flooding("rerank", _rerank, 32),
    _Flooding("documents", _browse),
    _Flooding("tags", _tags),
    _Flooding("passages of 1 MB", _passages, reads_long=True),
    _Flooding("text of 1 MB", _text, reads_long=True),
    _Flooding("file of 1 MB", _file, reads_long=True),
    _Flooding("health", _health),
    _Flooding("mcp", _mcp),
    _Flooding("uploads of 5 small files", _small_files, 32),
    _Flooding("/fast/text", _fast_text, 32),
    _Flooding("/fast/ingest", _attachment, 32),
    _Flooding(f"{_UPLOADS} uploads of {_SLOW_FILES} slow files", _slow_files, _UPLOADS, settles_s=15.0),
    _Flooding("/fast/text of slow files", _slow_text, 32),
)


async def floods(deployment: Deployment, size: Size) -> list[Row]:
    """One user floods a route after the other, each against a service of its own; another searches and uploads."""
    rows: list[Row] = []
    chosen = [one for one in _FLOODS if not size.short or one.name in ("search", "mcp", _FLOODS[-2].name)]
    for flood in chosen:
        rows += await _beside(deployment, size, flood)
    return rows


async def _beside(deployment: Deployment, size: Size, flood: _Flooding) -> list[Row]:
    """Before and beside one flood: p95 of a search and of a GET, and the slowest small upload."""
    async with _service(deployment) as http:
        alice, mallory = _Person(http, "alice"), _Person(http, "mallory")
        for person in (alice, mallory):
            words = [(f"{number}.md", f"# Mill {number}\n\n{_QUESTION * 20}".encode()) for number in range(20)]
            await person.upload(*words)
        if flood.reads_long:
            await mallory.upload_long()
        before = await _measured(alice, size)
        async with asyncio.TaskGroup() as group:
            flooding = [group.create_task(_for_ever(mallory, flood)) for _ in range(flood.at_once)]
            await asyncio.sleep(flood.settles_s)
            alice.statuses.clear()
            beside = await _measured(alice, size)
            for task in flooding:
                task.cancel()
    return _rows(flood, before, beside, size.slack, mallory, alice)


def _rows(
    flood: _Flooding,
    before: Mapping[str, float],
    beside: Mapping[str, float],
    slack: float,
    mallory: _Person,
    alice: _Person,
) -> list[Row]:
    what = f"beside {flood.name}"
    told = ", ".join(f"{status}: {count}" for status, count in sorted(mallory.statuses.items())) or "none ended"
    rows = [
        at_most(
            ID,
            f"p95 of another's {name} {what}, {before[name]:.0f} ms before (flood: {told})",
            beside[name],
            round(max(2 * before[name], before[name] + _MORE_MS) * slack, 1),
            "ms",
        )
        for name in ("search", "GET")
    ]
    upload = f"slowest of another's uploads of 20 bytes {what}"
    return [
        *rows,
        at_most(ID, upload, beside["upload"] / 1e3, _UPLOAD_S * slack, "s"),
        at_least(ID, f"another's requests that were served {what}", _share(alice), 100.0, "%"),
    ]


def _share(person: _Person) -> float:
    return 100.0 * person.statuses.get(200, 0) / max(1, sum(person.statuses.values()))


async def _for_ever(person: _Person, flood: _Flooding) -> None:
    while True:
        try:
            await flood.once(person)
        except aiohttp.ClientError:
            await asyncio.sleep(0.01)


async def _measured(person: _Person, size: Size) -> Mapping[str, float]:
    """p95 of searches and of GETs, and the slowest upload, in milliseconds; one request after the other."""
    took: dict[str, list[float]] = {"search": [], "GET": [], "upload": []}
    for number in range(size.pick(40, 100)):
        await asyncio.sleep(_PAUSE_S)
        took["search"].append(await _ms(person.search()))
        took["GET"].append(await _ms(person.get()))
        if number % 10 == 0:
            took["upload"].append(await _ms(person.small()))
    return {
        name: max(ms) if name == "upload" else quantiles(ms, n=100, method="inclusive")[94] for name, ms in took.items()
    }


async def _ms(request: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await request
    return (time.perf_counter() - begun) * 1e3


@asynccontextmanager
async def _service(deployment: Deployment) -> AsyncIterator[aiohttp.ClientSession]:
    """Knowledge flow on a database of its own, with the limits that it ships with; its embedder is the mock model."""
    database = await deployment.database()
    port = free_port()
    model = {"base_url": f"{deployment.model_url}/v1"}
    postgres = {"host": "127.0.0.1", "port": deployment.postgres.port, "database": database.name, "username": USER}
    settings = {
        "app": {"port": port, "metrics_enabled": False},
        "security": SECURITY,
        "embedding_model": {"provider": "openai", "name": "mock", "settings": model},
        "crossencoder_model": {"provider": "local"},
        "storage": {"postgres": postgres},
        "deadlines": {"drain_s": 1},
    }
    file = deployment.directory / f"{port}.yaml"
    file.write_text(yaml.safe_dump(settings))
    env = {"CONFIG_FILE": str(file), "ENV_FILE": "", "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": ""}
    process = deployment.program("knowledge_flow_backend", env=env, traceback_allowed=True)
    await deployment.do(process.__enter__)
    try:
        await asyncio.to_thread(process.wait_for_http, f"http://127.0.0.1:{port}{_BASE}/ready")
        timeout = aiohttp.ClientTimeout(total=HANGS_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout) as http:
            yield http
    finally:
        await asyncio.to_thread(process.kill)
        await deployment.drop(database)
