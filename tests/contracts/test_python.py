"""What Python's own library does beyond its documentation. It has no upper bound: these tests are all that holds it."""

import asyncio
import codecs
import gc
import socketserver
import sys
from contextvars import Context
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest


@pytest.mark.parametrize(("name", "of_text"), [("utf-8", True), ("cp1252", True), ("base64", False), ("rot13", False)])
def test_a_codec_says_whether_it_makes_text_of_bytes(name: str, of_text: bool) -> None:
    """knowledge_flow_backend/ingest/parsers/decode.py refuses by it what a file may name as its charset."""
    assert codecs.lookup(name)._is_text_encoding is of_text


async def test_a_task_refers_to_its_context_before_any_other() -> None:
    """backend_kit/kpi/culprit.py finds a task's context by `gc.get_referents` where Python has no `get_context`."""
    own, others = Context(), Context()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.sleep(0), context=own)
        task.add_done_callback(lambda _done: None, context=others)
        if sys.version_info >= (3, 12):
            assert task.get_context() is own
        else:
            assert next(one for one in gc.get_referents(task) if isinstance(one, Context)) is own


@pytest.mark.servers
def test_a_wsgi_server_can_be_bound_without_a_look_up_of_its_name() -> None:
    """backend_kit/kpi/exposition.py overrides `server_bind`, whose parent asks the resolver, and then needs only
    `setup_environ` with the name and the port that it has set."""

    class Bound(WSGIServer):
        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = "ours", int(self.server_address[1])
            self.setup_environ()

    with Bound(("127.0.0.1", 0), WSGIRequestHandler) as server:
        found: dict[str, Any] = server.base_environ
        assert (found["SERVER_NAME"], found["SERVER_PORT"]) == ("ours", str(server.server_port))
