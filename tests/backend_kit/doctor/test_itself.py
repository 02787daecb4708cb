"""A service where its configuration has it listen: running, of which version, or another program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from backend_kit.doctor.checks import Diagnosis, Health, examine
from backend_kit.doctor.itself import itself_check
from backend_kit.settings import App
from tests.backend_kit.client.server import serving
from tests.backend_kit.doctor.silence import silent_port
from tests.support.ports import free_block, free_port

pytestmark = pytest.mark.servers


def app_at(port: int, metrics_port: int | None = None, **changes: object) -> App:
    own = {"metrics_port": metrics_port or port + 1, "metrics_enabled": metrics_port is not None}
    return App.model_validate({"name": "x", "base_url": "/x/v1", "port": port, **own, **changes})


async def found(app: App, within_s: float = 10.0) -> list[Diagnosis]:
    return await examine([itself_check(app, "0.2.0")], within_s)


@asynccontextmanager
async def saying(status: int, body: bytes, *, metrics: bytes = b"") -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(body=metrics)
        assert request.path == "/x/v1/ready"
        return web.Response(status=status, body=body)

    async with serving(answer) as url:
        yield int(url.rstrip("/").rpartition(":")[2])


READY = b'{"status":"ready","dependencies":{}}'


def build(version: str) -> bytes:
    return b"# TYPE x\nother 1\n" + f'app_build_info{{config_hash="a",git_sha="b",version="{version}"}} 1.0\n'.encode()


async def test_where_nothing_listens_the_service_does_not_run() -> None:
    port = free_port()
    assert await found(app_at(port)) == [
        Diagnosis("service", Health.NOT_USED, f"not running: nothing listens on port {port}")
    ]


@pytest.mark.parametrize(
    ("status", "word", "state"),
    [(200, "ready", Health.OK), (503, "starting", Health.AWAY), (503, "storage_full", Health.WRONG)],
)
async def test_a_service_is_as_it_says(status: int, word: str, state: Health) -> None:
    async with saying(status, b'{"status":"%b"}' % word.encode()) as port:
        (one,) = await found(app_at(port, address="0.0.0.0"))  # noqa: S104 - not bound: a name for all of them
    assert one.state is state
    assert one.figure.startswith(f"{word} at 127.0.0.1:{port}")


@pytest.mark.parametrize("body", [b"", b"[]", b"hello", b'{"status":"sk-secret"}', b'{"status":1}'])
async def test_another_program_on_the_port_is_wrong_and_not_quoted(body: bytes) -> None:
    async with saying(200, body) as port:
        (one,) = await found(app_at(port))
    assert one.state is Health.WRONG
    assert one.figure == f"127.0.0.1:{port} is another program (HTTP 200)"


async def test_a_service_that_stands_still_is_away() -> None:
    async with silent_port() as port:
        (one,) = await found(app_at(port), 0.1)
    assert (one.state, one.figure) == (Health.AWAY, "no answer within 0.1 s")


@pytest.mark.parametrize(
    ("metrics", "state", "figure"),
    [
        (build("0.2.0"), Health.OK, "0.2.0 in 1 of 1 processes, installed is 0.2.0"),
        (build("0.1.0"), Health.WRONG, "0.1.0 in 1 of 1 processes, installed is 0.2.0"),
    ],
)
async def test_what_runs_is_compared_with_what_is_installed(metrics: bytes, state: Health, figure: str) -> None:
    async with saying(200, READY, metrics=metrics) as port, saying(200, READY, metrics=metrics) as metrics_port:
        _, version = await found(app_at(port, metrics_port))
    assert (version.what, version.state, version.figure) == ("version", state, figure)


@pytest.mark.parametrize("metrics", [b"", build("sk-a-secret-that-is-too-long"), build("<b>"), b"\napp_build_info{"])
async def test_what_tells_no_version_is_passed_over(metrics: bytes) -> None:
    async with saying(200, READY, metrics=metrics) as port, saying(200, READY, metrics=metrics) as metrics_port:
        assert [one.what for one in await found(app_at(port, metrics_port))] == ["service"]


async def test_a_worker_that_is_not_there_is_missed() -> None:
    first = free_block(2)

    async def answer(_request: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = build("0.2.0")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", first)
    async with server, saying(200, READY) as port:
        _, version = await found(app_at(port, first, workers=2))
    assert (version.state, version.figure) == (Health.WRONG, "0.2.0 in 1 of 2 processes, installed is 0.2.0")
    assert "ALARM worker" in version.remedy
