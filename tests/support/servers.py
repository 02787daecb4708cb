"""Which tests start servers, in a thread or on their loop too, or any other program: `make test-fast` runs the others.

Those that ask for a fixture of a server, or carry the mark of a program, are marked `servers` by themselves, the others
by hand; a test without the mark that starts one fails, so the mark is right.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from tests.support.fork_server import FORK_EVENT
from tests.support.programs import PROGRAMS

FIXTURES = frozenset({"postgres", "mock_llm", "opensearch_node", "keycloak", "debian_postgres", "replicated"})
"""The fixtures which start one."""

_started: list[str] = []


class NotingLoop(uvloop.Loop):
    """Notes the servers and programs that it starts: uvloop raises no audit events, as `socket` and `subprocess` do."""

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's."""
        _started.append("a server")
        return await super().create_server(*args, **kwargs)

    async def create_unix_server(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's."""
        _started.append("a server")
        return await super().create_unix_server(*args, **kwargs)

    async def subprocess_exec(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """As the parent's."""
        _started.append(str(args[0]))
        return await super().subprocess_exec(protocol_factory, *args, **kwargs)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"subprocess.Popen", FORK_EVENT}:
        _started.append(str(arguments[0]))
    elif event == "socket.bind":
        _started.append("a server")


def watch_processes() -> None:
    """Note from now on which programs are started and who binds a port; there is no way to end it."""
    sys.addaudithook(_note)


def mark(item: pytest.Item) -> None:
    """Mark the test where one of its fixtures starts a server, or another of its marks names a program."""
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    if not FIXTURES.isdisjoint(fixtures) or any(item.get_closest_marker(program.name) for program in PROGRAMS):
        item.add_marker("servers")


def forget_processes() -> None:
    """Forget what was started, before the fixtures of a test are made: those of its file are its own too."""
    _started.clear()


@pytest.fixture(autouse=True)
def no_servers_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that starts a program or a server and does not carry the mark."""
    yield
    if _started and request.node.get_closest_marker("servers") is None:
        pytest.fail(f"started {_started[0]}: mark it pytest.mark.servers", pytrace=False)
