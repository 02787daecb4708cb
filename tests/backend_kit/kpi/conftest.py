"""A Kpi of its own for each test, and what reads it back."""

import io
import threading
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi


@pytest.fixture
def kpi() -> Kpi:
    return Kpi(CollectorRegistry(), service="agentic", legacy_ms_names=True)


@pytest.fixture
def value(kpi: Kpi) -> Callable[..., float | None]:
    """The value of one sample of the exposition: `value("name", label="…")`."""

    def read(name: str, **labels: str) -> float | None:
        return kpi.registry.get_sample_value(name, labels)

    return read


class TellingStream(io.StringIO):
    """A log stream that tells, by `seen`, when a text has been written so many times."""

    def __init__(self, text: str, times: int = 1) -> None:
        super().__init__()
        self.seen = threading.Event()
        self._text = text
        self._times = times

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count(self._text) >= self._times:
            self.seen.set()
        return written
