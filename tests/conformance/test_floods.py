"""Peers that send, open or ask without end: each meets its limit, and the others, health and metrics go on."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.conformance.conftest import bystander
from tests.support.following import ask_frame
from tests.support.held_model import HeldModel, held_model
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.people import token_of
from tests.support.raw import CLOSE, PING, PONG, TEXT, Peer, frame, head, peer
from tests.support.service import BASE, ServiceClient, hear, say
from tests.support.standing import Standing, standing_service
from turnwise.postgres import EmbeddedPostgres

PATH = f"{BASE}/chatbot/query/ws"
MANY = 50_000


def native_head(user: str) -> bytes:
    return head(PATH, f"Authorization: Bearer {token_of(user)}", "Sec-WebSocket-Protocol: turnwise.v1")


def addresses(standing: Standing) -> tuple[str, ...]:
    """What must answer whatever comes."""
    return (f"{standing.url}/healthz", f"{standing.url}/ready", f"http://127.0.0.1:{standing.metrics_port}/metrics")


@asynccontextmanager
async def watched(standing: Standing) -> AsyncIterator[None]:
    """While the block runs, another client is answered, and health and metrics are, again and again."""
    async with bystander(standing), polled(standing):
        yield


@asynccontextmanager
async def polled(standing: Standing) -> AsyncIterator[None]:
    """While the block runs, health and metrics are asked for again and again, and answer each time."""
    answers: list[int] = []
    done = asyncio.Event()

    async def ask(url: str) -> None:
        # A connection each time: new ones must get in too.
        async with aiohttp.ClientSession() as http:
            while not done.is_set():
                async with http.get(url, headers={"Connection": "close"}) as response:
                    answers.append(response.status)

    async with asyncio.TaskGroup() as group:
        for url in addresses(standing):
            group.create_task(ask(url))
        try:
            yield
        finally:
            done.set()
    assert set(answers) == {200}
    assert len(answers) >= 3


async def exposition(standing: Standing) -> str:
    """What /metrics says."""
    url = f"http://127.0.0.1:{standing.metrics_port}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return await response.text()


async def limit_hits(standing: Standing) -> dict[str, float]:
    """`app_limit_hits_total` by limit."""
    lines = (await exposition(standing)).splitlines()
    prefix = 'app_limit_hits_total{limit="'
    found = [line.removeprefix(prefix).split('"} ') for line in lines if line.startswith(prefix)]
    return {limit: float(value) for limit, value in found}


FLOODS = {
    "pings": frame(PING) * MANY,
    "pings of 125 bytes": frame(PING, bytes(125)) * MANY,
    "pongs": frame(PONG) * MANY,
    "fragments without end": frame(TEXT, b"", fin=False) + frame(0, b"", fin=False) * MANY,
    "fragments of one byte without end": frame(TEXT, b"", fin=False) + frame(0, b"x", fin=False) * 16_000,
    "empty texts": frame(TEXT, b"") * MANY,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_frames_ends_its_own_connection_alone(standing: Standing, flood: bytes) -> None:
    async with watched(standing), peer(standing.port) as stranger:
        assert (await stranger.upgrade(native_head("stranger"))).startswith(b"HTTP/1.1 101 ")
        sending = asyncio.create_task(stranger.send(flood))
        assert await stranger.close_code() == 1008
        await sending
        await stranger.ended()


async def test_a_peer_that_pings_and_never_reads_takes_no_memory(standing: Standing) -> None:
    """What cannot be written to it is not kept: 100 such peers, each within its frames a second."""
    count = 100
    payload = frame(PING, bytes(125)) * 1500
    before = standing.rss_mb()
    async with watched(standing):
        peers = [peer(standing.port) for _ in range(count)]
        strangers = [await one.__aenter__() for one in peers]
        try:
            for number, stranger in enumerate(strangers):
                stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of every TCP transport
                await stranger.send(native_head(f"silent-{number}"))
            for stranger in strangers:
                await stranger.send(payload)
            grown = standing.rss_mb() - before
        finally:
            for one in peers:
                await one.__aexit__(None, None, None)
    # 100 x 64 KiB of write buffers are 6 MiB, and so much again for what connections are; the pongs would be 18 MiB.
    assert grown <= 14


async def test_a_thousand_messages_a_second_are_told_and_then_ended(standing: Standing) -> None:
    """docs/trust.md#D11, in bursts of what the transport still takes: `rate_limited`, then 1008."""
    codes: list[str] = []
    before = (await limit_hits(standing)).get("frames", 0)
    async with watched(standing), peer(standing.port) as stranger:
        assert (await stranger.upgrade(native_head("stranger"))).startswith(b"HTTP/1.1 101 ")
        more = frame(TEXT, b'{"type":"ping"}') * 950
        await stranger.send(more * 2)
        opcode, payload = await stranger.hear()
        while opcode != CLOSE:
            said = json.loads(payload)
            codes.append(said.get("code", said["type"]))
            if len(codes) % 950 == 0:  # a service that has little of the machine allows more of them
                await stranger.send(more)
            opcode, payload = await stranger.hear()
        assert int.from_bytes(payload[:2], "big") == 1008
    assert codes[:500] == ["pong"] * 500
    assert set(codes[500:]) <= {"pong", "rate_limited"}
    assert codes.count("rate_limited") >= 400
    assert (await limit_hits(standing))["frames"] - before >= 400


@pytest.fixture
async def model() -> AsyncIterator[HeldModel]:
    """What answers the asks of `limited`, once the test says so."""
    async with held_model() as held:
        yield held


@pytest.fixture
async def limited(
    request: pytest.FixtureRequest,
    postgres: EmbeddedPostgres,
    mock_llm: MockModel,
    model: HeldModel,
    tmp_path: Path,
) -> AsyncIterator[Standing]:
    """A service with the limits that the test names."""
    with ThreadPoolExecutor(1) as beside:  # its start and its end are waited for, which would block the loop
        loop = asyncio.get_running_loop()
        serving = standing_service(postgres, mock_llm, tmp_path, ai=model.ai, limits=request.param)
        running = await loop.run_in_executor(beside, serving.__enter__)
        yield running
        await loop.run_in_executor(beside, serving.__exit__, None, None, None)


async def open_sockets(standing: Standing, count: int, user: str) -> tuple[list[Peer], list[int], list[object]]:
    """So many handshakes at once; the peers, the statuses, and what ends them."""
    held = [peer(standing.port) for _ in range(count)]
    strangers = await asyncio.gather(*(one.__aenter__() for one in held))
    answers = await asyncio.gather(*(one.upgrade(native_head(user)) for one in strangers))
    return list(strangers), [int(answer.split(b" ", 2)[1]) for answer in answers], list(held)


async def let_go(held: list[object]) -> None:
    for one in held:
        await one.__aexit__(None, None, None)  # type: ignore[attr-defined]


async def healthy(standing: Standing) -> None:
    """Health and metrics answer now, with the flood standing."""
    async with aiohttp.ClientSession() as http:
        for url in addresses(standing):
            async with http.get(url) as response:
                assert response.status == 200, url


async def refused_with(standing: Standing, status: int, code: str) -> None:
    """One more handshake has the status, the code and the advice to come later."""
    async with peer(standing.port) as late:
        answer = await late.upgrade(native_head("late"))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"retry-after: 2" in answer.lower()
        assert f'"code":"{code}"'.encode() in await late.reader.read(4096)


@pytest.mark.parametrize(
    ("limited", "status", "code", "limit"),
    [
        ({"max_sockets": 30}, 503, "overloaded", "max_sockets"),
        ({"per_address": {"sockets": 30}}, 429, "rate_limited", "per_address_sockets"),
    ],
    indirect=["limited"],
)
async def test_a_flood_of_handshakes_gets_exactly_the_sockets_there_are(
    limited: Standing, status: int, code: str, limit: str
) -> None:
    """docs/trust.md#D9 and E10: of 300 that race, 30 get in; the places are free again when they leave."""
    for _ in range(2):
        async with polled(limited):
            _, statuses, held = await open_sockets(limited, 300, "crowd")
            assert sorted(statuses) == [101] * 30 + [status] * 270
            await healthy(limited)
            await until(lambda: level(limited, "app_ws_connections"), 30)
        await refused_with(limited, status, code)
        await let_go(held)
        await until(lambda: level(limited, "app_ws_connections"), 0)
    assert (await limit_hits(limited))[limit] == 2 * 271


async def level(standing: Standing, name: str) -> float:
    """A gauge without labels."""
    text = await exposition(standing)
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


async def until(figure: Callable[[], Awaitable[float]], wanted: float) -> None:
    """Wait until a metric says so: it is set once a second."""
    async with asyncio.timeout(PATIENCE_S):
        while await figure() != wanted:  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("limited", [{"per_user": {"sockets": 8}}], indirect=True)
async def test_of_a_users_sockets_the_newest_stay(limited: Standing) -> None:
    strangers, statuses, held = await open_sockets(limited, 40, "ann")
    others, _, more = await open_sockets(limited, 8, "bob")
    assert statuses == [101] * 40
    alive = []
    for stranger in (*strangers, *others):
        await stranger.send(frame(PING, b"still here"))
        opcode, payload = await stranger.hear()
        alive.append(opcode == PONG)
        assert opcode == PONG or int.from_bytes(payload[:2], "big") == 4409
    assert (alive[:40].count(True), alive[40:]) == (8, [True] * 8)
    assert (await limit_hits(limited))["per_user_sockets"] == 32
    await let_go([*held, *more])


@pytest.mark.parametrize(
    ("limited", "code", "limit", "answered"),
    [
        ({"max_turns": 6, "queue_length": 2, "queue_deadline_s": 600}, "overloaded", "max_turns", 8),
        ({"max_turns": 6, "queue_length": 100, "queue_deadline_s": 0.5}, "overloaded", "max_turns", 6),
        ({"per_user": {"turns": 3}}, "too_many_turns", "per_user_turns", 12),
        ({"per_user": {"asks_per_min": 1, "burst": 5}}, "rate_limited", "per_user_asks_per_min", 20),
    ],
    indirect=["limited"],
    ids=["a queue that is full", "a wait that is too long", "turns of a user", "asks of a user"],
)
async def test_a_flood_of_asks_gets_exactly_the_turns_there_are(
    limited: Standing, model: HeldModel, code: str, limit: str, answered: int
) -> None:
    """docs/trust.md#E10: 4 users ask 20 times each at once; whoever is within the limit is answered, the rest is told
    when.

    No turn ends before all the others have been told.
    """
    together, refusals = asyncio.Barrier(4), itertools.count(1)

    def refused() -> None:
        if next(refusals) == 80 - answered:
            model.go.set()

    users = [f"user-{number}" for number in range(4)]
    outcomes = await asyncio.gather(*(flood_of_asks(limited, user, code, together, refused) for user in users))
    finals = [outcome.count("final") for outcome in outcomes]
    assert sum(finals) == answered
    if limit.startswith("per_user"):
        assert finals == [answered // 4] * 4
    assert (await limit_hits(limited))[limit] == 80 - answered


async def flood_of_asks(
    standing: Standing, user: str, code: str, together: asyncio.Barrier, refused: Callable[[], None]
) -> list[str]:
    """Twenty asks at once in as many sessions; how each ended: `final` or the code, which must be the one."""
    ends: list[str] = []
    async with standing.client(user) as http:
        service = ServiceClient(port=standing.port, http=http)
        sessions = [await service.create_session() for _ in range(20)]
        async with service.native(token_of(user)) as socket:
            await together.wait()
            for number, session_id in enumerate(sessions):
                await say(socket, **ask_frame(session_id, f"{user}-{number}"))
            await healthy(standing)
            while len(ends) < len(sessions):
                said = await hear(socket)
                if said["type"] in {"final", "error"}:
                    ends.append(said.get("code", "final"))
                if said["type"] == "error":
                    assert (said["code"], said["retryable"]) == (code, True)
                    assert said["retry_after_ms"] > 0
                    refused()
    return ends
