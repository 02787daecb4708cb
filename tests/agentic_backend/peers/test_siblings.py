"""The workers of one host reach each other by their own sockets, and pass on what another host means for a sibling."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from agentic_backend.peers.forward import Forwarder
from agentic_backend.peers.mirror import PeerLost, Peers, TurnNotThere
from agentic_backend.peers.relay import TurnRelay, relay_routes
from agentic_backend.peers.siblings import Siblings
from agentic_backend.session.stream import TextDelta, Turn, TurnEvent
from backend_kit.http import listen
from tests.agentic_backend.peers.test_relay import BASE, FINAL, ODD, SAID, make_turn, rendered, said
from tests.agentic_backend.records import until
from tests.support.patience import PATIENCE_S
from tests.support.silent_server import served

pytestmark = pytest.mark.servers

NOWHERE = "http://192.0.2.1:9"


@dataclass
class Worker:
    """One of several: its socket is among those of its siblings, its address is that of all."""

    url: str
    relay: TurnRelay
    peers: Peers
    turns: dict[str, Turn] = field(default_factory=dict)

    def holds(self, turn: Turn) -> Turn:
        self.turns[turn.ask.exchange_id] = turn
        return turn


@asynccontextmanager
async def worker(siblings: Siblings, token: str) -> AsyncIterator[Worker]:
    app = FastAPI(openapi_url=None)
    relay = TurnRelay(token, lambda exchange_id, _user: held.turns.get(exchange_id))
    peers = Peers(BASE, siblings, heartbeat_s=PATIENCE_S, connect_s=PATIENCE_S)

    async def view(name: str, query: Mapping[str, str]) -> bytes | None:
        return None if name == "none" else f"{token}: {name} of {query.get('window_s')}".encode()

    app.router.routes += relay_routes(relay, BASE, others=Forwarder(siblings, peers).answer, view=view)

    sock, own = listen("127.0.0.1", 0), siblings.listen(token)
    held = Worker(f"http://127.0.0.1:{sock.getsockname()[1]}", relay, peers)
    async with served(app, sock, own):
        try:
            yield held
        finally:
            await peers.aclose()


async def events_of(peers: Peers, url: str, token: str, **changed: Any) -> list[TurnEvent]:
    asked = {"user_id": "ann", "session_id": "s", "exchange_id": ODD, "after": 0, **changed}
    async with asyncio.timeout(PATIENCE_S):
        return [event async for batch in peers.follow(url, token, **asked) for event in batch]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough."""
    with tempfile.TemporaryDirectory(prefix="tw-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def siblings(place: Path) -> Siblings:
    return Siblings(place)


def test_a_worker_is_found_by_its_token_alone_and_while_it_listens(siblings: Siblings, place: Path) -> None:
    with siblings.listen("one"), siblings.listen("two"):
        found = [siblings.find(token) for token in ("one", "two", "three", "")]
        assert found[2:] == [None, None]
        assert {Path(path or "") for path in found[:2]} == set(place.iterdir())
        assert not [path for path in place.iterdir() if path.stem in ("one", "two")]
        for path in found[:2]:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
    # Both have ended, and the next one finds that out, once they are old enough.
    with siblings.listen("four"):
        assert None not in [siblings.find(token) for token in ("one", "two")]
    with Siblings(place, young_s=0.0).listen("three"):
        assert [siblings.find(token) for token in ("one", "two")] == [None, None]
        assert siblings.find("three") == str(next(place.iterdir()))


def test_a_path_that_is_too_long_says_so(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(OSError, match="too long"):
        Siblings(deep).listen("one")
    assert list(deep.iterdir()) == []


async def test_a_turn_of_a_sibling_is_followed_by_its_socket(siblings: Siblings) -> None:
    async with worker(siblings, "one") as one, worker(siblings, "two") as two:
        turn = one.holds(said(make_turn(), *SAID, FINAL))
        mirrored = make_turn()
        for event in await events_of(two.peers, NOWHERE, "one"):
            mirrored.take(event)
        assert rendered(mirrored) == rendered(turn)
        assert await events_of(two.peers, NOWHERE, "one", after=len(turn.events)) == []
        with pytest.raises(TurnNotThere):
            await events_of(two.peers, NOWHERE, "one", exchange_id="another")
        assert one.relay.following == two.relay.following == 0


async def test_what_another_host_means_for_a_sibling_is_passed_on(siblings: Siblings) -> None:
    elsewhere = Peers(BASE, heartbeat_s=PATIENCE_S, connect_s=PATIENCE_S)
    async with worker(siblings, "one") as one, worker(siblings, "two") as two:
        turn = one.holds(said(make_turn(), *SAID))
        events: list[TurnEvent] = []
        asked = {"user_id": "ann", "session_id": "s", "exchange_id": ODD, "after": 0}

        async def follow() -> None:
            async for batch in elsewhere.follow(two.url, "one", **asked):  # type: ignore[arg-type]  # all by name
                events.extend(batch)

        following = asyncio.create_task(follow())
        await until(lambda: len(events) == len(turn.events))
        assert (one.relay.following, two.relay.following) == (1, 0)
        said(turn, TextDelta(1, "final", "more"), FINAL)
        await asyncio.wait_for(following, PATIENCE_S)
        assert [event.seq for event in events] == [event.seq for event in turn.events]
        with pytest.raises(TurnNotThere):
            await events_of(elsewhere, two.url, "one", exchange_id="another")
        with pytest.raises(TurnNotThere):
            await events_of(elsewhere, two.url, "a token of nobody")
    await elsewhere.aclose()


async def test_what_a_worker_tells_of_itself_is_told_by_that_worker(siblings: Siblings) -> None:
    elsewhere = Peers(BASE, heartbeat_s=PATIENCE_S, connect_s=PATIENCE_S)
    async with worker(siblings, "one"), worker(siblings, "two") as two:
        # By its socket, and through a sibling to which the address of all has led.
        for peers, url in ((two.peers, NOWHERE), (elsewhere, two.url)):
            assert await peers.view(url, "one", "live", {"window_s": "60"}) == b"one: live of 60"
            with pytest.raises(TurnNotThere):
                await peers.view(url, "one", "none", {})
        with pytest.raises(TurnNotThere):
            await elsewhere.view(two.url, "a token of nobody", "live", {})
    with pytest.raises(PeerLost):
        await elsewhere.view(two.url, "two", "live", {})
    await elsewhere.aclose()


async def test_whoever_follows_through_a_sibling_is_told_when_the_holder_ends_and_leaves_it_when_it_goes(
    siblings: Siblings,
) -> None:
    elsewhere = Peers(BASE, heartbeat_s=PATIENCE_S, connect_s=PATIENCE_S)
    async with worker(siblings, "two") as two:
        async with worker(siblings, "one") as one:
            one.relay.heartbeat_s = 0.05
            turn = one.holds(said(make_turn(), *SAID))
            leaving = asyncio.create_task(events_of(elsewhere, two.url, "one"))
            await until(lambda: one.relay.following == 1)
            leaving.cancel()
            # Two heartbeats: with the first the sibling notices, and then leaves the holder.
            await until(lambda: one.relay.following == 0)
            staying = asyncio.create_task(events_of(elsewhere, two.url, "one"))
            await until(lambda: one.relay.following == 1)
            turn.mirror_from_now_on()
        with pytest.raises(PeerLost):
            await asyncio.wait_for(staying, PATIENCE_S)
    await elsewhere.aclose()
