"""The load of the comparing benches counts what a server of known behaviour did, and takes nothing else for a turn."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import repeat

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.bench.driver import TURNS_A_SESSION, Counted, Load, Target, TurnFailed, answer_of, clients, run

ANSWER = "three small words"
FRAMES = [json.dumps({"type": "delta", "text": text}, separators=(",", ":")) for text in ("three", " small", " words")]
FINAL = json.dumps({"type": "final", "messages": [{"parts": [{"text": ANSWER}]}]}, separators=(",", ":"))


class Server:
    """Answers each ask with some frames; keeps the sessions that were asked in."""

    def __init__(self, frames: list[str]) -> None:
        self._frames = frames
        self.sessions: list[str] = []

    async def __call__(self, socket: ServerConnection) -> None:
        async for message in socket:
            self.sessions.append(json.loads(message)["session_id"])
            for frame in self._frames:
                await socket.send(frame)


@asynccontextmanager
async def serving(*frames: str) -> AsyncIterator[tuple[Target, Server]]:
    server = Server(list(frames))
    async with serve(server, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        yield Target("known", port, "/", answer=ANSWER), server


def nothing() -> None:
    """At neither edge of the window."""


@pytest.mark.servers
async def test_a_turn_is_its_frames_up_to_the_final_one() -> None:
    async with serving(*FRAMES, FINAL) as (target, _), clients(target, 1) as (client,):
        frames = await client.turn("Hello")
    assert frames == [*FRAMES, FINAL]
    assert answer_of(frames) == ANSWER


@pytest.mark.servers
async def test_the_first_frame_is_that_of_the_targets_mark() -> None:
    accepted = '{"type":"accepted"}'
    async with serving(accepted, FINAL) as (target, _):
        for mark, comes in ((accepted, True), (target.mark, False)):
            async with clients(replace(target, mark=mark), 1) as (client,):
                await client.turn("Hello")
                assert (client.first_at is not None) is comes


@pytest.mark.parametrize("last", [FINAL.replace("small", "other"), '{"type":"error","code":"internal"}'])
@pytest.mark.servers
async def test_another_text_and_another_end_are_no_turns(last: str) -> None:
    async with serving(*FRAMES, last) as (target, _), clients(target, 1) as (client,):
        with pytest.raises(TurnFailed, match=r"other|internal"):
            await client.turn("Hello")


@pytest.mark.servers
async def test_a_session_is_left_after_ten_turns() -> None:
    async with serving(FINAL) as (target, server), clients(target, 1) as (client,):
        for _ in range(2 * TURNS_A_SESSION + 1):
            await client.turn("Hello")
    sessions = server.sessions
    assert [sessions.count(one) for one in dict.fromkeys(sessions)] == [TURNS_A_SESSION, TURNS_A_SESSION, 1]


@pytest.mark.servers
async def test_a_session_that_is_prepared_is_that_of_the_next_turn() -> None:
    async with serving(FINAL) as (target, server), clients(replace(target, turns_a_session=1), 1) as (client,):
        for _ in range(2):
            await client.prepare()
            prepared = client.session_id
            await client.turn("Hello")
            assert server.sessions[-1] == prepared
    assert len(set(server.sessions)) == 2


@pytest.mark.servers
async def test_every_turn_of_a_closed_load_is_counted_and_the_edges_are_two() -> None:
    edges: list[int] = []
    async with serving(*FRAMES, FINAL) as (target, server):
        load = Load(clients=3, seconds=0.3, warm_s=1.0)
        counted = await run(target, load, at_edge=lambda: edges.append(len(server.sessions)))
    assert counted.failures == []
    assert counted.turns_in_all == len(server.sessions)
    assert 0 < edges[0] < edges[1] <= len(server.sessions)
    # Each client may have one turn that the server took before an edge and the client counts after it, or the reverse.
    assert abs(counted.ended - (edges[1] - edges[0])) <= 3
    assert counted.frames == 4 * counted.ended
    assert len(counted.firsts_s) == counted.ended
    assert all(first <= whole for first, whole in zip(counted.firsts_s, counted.latencies_s, strict=True))
    assert counted.lags_s
    assert counted.load_cpu_s > 0


@pytest.mark.servers
async def test_an_open_load_fails_turns_that_find_no_free_client() -> None:
    async with serving(*FRAMES) as (target, _):  # no end
        load = Load(clients=1, seconds=0.2, warm_s=0.05, rate=50)
        counted = await run(replace(target, turn_s=5.0), load, questions=repeat("Hello"), at_edge=nothing)
    behind = [failure for failure in counted.failures if failure.startswith("no free client")]
    assert len(behind) == len(counted.failures) - 1
    assert len(behind) >= 5
    assert counted.turns == counted.turns_in_all == 0


def test_parts_of_turns_count_as_parts() -> None:
    counted = Counted(latencies_s=[0.1] * 10, turns_in_all=20, chars_in_all=20 * 500, chars_under_way=1250)
    assert counted.turns == 12.5
    counted.chars_under_way = -2500
    assert counted.turns == 5.0
    assert Counted().turns == 0.0


def test_percentiles_are_by_nearest_rank_and_infinite_where_nothing_ended() -> None:
    counted = Counted(latencies_s=[0.004, 0.001, 0.003, 0.002])
    assert [counted.latency_ms(share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 4.0]
    assert Counted().latency_ms(0.5) == float("inf")
