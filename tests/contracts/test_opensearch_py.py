"""What opensearch-py does with bodies that are encoded already, with time limits, and with what fails."""

import logging
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opensearchpy import AsyncOpenSearch, TransportError

pytestmark = pytest.mark.servers

LINES = b'{"index":{"_id":"1"}}\n{"text":"a"}\n'


class Node:
    """Keeps what it is asked, answers with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self._status = status

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query), await request.read()))
        return web.json_response({}, status=self._status)


async def asked(node: Node, call: Any) -> Any:
    """What a client is answered."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", node.answer)
    async with TestServer(app) as server:
        client = AsyncOpenSearch(hosts=[{"host": "127.0.0.1", "port": server.port}], max_retries=0)
        try:
            return await call(client)
        finally:
            await client.close()


async def test_bytes_are_sent_as_they_are_and_the_time_limit_is_not_sent() -> None:
    """knowledge_flow_backend/engines/opensearch/cluster.py encodes bodies itself and gives each request its
    `request_timeout` among the parameters."""
    node = Node()
    limits = {"request_timeout": 3.0}
    await asked(node, lambda client: client.search(index="i", body=b'{"size":1}', params={"a": "b", **limits}))
    await asked(node, lambda client: client.bulk(index="i", body=LINES, params=dict(limits)))
    assert node.asked == [("/i/_search", {"a": "b"}, b'{"size":1}'), ("/i/_bulk", {}, LINES)]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_fails_is_asked_once_and_raised_with_its_status(status: int) -> None:
    """knowledge_flow_backend/engines/opensearch/cluster.py switches the library's retries off (`max_retries`) and has
    its own, by the status."""
    node = Node(status)
    with pytest.raises(TransportError) as failure:
        await asked(node, lambda client: client.search(index="i", body=b"{}"))
    assert failure.value.status_code == status
    assert len(node.asked) == 1


async def test_what_is_logged_comes_from_two_loggers(caplog: pytest.LogCaptureFixture) -> None:
    """knowledge_flow_backend/engines/opensearch/cluster.py silences `opensearch` and `opensearchpy.trace`."""
    names = ("opensearch", "opensearchpy.trace")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.DEBUG)
        with caplog.at_level(logging.DEBUG), pytest.raises(TransportError):
            await asked(Node(503), lambda client: client.search(index="i", body=b'{"canary":1}'))
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
    assert {record.name for record in caplog.records if "canary" in record.getMessage()} == set(names)
