"""Sessions whose id their client has chosen, over REST and as doors open them."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from agentic_backend.errors import Conflict, SessionLimitReached
from agentic_backend.session.opening import Sessions
from tests.support.following import ask_frame
from tests.support.people import SECURITY, headers_of
from tests.support.service import BASE, RunningService, StartService, hear_until, hits, say


async def post(service: RunningService, user: str | None = None, **body: Any) -> tuple[int, Any]:
    headers = {} if user is None else headers_of(user)
    async with service.http.post(f"{BASE}/chatbot/session", json=body, headers=headers) as response:
        return response.status, await response.json()


def sessions_of(service: RunningService) -> Sessions:
    return service.instances[0].running.doors.sessions


async def talk(service: RunningService, session_id: str, exchange_id: str, message: str) -> list[dict[str, Any]]:
    async with service.native() as socket:
        await say(socket, **ask_frame(session_id, exchange_id, message))
        return await hear_until(socket, "final")


async def test_the_same_id_is_the_same_session_however_often_it_is_made(service: RunningService) -> None:
    chosen = str(uuid4())
    status, made = await post(service, session_id=chosen, agent_id="Georges", title="Mine")
    assert (status, made["id"], made["title"], made["next_rank"]) == (200, chosen, "Mine", 0)
    await talk(service, chosen, "e1", "Hello")
    again = await post(service, session_id=chosen.upper(), agent_id="Georges", title="Another")
    assert again == (200, made | {"next_rank": 2, "updated_at": again[1]["updated_at"]})
    assert [session["id"] for session in await service.get("/chatbot/sessions")] == [chosen]
    # What it has said is still known to its agent, and its ranks go on.
    await talk(service, chosen, "e2", "And now?")
    assert [message["rank"] for message in await service.history(chosen)] == [0, 1, 2, 3]


async def test_an_id_that_is_no_uuid_is_refused_by_name(service: RunningService) -> None:
    for odd in ("abc", "", 7, "zUNcjWSFX4M"):
        status, refused = await post(service, session_id=odd)
        assert (status, refused["detail"]["code"], refused["detail"]["field"]) == (422, "bad_request", "session_id")


async def test_another_agent_of_the_same_session_is_a_conflict(start_service: StartService) -> None:
    agents = [{"name": name, "class_path": "agentic_backend.agent.plain"} for name in ("Georges", "Other")]
    async with start_service(ai={"agents": agents}) as service:
        chosen = str(uuid4())
        await post(service, session_id=chosen, agent_id="Georges")
        status, refused = await post(service, session_id=chosen, agent_id="Other")
        assert (status, refused["detail"]["code"], refused["detail"]["field"]) == (409, "conflict", "agent_id")
        # A door lets its user change the agent within a conversation.
        opened = await sessions_of(service).open(chosen, "admin", "Other")
        assert (opened.id, opened.agent_id) == (chosen, "Georges")


async def test_another_users_id_is_a_conflict_that_says_nothing_of_it(start_service: StartService) -> None:
    async with start_service(security=SECURITY) as service:
        chosen = str(uuid4())
        assert (await post(service, "ann", session_id=chosen, title="Secret"))[0] == 200
        status, refused = await post(service, "bob", session_id=chosen)
        assert (status, refused["detail"]["code"], refused["detail"]["field"]) == (409, "conflict", "session_id")
        assert set(refused["detail"]) == {"code", "message", "field"}
        with pytest.raises(Conflict):
            await sessions_of(service).open(chosen, "bob", "Georges")
        async with service.http.get(f"{BASE}/chatbot/sessions", headers=headers_of("bob")) as response:
            assert await response.json() == []
        async with service.http.get(f"{BASE}/chatbot/sessions", headers=headers_of("ann")) as response:
            assert [session["title"] for session in await response.json()] == ["Secret"]


async def test_nobody_takes_the_conversation_of_another_user_of_a_door_before_it_begins(
    start_service: StartService,
) -> None:
    """Its id is made of the user and a name, which others may know."""
    ask = {"model": "Georges", "messages": [{"role": "user", "content": "Hello"}]}

    async def asked(service: RunningService, name: str) -> tuple[int, str]:
        headers = headers_of("ann") | {"X-Conversation-Id": name}
        async with service.http.post("/v1/chat/completions", json=ask, headers=headers) as response:
            return response.status, response.headers.get("X-Turnwise-Session-Id", "")

    async with start_service(security=SECURITY) as service:
        status, chosen = await asked(service, "c1")
        assert status == 200
        async with service.http.delete(f"{BASE}/chatbot/session/{chosen}", headers=headers_of("ann")) as response:
            assert response.status == 200
        status, refused = await post(service, "bob", session_id=chosen)
        assert (status, refused["detail"]["code"], refused["detail"]["field"]) == (409, "conflict", "session_id")
        assert await asked(service, "c1") == (200, chosen)
        assert (await post(service, "ann", session_id=chosen))[1]["next_rank"] == 2


async def test_any_number_of_requests_may_open_it_at_once(service: RunningService) -> None:
    chosen = str(uuid4())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sessions_of(service).open(chosen, "admin", "Georges")) for _ in range(20)]
    assert {task.result().id for task in tasks} == {chosen}
    assert len(await service.get("/chatbot/sessions")) == 1


async def test_one_that_is_opened_in_the_middle_of_its_first_turn_keeps_its_ranks(service: RunningService) -> None:
    for number in range(10):
        chosen = str(UUID(int=number + 1))
        async with asyncio.TaskGroup() as group:
            group.create_task(_open_and_ask(service, chosen, f"{number}-a"))
            group.create_task(_open_and_ask(service, chosen, f"{number}-b"))
        history = await service.history(chosen)
        assert [message["rank"] for message in history] == [0, 1, 2, 3]


async def _open_and_ask(service: RunningService, session_id: str, exchange_id: str) -> None:
    await sessions_of(service).open(session_id, "admin", "Georges")
    async with service.native() as socket:
        await say(socket, **ask_frame(session_id, exchange_id), if_busy="queue")
        await hear_until(socket, "final")


async def test_the_limit_of_sessions_counts_these_too_and_not_those_that_are_there(
    start_service: StartService,
) -> None:
    async with start_service(ai={"max_concurrent_sessions_per_user": 1}) as service:
        chosen = str(uuid4())
        assert (await post(service, session_id=chosen))[0] == 200
        assert (await post(service, session_id=chosen))[0] == 200
        status, refused = await post(service, session_id=str(uuid4()))
        assert (status, refused) == (403, {"detail": "Session limit reached (1 sessions per user)."})
        with pytest.raises(SessionLimitReached) as reached:
            await sessions_of(service).open(str(uuid4()), "admin", "Georges")
        assert reached.value.most == 1
        assert hits(service, "max_concurrent_sessions_per_user") == 2


async def test_one_that_was_deleted_is_made_again_empty(service: RunningService) -> None:
    chosen = str(uuid4())
    await post(service, session_id=chosen)
    await talk(service, chosen, "e1", "Hello")
    async with service.http.delete(f"{BASE}/chatbot/session/{chosen}") as response:
        assert response.status == 200
    status, made = await post(service, session_id=chosen)
    assert (status, made["next_rank"]) == (200, 0)
    assert await service.history(chosen) == []
    await talk(service, chosen, "e1", "Another")
