"""Which tests start servers, or any other program: `make test-fast` runs the others.

Those that ask for a fixture of a server are marked `servers` by themselves, the others by hand; a test without the
mark that starts a process fails, so the mark is right.
"""

import sys
from collections.abc import Iterator

import pytest

from tests.support.fork_server import FORK_EVENT

FIXTURES = frozenset({"postgres", "mock_llm", "opensearch_node", "keycloak", "browser", "debian_postgres"})
"""The fixtures which start one."""

_started: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"subprocess.Popen", FORK_EVENT}:
        _started.append(str(arguments[0]))


def watch_processes() -> None:
    """Note from now on which programs are started; there is no way to end it. Not those that uvloop starts."""
    sys.addaudithook(_note)


def mark(item: pytest.Item) -> None:
    """Mark the test where one of its fixtures starts a server."""
    if isinstance(item, pytest.Function) and not FIXTURES.isdisjoint(item.fixturenames):
        item.add_marker("servers")


@pytest.fixture(autouse=True)
def no_servers_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that starts a program and does not carry the mark."""
    _started.clear()
    yield
    if _started and request.node.get_closest_marker("servers") is None:
        pytest.fail(f"started {_started[0]}: mark it pytest.mark.servers", pytrace=False)
