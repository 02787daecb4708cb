"""Logs what those programs of a start use that do not tell of themselves, and the launcher itself."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

from backend_kit.processes import Family
from turnwise.console import Console
from turnwise.supervise import Child

EVERY_S: Final = 10.0
"""As often as the services write their summaries by default."""


class ProcessLog:
    """Lines about programs and what they have started, such as the processes of Postgres: `name=postgres`."""

    def __init__(self, name: str, console: Console, running: Callable[[], Sequence[Child]]) -> None:
        """`name` is that of this process; `running` are the programs to tell of."""
        self._name = name
        self._console = console
        self._running = running
        self._families: dict[str, Family] = {name: Family(alone=True)}

    async def write_each(self, seconds: float = EVERY_S) -> None:
        """Write the lines at this interval until cancelled."""
        while True:
            pids = {self._name: os.getpid()} | {one.name: one.pid for one in self._running() if one.pid is not None}
            await asyncio.to_thread(self._tell, pids)
            await asyncio.sleep(seconds)

    def _tell(self, pids: dict[str, int]) -> None:
        for name, pid in pids.items():
            family = self._families.get(name)
            if family is None or family.pid != pid:
                self._families[name] = Family(pid)  # it tells from its next look on
            elif (line := family.line(name)) is not None:
                self._console.output(self._name, line)
