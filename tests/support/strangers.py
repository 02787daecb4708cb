"""What a stranger sends before anybody knows them, and what it costs the loop of the service that hears it."""

import asyncio
import statistics
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import PATIENCE_S
from tests.support.raw import head, peer

CANARY = "CANARYofastranger"
ROUNDS = 5
_TIMES = 8
"""Requests of one measurement: the loop's other work is little beside so many."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A request of a stranger: where it goes, and what stands in its head. `upgrade` asks for a socket."""

    name: str
    path: str
    upgrade: bool = True
    headers: tuple[str, ...] = ()

    def bytes(self, signs: str = "") -> bytes:
        """The request with `signs` behind its path."""
        without = () if self.upgrade else ("Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version")
        more = (*self.headers, *(() if self.upgrade else ("Connection: close",)))
        return head(self.path + signs, *more, without=without)


async def answered(port: int, request: bytes) -> bytes:
    """The first bytes of the answer."""
    async with peer(port) as stranger:
        await stranger.send(request)
        async with asyncio.timeout(PATIENCE_S):
            return await stranger.reader.readuntil(b"\r\n")


async def loop_ms(pid: int, port: int, request: bytes) -> float:
    """CPU of the main thread of `pid` for a number of these requests, the median of some rounds, in ms.

    Not the least: an answer is here before its request has ended there, and beside other work long before, so that a
    round may leave what it cost to the next one.
    """
    seen: list[float] = []
    for _ in range(ROUNDS):
        before = _main_thread_ms(pid)
        for _ in range(_TIMES):
            await answered(port, request)
        seen.append(_main_thread_ms(pid) - before)
    return statistics.median(seen)


def _main_thread_ms(pid: int) -> float:
    """What the scheduler has given the thread so far: Linux counts it in nanoseconds."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6
