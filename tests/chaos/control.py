"""The fault proxy as a process, and what tells it what to do."""

import asyncio
import re
from types import TracebackType

from tests.support.patience import HANGS_S
from tests.support.processes import ModuleProcess

_PORTS = re.compile(r"proxy (\d+) control (\d+)")


class Way:
    """A proxy in front of one port: where it listens, and what tells it what to do."""

    def __init__(self, port: int, control: int) -> None:
        self.port = port
        self._control = control

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


class ProxyProcess(Way):
    """A context manager: proxies in front of loopback ports, `ways` in their order, of which it is the first itself.
    `start()` blocks until they listen."""

    def __init__(self, *targets: int, seed: int = 0) -> None:
        super().__init__(0, 0)
        self.ways: list[Way] = []
        chosen = [option for target in targets for option in ("--target", str(target))]
        self._process = ModuleProcess("tests.chaos.proxy", *chosen, "--seed", str(seed))

    def __enter__(self) -> "ProxyProcess":
        self._process.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: TracebackType | BaseException | None) -> None:
        self._process.__exit__(kind, *rest)

    def start(self) -> None:
        """Wait for their ports."""
        said = self._process.wait_for_line(r"^proxy \d+ control \d+")
        self.ways = [Way(int(port), int(control)) for port, control in _PORTS.findall(said.string)]
        self.port, self._control = self.ways[0].port, self.ways[0]._control
