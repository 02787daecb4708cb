"""One service as it is run, for all the tests of a module: a process with authentication, on a database of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from tests.support.agentic import CLEAN
from tests.support.mock_llm import MockModel
from tests.support.people import SECRET, headers_of
from tests.support.ports import free_port
from tests.support.postgres import Database, new_database
from tests.support.processes import ForkedModule, ModuleProcess
from tests.support.rest import rest_client
from tests.support.service import BASE, configuration, merge
from turnwise.postgres import EmbeddedPostgres


@dataclass(frozen=True, slots=True)
class Standing:
    """A running process. `http` of a test is its own: `async with standing.client("ann") as http`."""

    port: int
    metrics_port: int
    database: Database
    process: ModuleProcess

    @property
    def url(self) -> str:
        """Base of REST."""
        return f"http://127.0.0.1:{self.port}{BASE}"

    def client(self, user: str) -> aiohttp.ClientSession:
        """REST in the name of a user; paths begin with a slash behind the port."""
        return rest_client(f"http://127.0.0.1:{self.port}", headers=headers_of(user))

    def rss_mb(self) -> float:
        """Resident memory, MiB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20

    def descriptors(self) -> int:
        """Open file descriptors."""
        return int(psutil.Process(self.process.pid).num_fds())


@contextmanager
def standing_service(
    postgres: EmbeddedPostgres, mock_llm: MockModel, directory: Path, model: str = "mock", **sections: Any
) -> Iterator[Standing]:
    """Start it, wait until it is ready, end it after the block. Keyword arguments are sections of the configuration.

    It serves the users of `people`, and its metrics. A traceback in its log fails the block.
    """
    port, metrics_port = free_port(), free_port()
    with new_database(postgres) as database:
        own = {
            "app": {"port": port, "metrics_port": metrics_port, "metrics_enabled": True},
            "security": {"user": {"enabled": True}, "hs256_secret_env": "TEST_SECRET"},
            "persistence": {"spool_dir": str(directory / f"spool-{port}")},
        }
        settings = merge(merge(configuration(model, database, mock_llm), own), sections)
        file = directory / f"{port}.yaml"
        file.write_text(yaml.safe_dump(settings))
        with ForkedModule("agentic_backend", env={"CONFIG_FILE": str(file), "TEST_SECRET": SECRET, **CLEAN}) as process:
            process.wait_for_http(f"http://127.0.0.1:{port}{BASE}/ready")
            yield Standing(port, metrics_port, database, process)
