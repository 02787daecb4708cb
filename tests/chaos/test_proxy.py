"""The fault proxy does to a connection what it is told, and nothing else. Real sockets; no durations."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.control import ProxyProcess
from tests.chaos.proxy import HANDSHAKE_S, RESEND_S, Direction, FaultProxy
from tests.chaos.until import until_it
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that sends back what comes, and keeps count of it."""

    def __init__(self) -> None:
        self.received = b""
        self.arrived = asyncio.Event()
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                self.received += piece
                self.arrived.set()
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.ended.set()
            writer.close()


ProxyAndEcho = tuple[FaultProxy, Echo]


@pytest.fixture
async def proxy_and_echo() -> AsyncIterator[ProxyAndEcho]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    proxy = FaultProxy(server.sockets[0].getsockname()[1], seed=7)
    await proxy.accept()
    yield proxy, echo
    proxy.close()
    server.close()


@asynccontextmanager
async def dialled(proxy: FaultProxy) -> AsyncIterator[Peer]:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield reader, writer
        writer.transport.abort()


async def order(proxy: FaultProxy, line: str) -> None:
    assert await proxy.command(line) == "ok"


async def test_bytes_pass_unchanged_both_ways_and_the_end_is_passed_on(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, echo = proxy_and_echo
    data = bytes(range(256)) * 4096
    async with dialled(proxy) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data
    assert echo.received == data
    assert await proxy.command("status") in (f"open={n} up={len(data)} down={len(data)}" for n in (0, 1))


async def test_jitter_never_changes_the_order(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, _ = proxy_and_echo
    await order(proxy, "delay both 5 5")
    async with dialled(proxy) as (reader, writer):
        for number in range(100):
            writer.write(number.to_bytes(2, "big"))
            await writer.drain()
            await asyncio.sleep(0)
        expected = b"".join(number.to_bytes(2, "big") for number in range(100))
        assert await reader.readexactly(200) == expected


async def test_a_black_hole_holds_everything_and_lets_it_go_again(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, echo = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        await order(proxy, "hold")
        writer.write(b"inside")
        async with dialled(proxy) as (_, other):  # accepted, and then silence
            other.write(b"x")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
            assert echo.received == b"before"
        await order(proxy, "release")
        assert await reader.readexactly(6) == b"inside"


@pytest.mark.parametrize("which", ["up", "down"])
async def test_one_direction_is_held_and_the_other_passes(proxy_and_echo: ProxyAndEcho, which: str) -> None:
    proxy, echo = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        echo.arrived.clear()
        await order(proxy, f"hold {which}")
        writer.write(b"inside")
        if which == "down":  # what is sent arrives, and only its answer does not
            await echo.arrived.wait()
            assert echo.received == b"beforeinside"
        await nothing_comes(reader)
        if which == "up":
            assert echo.received == b"before"
        await order(proxy, f"release {which}")
        assert await reader.readexactly(6) == b"inside"


@pytest.mark.parametrize("which", ["up", "down"])
async def test_with_one_direction_held_nobody_hears_of_a_new_connection(
    proxy_and_echo: ProxyAndEcho, which: str
) -> None:
    proxy, echo = proxy_and_echo
    await order(proxy, f"hold {which}")
    async with dialled(proxy) as (reader, writer):
        writer.write(b"new")
        await nothing_comes(reader)
        assert echo.received == b""
        await order(proxy, "normal")
        assert await reader.readexactly(3) == b"new"


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_the_end_of_a_connection_does_not_get_through_either(proxy_and_echo: ProxyAndEcho, end: str) -> None:
    proxy, echo = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        await order(proxy, "hold up")
        if end == "close":
            writer.close()
        else:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await echo.ended.wait()
        await order(proxy, "release up")
        await echo.ended.wait()


async def test_a_stranded_connection_is_silent_for_good_and_new_ones_are_well(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, _ = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        await order(proxy, "strand")
        writer.write(b"b")
        await echoes(proxy)
        await order(proxy, "normal")
        await nothing_comes(reader)
        await order(proxy, "reset")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
    await until_it(lambda: says(proxy, "open=0 up=2 down=2"))


async def test_a_connect_that_is_ignored_is_neither_accepted_nor_refused(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, _ = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        await order(proxy, "ignore")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        for line in ("ignore", "refuse"):
            await order(proxy, line)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        for line in ("ignore", "accept"):
            await order(proxy, line)
    await echoes(proxy)


async def test_what_is_lost_comes_late_unchanged_and_in_order(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, echo = proxy_and_echo
    await order(proxy, "loss both 20")
    async with dialled(proxy) as (reader, writer):
        expected = b""
        for number in range(10):
            piece = number.to_bytes(2, "big")
            expected += piece
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(20) == expected
    assert echo.received == expected


def test_each_loss_of_the_same_piece_costs_twice_the_time() -> None:
    way = Direction(delay_ms=5, loss_pct=50)
    waits = {round(way.pause_s(random.Random(seed)), 3) for seed in range(200)}  # noqa: S311 - what is lost
    lost = [round(0.005 + RESEND_S * (2**times - 1), 3) for times in range(5)]
    assert waits.issuperset(lost)
    assert min(waits) == 0.005
    handshakes = {way.pause_s(random.Random(seed), HANDSHAKE_S) for seed in range(200)}  # noqa: S311 - the same
    assert {0.005, 1.005, 3.005} <= handshakes
    assert {Direction(delay_ms=5).pause_s(random.Random(seed)) for seed in range(200)} == {0.005}  # noqa: S311 - none


async def test_a_refused_port_refuses_new_connections_only(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, _ = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        await order(proxy, "refuse")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        await order(proxy, "accept")
    await echoes(proxy)


async def test_a_reset_breaks_what_is_open_and_nothing_to_come(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, echo = proxy_and_echo
    async with dialled(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        await order(proxy, "reset")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await echo.ended.wait()
    await echoes(proxy)


async def test_a_limited_way_lets_the_rest_pass_when_the_limit_goes(proxy_and_echo: ProxyAndEcho) -> None:
    proxy, echo = proxy_and_echo
    await order(proxy, "rate up 1000")
    data = b"z" * 200_000
    async with dialled(proxy) as (reader, writer):
        writer.write(data)
        await echo.arrived.wait()
        assert len(echo.received) < len(data)
        await order(proxy, "normal")
        assert await reader.readexactly(len(data)) == data


async def test_a_target_that_is_away_breaks_the_connection(proxy_and_echo: ProxyAndEcho) -> None:
    nobody = FaultProxy(await unused(), seed=1)
    await nobody.accept()
    async with dialled(nobody) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
    nobody.close()


@pytest.mark.parametrize(
    "line", ["", "fly", "delay up 1", "delay sideways 1 1", "rate up much", "hold on", "loss up 100"]
)
async def test_a_command_that_makes_no_sense_is_answered_with_words(proxy_and_echo: ProxyAndEcho, line: str) -> None:
    proxy, _ = proxy_and_echo
    assert (await proxy.command(line)).startswith("error ")
    await echoes(proxy)


@pytest.mark.servers
async def test_the_process_says_its_ports_and_obeys() -> None:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[1]
    with ProxyProcess(target, target) as proxy:
        await asyncio.to_thread(proxy.start)
        assert [way.port == proxy.port for way in proxy.ways] == [True, False]
        await proxy.ways[1].tell("refuse")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.ways[1].port)
        await proxy.tell("delay down 1 1")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        assert (await proxy.status())["open"] == 1
        await proxy.tell("reset")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        with pytest.raises(ValueError, match="unknown command"):
            await proxy.tell("fly")
        writer.close()
    server.close()


async def says(proxy: FaultProxy, status: str) -> bool:
    return await proxy.command("status") == status


async def nothing_comes(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(1)


async def echoes(proxy: FaultProxy) -> None:
    async with dialled(proxy) as (reader, writer):
        writer.write(b"?")
        assert await reader.readexactly(1) == b"?"


async def unused() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port
