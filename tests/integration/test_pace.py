"""How long turns of an agent took: told to whoever may ask it, once there are some."""

import json
from typing import Any

import pytest

from agentic_backend.rest.agents import LEAST_TURNS
from tests.integration.test_agent_access import AGENTS, SECURITY, closed_for, request
from tests.support.service import BASE, RunningService, StartService, hear_until, say

pytestmark = pytest.mark.one_instance("each instance tells of the turns that it has measured")

NOTHING = {"turns": None, "median_ms": None}


async def turns(service: RunningService, agent_id: str, count: int) -> None:
    session_id = await service.create_session(agent_id=agent_id)
    async with service.native() as socket:
        for number in range(count):
            ask = {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": "Hello"}
            await say(socket, **ask, client_exchange_id=f"{session_id}-{number}")
            await hear_until(socket, "final")


async def test_the_median_is_told_once_there_are_some_turns(start_service: StartService) -> None:
    ai: dict[str, Any] = {**AGENTS, "use_static_config_only": False}
    async with start_service(ai=ai) as service:
        assert await service.get("/agents/Georges/pace") == NOTHING
        await turns(service, "Georges", LEAST_TURNS - 1)
        assert await service.get("/agents/Georges/pace") == NOTHING
        await turns(service, "Georges", 1)
        told = await service.get("/agents/Georges/pace")
        assert told["turns"] == LEAST_TURNS
        # What operators see of the same turns.
        (seen,) = (await service.get("/kpi/day?window_s=86400"))["agents"]
        assert (seen["name"], seen["turn_ms"]["p50"]) == ("Georges", told["median_ms"])
        assert await service.get("/agents/Hidden/pace") == NOTHING
        async with service.http.post(f"{BASE}/agents/create", json={"name": "Ada"}) as response:
            made = (await response.json())["id"]
        await turns(service, made, LEAST_TURNS)
        assert await service.get(f"/agents/{made}/pace") == NOTHING


async def test_an_agent_that_one_may_not_use_is_unknown(start_service: StartService) -> None:
    async with start_service(security=SECURITY, ai=AGENTS) as service:
        await closed_for(service, "use", {"users": ["ann"]})
        hidden = await request(service, "bob", "GET", f"{BASE}/agents/Hidden/pace")
        assert hidden == await request(service, "bob", "GET", f"{BASE}/agents/nobody/pace")
        assert (hidden[0], json.loads(hidden[1])["detail"]["code"]) == (404, "agent_not_found")
        assert json.loads((await request(service, "ann", "GET", f"{BASE}/agents/Hidden/pace"))[1]) == NOTHING
