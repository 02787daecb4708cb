"""A service as three instances behind a balancer: what a client sees there is what it sees of one.

`pytest --behind haproxy tests/integration` (`make test-proxy`) runs those tests of the suite that start a service in
their process, but for those that carry the mark `one_instance`, with the reason why they cannot hold there. Nothing
keeps a client at an instance but its open socket.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import pytest

from agentic_backend.app import Parts
from agentic_backend.settings import AgenticSettings
from backend_kit.http import listen
from tests.support.balancers import TRUSTED, Kind, balanced
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database
from tests.support.processes import ROOT
from tests.support.service import RunningService, StartService, client_of, for_tests, merge, run_service, serving

SUITE: Final = ROOT / "tests/integration"
_COUNT: Final = 3


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the option, leave out what does not start a service by the fixture, or needs a single instance."""
    if config.getoption("--behind") is None:
        return
    kept, out = [], []
    for item in items:
        starts = (
            isinstance(item, pytest.Function) and "start_service" in item.fixturenames and item.path.parent == SUITE
        )
        (kept if starts and item.get_closest_marker("one_instance") is None else out).append(item)
    config.hook.pytest_deselected(items=out)
    items[:] = kept


@pytest.fixture
def start_service(
    request: pytest.FixtureRequest, database: Database, mock_llm: MockModel, tmp_path: Path
) -> StartService:
    """As in `tests/support/service.py`; three instances of it with the option."""
    kind: Kind | None = request.config.getoption("--behind")

    def start(
        model: str = "mock", *, parts: Parts | None = None, **changes: Any
    ) -> AbstractAsyncContextManager[RunningService]:
        settings = for_tests(model, database, mock_llm, tmp_path, changes)
        if kind is None:
            return run_service(AgenticSettings.model_validate(settings), parts)
        return _run_several(kind, settings, Path(mkdtemp(dir=tmp_path)), parts)

    return start


@asynccontextmanager
async def _run_several(
    kind: Kind, settings: dict[str, Any], place: Path, parts: Parts | None
) -> AsyncIterator[RunningService]:
    sockets = [listen("127.0.0.1", 0) for _ in range(_COUNT)]
    ports = [sock.getsockname()[1] for sock in sockets]
    each = [AgenticSettings.model_validate(merge(settings, _own(port, place))) for port in ports]
    async with (
        serving(each, sockets, parts) as instances,
        balanced(kind, ports, place) as balancer,
        client_of(balancer.port) as http,
    ):
        yield RunningService(instances=instances, port=balancer.port, http=http)


def _own(port: int, place: Path) -> dict[str, Any]:
    many = {"replicas": "many", "spool_dir": str(place / f"spool-{port}")}
    return {"persistence": many, "fleet": {"url": f"http://127.0.0.1:{port}"}, **TRUSTED}
