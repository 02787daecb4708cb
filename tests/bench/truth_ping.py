"""How late a service answers WebSocket pings, asked 25 times a second whether or not it has answered: a process of its
own beside `tests.bench.truth`.

    python -m tests.bench.truth_ping PORT SECONDS     prints `pings [[due, seconds late], …]` at the end

Each ping is timed from when it was due, on CLOCK_MONOTONIC: who asks only after the last answer would not see most of
a stall.
"""

import asyncio
import json
import sys
import time

from tests.bench.driver import HEADERS
from tests.bench.truth_load import PATH
from tests.support.raw import PING, PONG, frame, head

PINGS_PER_S = 25


async def ping(port: int, seconds: float) -> list[tuple[float, float]]:
    """When each ping was due, and how much later its answer came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(PATH, *(f"{name}: {value}" for name, value in HEADERS.items())))
    await reader.readuntil(b"\r\n\r\n")
    count, start, found = int(seconds * PINGS_PER_S), time.perf_counter() + 0.1, []

    async def receive() -> None:
        number = 0
        while number < count:
            opcode, length = await reader.readexactly(2)
            payload = await reader.readexactly(length)
            if opcode & 0x0F == PING:  # the service asks as well
                writer.write(frame(PONG, payload))
                continue
            due, number = start + number / PINGS_PER_S, number + 1
            found.append((due, time.perf_counter() - due))

    async with asyncio.TaskGroup() as group:
        group.create_task(receive())
        for number in range(count):
            await asyncio.sleep(max(start + number / PINGS_PER_S - time.perf_counter(), 0))
            writer.write(frame(PING, b""))
    writer.close()
    return found


def main() -> int:
    """The process."""
    port, seconds = sys.argv[1:]
    print("pings", json.dumps(asyncio.run(ping(int(port), float(seconds)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
