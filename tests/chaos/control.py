"""The fault proxy as a process, and what tells it what to do."""

import asyncio
from types import TracebackType

from tests.support.patience import HANGS_S
from tests.support.processes import ModuleProcess


class ProxyProcess:
    """A context manager: a proxy in front of a loopback port. `start()` blocks until it listens."""

    def __init__(self, target: int, *, seed: int = 0) -> None:
        self._process = ModuleProcess("tests.chaos.proxy", "--target", str(target), "--seed", str(seed))
        self.port = 0
        self._control = 0

    def __enter__(self) -> "ProxyProcess":
        self._process.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: TracebackType | BaseException | None) -> None:
        self._process.__exit__(kind, *rest)

    def start(self) -> None:
        """Wait for its ports."""
        ports = self._process.wait_for_line(r"^proxy (\d+) control (\d+)$")
        self.port, self._control = int(ports[1]), int(ports[2])

    async def tell(self, *commands: str) -> None:
        """Give commands, in order; each is in force when this returns. Raises ValueError where one makes no sense."""
        for command in commands:
            answer = await self._ask(command)
            if answer != "ok":
                raise ValueError(answer)

    async def status(self) -> dict[str, int]:
        """`open` connections, bytes `up` and `down`."""
        pairs = (item.split("=") for item in (await self._ask("status")).split())
        return {name: int(value) for name, value in pairs}

    async def _ask(self, command: str) -> str:
        async with asyncio.timeout(HANGS_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._control)
            writer.write(f"{command}\n".encode())
            answer = (await reader.readline()).decode().strip()
            writer.close()
            return answer
