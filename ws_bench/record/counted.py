"""What services counted of their own statements between two readings of `/statements`, beside their metrics."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import aiohttp

from backend_kit.wire import InvalidJson, loads

_READ_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Counted:
    """One statement: executions and rows, the milliseconds of its answers and those waited for its connections."""

    calls: int = 0
    rows: int = 0
    total_ms: float = 0.0
    wait_ms: float = 0.0

    def plus(self, other: "Counted", sign: int = 1) -> "Counted":
        """The sum, or with `sign` -1 the difference."""
        return Counted(
            self.calls + sign * other.calls,
            self.rows + sign * other.rows,
            self.total_ms + sign * other.total_ms,
            self.wait_ms + sign * other.wait_ms,
        )


@dataclass(frozen=True, slots=True)
class StatementsRead:
    """One reading of a process: its statements since `started` (Unix time)."""

    started: float
    statements: Mapping[str, Counted]


class NotCounted(Exception):
    """A service does not tell its statements. The text names its address and why."""


def read_statements(text: bytes) -> StatementsRead:
    """Parse an answer of `/statements`. Raises ValueError if it is none."""
    try:
        given = loads(text)
        return StatementsRead(
            float(given["started"]),
            {
                str(one["query"]): Counted(
                    int(one["calls"]), int(one["rows"]), float(one["total_ms"]), float(one["wait_ms"])
                )
                for one in given["statements"]
            },
        )
    except (InvalidJson, KeyError, TypeError, AttributeError) as failure:
        raise ValueError(f"no statements: {failure}") from failure


async def read_all(metrics_urls: Sequence[str]) -> list[StatementsRead]:
    """A reading of each process, at the address beside its metrics. Raises NotCounted."""
    timeout = aiohttp.ClientTimeout(total=_READ_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        return list(await asyncio.gather(*(_read(http, urljoin(url, "statements")) for url in metrics_urls)))


def grown(before: Iterable[StatementsRead], after: Iterable[StatementsRead]) -> dict[str, Counted]:
    """What ran between two readings of the same processes, added up over them. Of one that restarted in between, what
    it has run since."""
    total: dict[str, Counted] = {}
    for early, late in zip(before, after, strict=True):
        base = early.statements if early.started == late.started else {}
        for query, counted in late.statements.items():
            more = counted.plus(base.get(query, Counted()), -1)
            if more.calls:
                total[query] = total.get(query, Counted()).plus(more)
    return total


async def _read(http: aiohttp.ClientSession, url: str) -> StatementsRead:
    where = urlsplit(url).netloc.rpartition("@")[2]
    try:
        async with http.get(url) as response:
            if response.status != 200:
                raise NotCounted(f"{where} does not count its statements ({response.status})")
            return read_statements(await response.read())
    except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
        raise NotCounted(f"{where} does not tell its statements ({type(failure).__name__})") from None
