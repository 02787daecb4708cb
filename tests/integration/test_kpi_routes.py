"""What a running service tells of itself over REST, and what it logs of a turn and its searches."""

import asyncio
import json
import logging
import re
import time
from dataclasses import replace
from typing import Any

import aiohttp
import jwt
import pytest

from agentic_backend.app import _publish_turns
from agentic_backend.llm import ModelPool
from agentic_backend.llm.coalescing import Coalescer
from agentic_backend.verdict import Gauged
from agentic_backend.verdict.day import LEVELS
from backend_kit.kpi.culprit import Sighting
from tests.support.agentic import StartProcess, start_process
from tests.support.clock import Clock
from tests.support.fleet import listening, two_instances
from tests.support.following import ask_frame
from tests.support.odd_agent import odd
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, RunningService, ServiceClient, StartService, hear, hear_until, say

__all__ = ["start_process"]

pytestmark = pytest.mark.one_instance("an instance measures itself")

SECRET = "0123456789abcdef0123456789abcdef"
ROUTES = ("/kpi/verdict", "/kpi/live", "/kpi/day", "/kpi/stalls", "/kpi/instances")


async def a_turn(service: RunningService, agent: str = "Georges") -> dict[str, Any]:
    session_id = await service.create_session(agent_id=agent)
    async with service.native() as socket:
        await say(socket, type="ask", session_id=session_id, agent_id=agent, message="canary")
        return (await hear_until(socket, "final"))[-1]


def closed(service: RunningService) -> None:
    """End the slice that the turns are in, as the clock does each second."""
    service.service.running.chat.views.windows.close_slice(Gauged())


async def test_the_verdict_counts_the_turns_of_its_window(start_service: StartService) -> None:
    async with start_service(model="mock;floor=3000") as service:
        await a_turn(service)
        closed(service)
        verdict = await service.get("/kpi/verdict?window_s=300")
        assert (verdict["bound_by"], verdict["turns"]) == ("llm_floor", 1)
        assert verdict["share"] > 0.5
        assert verdict["causes"]["llm_floor"] == verdict["ms_per_turn"]
        assert "canary" not in json.dumps(verdict)


async def test_the_live_view_has_steps_with_percentiles(start_service: StartService) -> None:
    async with start_service(model="mock;floor=3000") as service:
        await a_turn(service)
        closed(service)
        live = await service.get("/kpi/live")
    assert live["running"] == 0
    assert sum(step["turns"] for step in live["steps"]) == 1
    assert (live["whole"]["turns"], live["whole"]["turn_latency_ms"]["p99"]) == (
        1,
        live["whole"]["turn_latency_ms"]["max"],
    )
    step = next(step for step in live["steps"] if step["turns"])
    assert step["turn_latency_ms"]["p50"] == step["turn_latency_ms"]["max"] > 0
    assert step["first_token_ms"]["p95"] <= step["turn_latency_ms"]["max"]
    assert step["bound_by"] == "llm_floor"


@pytest.mark.parametrize("window_s", [300, 3600, 86_400])
async def test_the_day_has_turns_by_agent_and_model(start_service: StartService, window_s: int) -> None:
    async with start_service(model="mock;floor=300") as service:
        final = await a_turn(service)
        windows = service.service.running.chat.views.windows
        windows.day.close(windows.close_slice(Gauged()), [1.0] * len(LEVELS))
        told = await service.get(f"/kpi/day?window_s={window_s}")
        assert (told["whole"]["turns"], told["whole"]["failed"], told["window_s"]) == (1, 0, window_s)
        assert [(of["name"], of["turns"]) for of in told["agents"]] == [("Georges", 1)]
        assert [of["turns"] for of in told["models"]] == [1]
        took = final["messages"][-1]["metadata"]["latency_ms"]
        assert told["whole"]["turn_ms"]["p50"] == pytest.approx(took, rel=0.2)
        assert told["whole"]["overhead_ms"]["p99"] < told["whole"]["turn_ms"]["p50"]
        assert sum(step["turns"] for step in told["steps"]) == 1
        assert told["verdict"]["turns"] == 1
        assert set(told["steps"][-1]["levels"]) == set(told["levels"]) == set(LEVELS)
        assert "canary" not in json.dumps(told)


async def test_the_ledger_of_a_turn_is_found_by_its_id(service: RunningService) -> None:
    final = await a_turn(service)
    found = (await service.get(f"/kpi/turns/{final['exchange_id']}"))["turn"]
    assert (found["agent"], found["status"], found["code"]) == ("Georges", "ok", None)
    assert {row["phase"] for row in final["ledger"]} <= {row["phase"] for row in found["ledger"]}
    assert "canary" not in json.dumps(found)
    assert not {"session_id", "user_id", "answer"} & found.keys()
    async with service.http.get(f"{BASE}/kpi/turns/another") as response:
        assert (response.status, (await response.json())["detail"]["code"]) == (404, "exchange_not_found")


async def test_stalls_name_who_held_the_loop(start_service: StartService) -> None:
    async with start_service(ai={"agents": [odd("block")]}) as service:
        service.service.running.chat.views.culprits.count(
            Sighting("support/odd_agent.py:misbehave", "Task", "stream_agent_response", "block", "a < b"), 203.0
        )
        assert (await a_turn(service, "block"))["type"] == "final"
        stalls = await service.get("/kpi/stalls")
    # A machine that hesitates has stalls of its own, in that agent's turn too.
    culprit = ("support/odd_agent.py:misbehave", "stream_agent_response", "block")
    [told] = [stall for stall in stalls if (stall["place"], stall["phase"], stall["agent"]) == culprit]
    assert told["total_ms"] >= 203
    assert told["seconds_ago"] >= 0
    assert [stall["total_ms"] for stall in stalls] == sorted((stall["total_ms"] for stall in stalls), reverse=True)


@pytest.mark.parametrize("path", ROUTES)
async def test_nobody_sees_them_without_a_token(start_service: StartService, path: str) -> None:
    security = {"user": {"enabled": True}, "hs256_secret": SECRET}
    async with start_service(security=security) as service:
        url = f"http://127.0.0.1:{service.port}{BASE}{path}"
        token = jwt.encode({"sub": "ann", "iat": 1_700_000_000, "exp": 1_700_000_600}, SECRET)
        async with aiohttp.ClientSession() as http:
            for headers in ({}, {"Authorization": f"Bearer {token}"}):
                async with http.get(url, headers=headers) as response:
                    assert response.status == 401


@pytest.mark.parametrize("roles", [[], ["admin"], ["keeper"], ["operator", "other"]])
async def test_with_authentication_they_are_for_operators_alone(start_service: StartService, roles: list[str]) -> None:
    security = {
        "user": {"enabled": True, "client_id": "turnwise"},
        "hs256_secret": SECRET,
        "operator_roles": ["operator", "keeper"],
    }
    now = int(time.time())
    claims = {"sub": "ann", "aud": "turnwise", "iat": now, "exp": now + 600}
    token = jwt.encode({**claims, "resource_access": {"turnwise": {"roles": roles}}}, SECRET)
    allowed = "keeper" in roles or "operator" in roles
    async with start_service(security=security) as service:
        headers = {"Authorization": f"Bearer {token}"}
        for path in ROUTES:
            async with service.http.get(BASE + path, headers=headers) as response:
                assert response.status == (200 if allowed else 403)
                if not allowed:
                    assert (await response.json())["detail"]["code"] == "forbidden"
        async with service.http.get(f"{BASE}/config/permissions", headers=headers) as response:
            assert ("kpi:read" in await response.json()) is allowed


async def test_what_held_the_loop_is_named_by_its_kind_and_by_nobodys_id(start_service: StartService) -> None:
    async with start_service(ai={"agents": [odd("block")]}) as service:
        names: list[str] = []
        session_id = await service.create_session(agent_id="block")
        async with service.native() as socket:
            await say(socket, type="ask", session_id=session_id, agent_id="block", message="canary")
            names += (await hear(socket))["type"], *service.service.running.tasks.names
            final = (await hear_until(socket, "final"))[-1]
        shown = json.dumps([names, *[await service.get(path) for path in ROUTES]])
    assert not any(final[key] in shown for key in ("exchange_id", "session_id"))


@pytest.mark.parametrize("query", ["?window_s=0", "?window_s=301", "?window_s=nan", "?window_s=x"])
async def test_a_window_that_is_not_kept_is_refused(service: RunningService, query: str) -> None:
    async with service.http.get(f"{BASE}/kpi/verdict{query}") as response:
        assert response.status == 422


@pytest.mark.parametrize(
    ("ack", "last", "metric"),
    [
        ("spool", "spool_ack", "app_spool_ack_seconds"),
        ("db", "db_ack", "app_db_ack_seconds"),
        ("none", "turn_close", ""),
    ],
)
async def test_the_acknowledgement_has_the_name_of_what_gives_it(
    start_service: StartService, ack: str, last: str, metric: str
) -> None:
    async with start_service(persistence={"ack": ack}) as service:
        final = await a_turn(service)
        assert (final["durable"], final["ledger"][-1]["phase"]) == (ack, last)
        for name in ("app_spool_ack_seconds", "app_db_ack_seconds"):
            assert service.sample(name + "_count") == (name == metric)


async def test_a_turn_is_one_line_that_joins_with_its_frames(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnwise.turn")
    final = await a_turn(service)
    [line] = [record.getMessage() for record in caplog.records if record.name == "turnwise.turn"]
    assert line.startswith(f"exchange_id={final['exchange_id']} ")
    assert "canary" not in line
    phases = set(re.findall(r"phase\.(\w+)=", line))
    assert {row["phase"] for row in final["ledger"]} <= phases
    assert {"session_wait", "turn_open", "turn_close", "spool_ack", "llm_invoke"} <= phases
    assert float(re.findall(r"unattributed_ms=(\S+)", line)[0]) >= 0
    deltas = final["messages"][-1]["metadata"]["extras"]["deltas"]
    assert re.findall(r" deltas=(\S+)", line) == [str(deltas)]
    assert service.service._registry.get_sample_value("app_turn_deltas_sum") == deltas
    assert re.search(r" input_tokens=[1-9]\d* output_tokens=[1-9]\d* cost=0\.000 ", line)


async def test_how_long_texts_gather_is_published_with_the_other_levels(service: RunningService) -> None:
    full = Coalescer(clock=Clock())
    full.interval_s = 0.03
    pool = ModelPool(coalescer=full)
    _publish_turns(replace(service.service.running, models=pool), service.service.relay)
    shown = service.service._registry.get_sample_value("app_stream_hold_seconds")
    await pool.aclose()
    assert shown == pytest.approx(0.03)


async def test_tokens_cost_what_the_price_table_says(start_service: StartService) -> None:
    price = {"model": "mock", "input_per_million": 1e6, "output_per_million": 2e6}
    async with start_service(ai={"prices": [price], "currency": "EUR"}) as service:
        final = await a_turn(service)
        registry = service.service._registry
        usage = final["messages"][-1]["metadata"]["extras"]["usage"]
        spent = registry.get_sample_value("app_llm_cost_total", {"model": "mock"})
    assert usage["cost"] == usage["input_tokens"] + 2 * usage["output_tokens"] == spent
    [step] = usage["steps"]
    assert (step["step"], step["model"], step["cost"]) == ("answer", "mock", spent)


async def test_one_instance_alone_tells_of_itself(service: RunningService) -> None:
    assert await service.get("/kpi/instances") == []
    live, verdict = await service.get("/kpi/live"), await service.get("/kpi/verdict")
    assert (live["instance"], live["worker"]) == (verdict["instance"], verdict["worker"]) == (None, None)
    async with service.http.get(f"{BASE}/kpi/live?instance=another") as response:
        assert response.status == 422
        assert (await response.json())["detail"]["code"] == "bad_request"


async def test_each_instance_shows_the_measurements_of_any(start_process: StartProcess) -> None:
    async with two_instances(start_process) as (one, other):
        async with listening(other, ask_frame(await other.create_session(), "e")) as asked:
            assert (await asked.end())["type"] == "final"
        listed = await one.get("/kpi/instances")
        (mine,) = [row for row in listed if row["here"]]
        (theirs,) = [row for row in listed if not row["here"]]
        assert mine.keys() == theirs.keys() == {"id", "url", "draining", "here"}
        for path in ("/kpi/live?window_s=300", "/kpi/verdict?window_s=300", "/kpi/day?window_s=3600"):
            there = await turns_at(one, f"{path}&instance={theirs['id']}")
            assert (there["instance"], there["worker"]) == (theirs["id"], None)
            for here in (await one.get(path), await one.get(f"{path}&instance={mine['id']}")):
                assert here["instance"] == mine["id"]
                assert here.get("whole", here)["turns"] == 0
        assert isinstance(await one.get(f"/kpi/stalls?instance={theirs['id']}"), list)
        async with one.http.get(f"{BASE}/kpi/live?instance=nobody") as response:
            assert response.status == 422
        await other.process.until(other.process.kill)
        async with one.http.get(f"{BASE}/kpi/live?instance={theirs['id']}") as response:
            assert response.status == 503


async def turns_at(service: ServiceClient, path: str) -> dict[str, Any]:
    """The view, once it has a turn: the second in which that ended is over."""
    async with asyncio.timeout(PATIENCE_S):
        while not (view := await service.get(path)).get("whole", view)["turns"]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    return view  # type: ignore[no-any-return]  # JSON
