"""The shipped mock model as a process for the test session."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.ports import free_port
from tests.support.processes import ModuleProcess


@dataclass(frozen=True, slots=True)
class MockModel:
    """A running mock model. Its behaviour is chosen per request, by knobs in the model's name."""

    base_url: str
    process: ModuleProcess


@pytest.fixture(scope="session")
def mock_llm() -> Iterator[MockModel]:
    """One mock model for the whole session; its counts are shared by all tests."""
    port = free_port()
    with ModuleProcess("ws_bench", "mock-llm", "--host", "127.0.0.1", "--port", str(port)) as process:
        base_url = f"http://127.0.0.1:{port}/v1"
        process.wait_for_http(f"{base_url}/models")
        yield MockModel(base_url, process)
