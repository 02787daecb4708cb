"""How late a service answers WebSocket pings, asked 100 times a second whether or not it has answered: a process of its
own beside `tests.bench.truth`.

    python -m tests.bench.truth_ping PORT SECONDS TOKEN     prints `pings [[due, seconds late, of these its own], …]`

Each ping is timed from when it was due, on CLOCK_MONOTONIC: who asks only after the last answer would not see most of
a stall.
"""

import asyncio
import json
import sys
import time

from tests.bench.truth_load import PATH
from tests.support.raw import PING, PONG, frame, head

PINGS_PER_S = 100


async def ping(port: int, seconds: float, token: str) -> list[tuple[float, float, float]]:
    """When each ping was due, how much later its answer came, and by how much this process was late to send it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(PATH, f"Authorization: Bearer {token}"))
    await reader.readuntil(b"\r\n\r\n")
    count, start, found = int(seconds * PINGS_PER_S), time.perf_counter() + 0.1, []
    own_s: list[float] = []

    async def receive() -> None:
        number = 0
        while number < count:
            opcode, length = await reader.readexactly(2)
            payload = await reader.readexactly(length)
            if opcode & 0x0F == PING:  # the service asks as well
                writer.write(frame(PONG, payload))
                continue
            due, number = start + number / PINGS_PER_S, number + 1
            found.append((due, time.perf_counter() - due, own_s[number - 1]))

    async with asyncio.TaskGroup() as group:
        group.create_task(receive())
        for number in range(count):
            await asyncio.sleep(max(start + number / PINGS_PER_S - time.perf_counter(), 0))
            own_s.append(time.perf_counter() - start - number / PINGS_PER_S)
            writer.write(frame(PING, b""))
    writer.close()
    return found


def main() -> int:
    """The process."""
    port, seconds, token = sys.argv[1:]
    print("pings", json.dumps(asyncio.run(ping(int(port), float(seconds), token))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
