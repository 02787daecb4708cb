"""The relay of a whole service: who may follow its turns from another instance, and until when."""

import asyncio
import json
from importlib.metadata import version
from typing import Any

import pytest

from agentic_backend.chat import relay as frames
from agentic_backend.peers.mirror import Peers, TurnNotThere, mirror
from agentic_backend.peers.relay import PATH
from agentic_backend.session.stream import Ask, Final, TextDelta, Turn
from tests.agentic_backend.records import until
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, NATIVE, RunningService, StartService, hear_until, say

pytestmark = pytest.mark.one_instance("is about one instance as another one sees it")

MANY: dict[str, Any] = {"persistence": {"ack": "db", "replicas": "many"}}


def token_of(service: RunningService) -> str:
    return service.service.relay.token


def copy_of(session_id: str) -> Turn:
    return Turn(Ask(session_id, "Georges", "Hello", "e", "admin", 0.0))


async def mirrored(service: RunningService, peers: Peers, session_id: str, after: int = 0) -> Turn:
    """The turn `e` of the session, as another instance has it at its end."""
    copy = copy_of(session_id)
    url = f"http://127.0.0.1:{service.port}"
    events = peers.follow(url, token_of(service), user_id="admin", session_id=session_id, exchange_id="e", after=after)
    async with asyncio.timeout(PATIENCE_S):
        await mirror(copy, events)
    return copy


def ask(session_id: str) -> dict[str, Any]:
    return {
        "type": "ask",
        "session_id": session_id,
        "agent_id": "Georges",
        "message": "Hello",
        "client_exchange_id": "e",
    }


async def test_a_real_turn_is_the_same_from_another_instance_at_every_place(start_service: StartService) -> None:
    async with start_service("mock;gap=5;tokens=20", **MANY) as service:
        peers = Peers(BASE)
        session_id = await service.create_session()
        async with service.native() as socket, asyncio.TaskGroup() as group:
            assert socket.subprotocol == NATIVE
            await say(socket, **ask(session_id))
            heard = await hear_until(socket, "accepted")
            copies = [group.create_task(mirrored(service, peers, session_id)) for _ in range(2)]
            heard += await hear_until(socket, "final")
        turn = service.turn("e")
        assert turn is not None
        wanted = [frames.native(turn, event) for event in turn.events]
        late = [await mirrored(service, peers, session_id, after) for after in range(len(wanted))]
        for copy in (*(task.result() for task in copies), late[0]):
            assert [frames.native(copy, event) for event in copy.events] == wanted
        for after, copy in enumerate(late):
            assert [frames.native(copy, event) for event in copy.events] == wanted[after:]
        assert json.loads(wanted[-1]) == heard[-1]
        await until(lambda: not service.service.relay.following)
        await peers.aclose()


async def test_only_the_token_of_the_instance_opens_it(start_service: StartService) -> None:
    async with start_service(**MANY) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id))
            await hear_until(socket, "final")
        query = {"user": "admin", "session": session_id, "exchange": "e", "after": "0"}
        answers = []
        for token in ("local", "", token_of(service)):
            headers = {"Authorization": f"Bearer {token}"}
            async with service.http.get(BASE + PATH, params=query, headers=headers) as response:
                answers.append((response.status, bool(await response.read())))
        assert answers == [(404, False), (404, False), (200, True)]


async def test_an_instance_tells_of_itself_to_who_shows_its_token(start_service: StartService) -> None:
    async with start_service(**MANY) as service:
        peers = Peers(BASE)
        url, token = f"http://127.0.0.1:{service.port}", token_of(service)
        about = json.loads(await peers.view(url, token, "about", {}))
        assert about["instance"] == service.service.running.chat.views.whose["instance"]
        assert about["version"] == version("turnwise")
        live = json.loads(await peers.view(url, token, "live", {"window_s": "60.0"}))
        assert live.keys() == (await service.get("/kpi/live")).keys()
        unkept = [{"window_s": value} for value in ("0", "301", "nan", "x")]
        for name, query in (("none", {}), *(("live", query) for query in unkept)):
            with pytest.raises(TurnNotThere):
                await peers.view(url, token, name, query)
        with pytest.raises(TurnNotThere):
            await peers.view(url, "local", "about", {})
        await peers.aclose()


async def test_one_instance_alone_has_no_relay(start_service: StartService) -> None:
    async with start_service() as service, service.http.get(BASE + PATH) as response:
        assert response.status == 404
        assert await response.read()  # as any address that is none


async def test_a_drain_lets_it_follow_to_the_end_and_it_is_no_stream_of_its_user(start_service: StartService) -> None:
    limits = {"per_user": {"sockets": 1}}
    async with start_service("mock;gap=20;tokens=50", **MANY, limits=limits) as service:
        peers = Peers(BASE)
        session_id = await service.create_session()
        async with asyncio.TaskGroup() as group:
            async with service.native() as socket:
                await say(socket, **ask(session_id))
                await hear_until(socket, "delta")
                following = [group.create_task(mirrored(service, peers, session_id)) for _ in range(3)]
                await until(lambda: service.service.relay.following == 3)
                assert len(service.service.running.hub) == 1
            await service.service.drain()
            copies = [await one for one in following]
        for copy in copies:
            end = copy.events[-1].payload
            assert isinstance(end, Final)
            texts = [event.payload.text for event in copy.events if isinstance(event.payload, TextDelta)]
            assert "".join(texts) == end.messages[-1].text
        await peers.aclose()
