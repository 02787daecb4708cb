"""`client.threads.stream()` of LangGraph's SDK, unmodified: a thread's runs, over cuts and instances."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from agentic_backend.settings import AgenticSettings
from backend_kit.http import listen
from tests.langgraph.stage import AGENTS as STAGE
from tests.langgraph.stage import GEORGES
from tests.support.balancers import TRUSTED, balanced
from tests.support.following import stream_events
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of
from tests.support.service import ServiceClient, client_of, for_tests, merge, serving
from tests.support.telling_agent import ANSWER, telling

AGENTS: Final[dict[str, Any]] = {
    "ai": {"agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}, telling()]}
}
GRAPHS_TOO: Final = STAGE
SLOW: Final = "mock;tokens=30;gap=50"
_INSTANCES: Final = 3
STALLS: Final = "mock;tokens=9;stall=3"
ENDLESS: Final = "mock;tokens=2000;gap=50"
ALL: Final = ["lifecycle", "values", "messages", "tools", "input", "updates", "checkpoints", "custom"]


@asynccontextmanager
async def sdk(service: ServiceClient) -> AsyncIterator[LangGraphClient]:
    """The client of LangGraph's SDK."""
    headers = {"Authorization": "Bearer local"}
    async with get_client(url=f"http://127.0.0.1:{service.port}", api_key=None, headers=headers) as client:
        yield client


@asynccontextmanager
async def streaming(service: ServiceClient, agent: str, thread_id: str | None = None) -> AsyncIterator[Any]:
    """A stream of a thread, of a new one without an id."""
    async with (
        asyncio.timeout(PATIENCE_S),
        sdk(service) as client,
        client.threads.stream(thread_id, assistant_id=agent) as thread,
    ):
        yield client, thread


def human(text: str) -> dict[str, Any]:
    """An input of one message."""
    return {"messages": [{"role": "user", "content": text}]}


def texts(values: Any) -> list[tuple[str, str]]:
    """Who said what in a state."""
    return [(one["type"], one["content"]) for one in values["messages"]]


def _ends(event: dict[str, Any]) -> bool:
    return event["method"] == "lifecycle" and event["params"]["data"]["event"] != "running"


def _is_delta(event: dict[str, Any]) -> bool:
    return event["method"] == "messages" and event["params"]["data"]["event"] == "content-block-delta"


async def subscribed(
    service: ServiceClient, thread_id: str, wish: dict[str, Any], most: int | None = None, ends: int = 1
) -> AsyncIterator[dict[str, Any]]:
    """The events of a subscription, up to the end of so many runs, or `most` of them."""
    count = 0
    body = {"channels": ALL, **wish}
    async with service.http.post(f"/threads/{thread_id}/stream/events", json=body) as response:
        assert response.status == 200, await response.text()
        async for event in stream_events(response):
            if "data" not in event:
                continue
            said = json.loads(event["data"])
            assert (event["event"], event["id"]) == (said["method"], str(said["seq"]))
            yield said
            count += 1
            ends -= _ends(said)
            if ends <= 0 or count == most:
                return


async def heard(
    service: ServiceClient, thread_id: str, most: int | None = None, ends: int = 1, **wish: Any
) -> list[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        return [one async for one in subscribed(service, thread_id, wish, most, ends)]


def plain(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without the time at which they were told."""
    return [{**one, "params": {**one["params"], "timestamp": 0}} for one in told]


async def begin(service: ServiceClient, thread_id: str, text: str, agent: str = "Georges", **params: Any) -> Any:
    """Begin a run by a command; what is answered."""
    command = {"id": 1, "method": "run.start", "params": {"assistant_id": agent, "input": human(text), **params}}
    return await command_of(service, thread_id, command)


async def command_of(service: ServiceClient, thread_id: str, command: dict[str, Any]) -> Any:
    async with service.http.post(f"/threads/{thread_id}/commands", json=command) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_a_chat_of_two_runs_in_one_stream(start_service):
    async with start_service("mock;tokens=5", **AGENTS) as service, streaming(service, "Georges") as (client, thread):
        for question in ("hi", "and again"):
            begun = await thread.run.start(input=human(question))
            assert begun["run_id"]
            (message,) = [message async for message in thread.messages]
            answer = await message
            assert len(answer.text.split()) == 5
            assert answer.usage_metadata is not None
            assert answer.usage_metadata["output_tokens"] == 5
        state = await client.threads.get_state(thread.thread_id)
        assert [kind for kind, _ in texts(state["values"])] == ["human", "ai"] * 2


async def test_what_comes_out_of_a_run(start_service):
    async with start_service("mock;tokens=5", **AGENTS) as service, streaming(service, "Georges") as (_client, thread):
        await thread.run.start(input=human("hi"))
        values = await thread.output
        assert [kind for kind, _ in texts(values)] == ["human", "ai"]


async def test_a_question_is_asked_and_answered(start_service):
    async with start_service(**AGENTS) as service, streaming(service, "Teller") as (_client, thread):
        await thread.run.start(input=human("review"))
        async for _ in thread.values:
            pass
        (asked,) = thread.interrupts
        assert [one["name"] for one in asked["value"]["action_requests"]] == ["send", "drop"]
        decisions = [{"type": "approve"}, {"type": "reject", "message": "No."}]
        await thread.run.respond({"decisions": decisions})
        values = await thread.output
        assert json.loads(texts(values)[-1][1])[0] == {"decisions": decisions}


async def test_a_stop_keeps_what_was_said(start_service):
    async with start_service(ENDLESS, **AGENTS) as service, streaming(service, "Georges") as (client, thread):
        begun = await thread.run.start(input=human("hi"))
        said = await heard(service, thread.thread_id, most=12)
        await client.runs.cancel(thread.thread_id, begun["run_id"])
        values = await thread.output
        kind, text = texts(values)[-1]
        assert kind == "ai"
        assert text.startswith("".join(one["params"]["data"]["delta"]["text"] for one in said if _is_delta(one)))


async def test_whoever_comes_later_hears_what_went_before(start_service):
    async with start_service(SLOW, **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "slow")
        first = await heard(service, thread_id, most=12)
        async with streaming(service, "Georges", thread_id) as (_, thread):
            (message,) = [message async for message in thread.messages]
            assert len((await message).text.split()) == 30
        whole = await heard(service, thread_id)
        assert plain(whole)[:12] == plain(first)
        rest = await heard(service, thread_id, since=first[-1]["seq"])
        assert plain([*first, *rest]) == plain(whole)


async def test_cut_at_every_event(start_service):
    async with start_service("mock;tokens=6", **AGENTS) as service:
        thread_id = str(uuid4())
        assert (await begin(service, thread_id, "one"))["meta"] == {"applied_through_seq": 0}
        first = await heard(service, thread_id)
        second = await begin(service, thread_id, "two")
        after = second["meta"]["applied_through_seq"]
        whole = await heard(service, thread_id, ends=2, since=0)
        assert plain(whole)[: len(first)] == plain(first)
        assert first[-1]["seq"] <= after < whole[len(first)]["seq"]
        assert [one["seq"] for one in whole] == sorted({one["seq"] for one in whole})
        for place in range(len(whole) - 1):
            ends = 2 - sum(_ends(one) for one in whole[: place + 1])
            rest = await heard(service, thread_id, ends=ends, since=whole[place]["seq"])
            assert plain(whole[: place + 1] + rest) == plain(whole), place
        # Without a place it is the newest.
        assert plain(await heard(service, thread_id)) == plain(whole)[len(first) :]


async def test_only_what_is_asked_for(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "tell", "Teller")
        await heard(service, thread_id)
        told = await heard(service, thread_id, channels=["lifecycle", "custom"])
        assert {one["method"] for one in told} == {"lifecycle", "custom"}
        messages = await heard(service, thread_id, channels=["lifecycle", "messages"], namespaces=[[]], depth=1)
        blocks = [one["params"]["data"] for one in messages if one["method"] == "messages"]
        (finished,) = [one["content"] for one in blocks if one.get("content", {}).get("text") == ANSWER]
        assert finished == {"type": "text", "text": ANSWER}
        assert {one["content"]["type"] for one in blocks if one["event"] == "content-block-finish"} == {
            "reasoning",
            "text",
        }


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ({"method": "state.get", "params": {}}, "unknown_command"),
        ({"method": "run.start", "params": {"assistant_id": "nobody", "input": human("hi")}}, "bad_request"),
        ({"method": "run.start", "params": {"assistant_id": "Georges"}}, "bad_request"),
        ({"method": "input.respond", "params": {"interrupt_id": "i", "namespace": [], "response": 1}}, "not_awaiting"),
    ],
)
async def test_refused_commands(start_service, command, error):
    async with start_service("mock;tokens=3", **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "hi")
        await heard(service, thread_id)
        answer = await command_of(service, thread_id, {"id": 7, **command})
        assert (answer["type"], answer["id"], answer["error"]) == ("error", 7, error), answer
        assert answer["message"]


async def test_a_busy_thread(start_service):
    async with start_service(ENDLESS, **AGENTS) as service:
        thread_id = str(uuid4())
        begun = await begin(service, thread_id, "hi")
        await heard(service, thread_id, most=6)
        refused = await begin(service, thread_id, "too", multitask_strategy="reject")
        assert (refused["type"], refused["error"]) == ("error", "session_busy")
        await begin(service, thread_id, "now", multitask_strategy="interrupt")
        told = await heard(service, thread_id, ends=2, most=40, since=0)
        assert sum(_ends(one) for one in told) == 1
        assert begun["type"] == "success"


async def test_nobody_else_hears_it(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service:
        path = f"/threads/{uuid4()}/stream/events"
        async with service.http.post(path, json={"channels": ["lifecycle"]}) as response:
            assert response.status == 404
        async with service.http.post(path, json={"channels": ["all"]}) as response:
            assert response.status in (404, 422, 400)


async def test_a_drain_ends_a_stream_that_waits(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "hi")
        async with service.http.post(f"/threads/{thread_id}/stream/events", json={"channels": ALL}) as response:
            told = stream_events(response)
            async with asyncio.timeout(PATIENCE_S):
                async for event in told:
                    if "data" in event and _ends(json.loads(event["data"])):
                        break
                assert len(service.service.running.hub) == 1
                service.service.running.hub.begin_drain()
                assert [event async for event in told if "data" in event] == []
        assert await service.wait_empty() == 0


async def test_a_drain_lets_a_run_end(start_service):
    async with start_service(SLOW, **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "hi")
        async with service.http.post(f"/threads/{thread_id}/stream/events", json={"channels": ALL}) as response:
            told = stream_events(response)
            async with asyncio.timeout(PATIENCE_S):
                async for event in told:
                    if "data" in event and json.loads(event["data"])["method"] == "messages":
                        break
                service.service.running.hub.begin_drain()
                rest = [json.loads(event["data"]) async for event in told if "data" in event]
        assert rest[-1]["params"]["data"]["event"] == "completed"


async def test_the_runs_of_a_thread_are_joined(start_service):
    async with start_service("mock;tokens=4;gap=20", **AGENTS) as service, streaming(service, "Georges") as (client, _):
        thread_id = str(uuid4())
        first = await client.runs.create(
            thread_id, "Georges", input=human("one"), stream_mode=["messages-tuple"], if_not_exists="create"
        )
        told, ids = [], []
        async for part in await client.threads.join_stream(thread_id, last_event_id="-1"):
            told.append((part.event, part.data))
            ids.append(part.id)
            if part.event == "run_done":
                if part.data["run_id"] != first["run_id"]:
                    break
                await client.runs.create(thread_id, "Georges", input=human("two"))
        names = [name for name, _ in told]
        assert names[0] == "metadata"
        assert set(names[1 : names.index("run_done")]) == {"messages"}
        second = told[names.index("run_done") + 1 :]
        assert [name for name, _ in second] == ["metadata", "values", "values", "run_done"]
        assert len(second[-2][1]["messages"]) == 4
        for place in (0, len(ids) // 2, len(ids) - 2):
            rest = []
            async for part in await client.threads.join_stream(thread_id, last_event_id=ids[place]):
                rest.append((part.event, part.data))
                if part.id == ids[-1]:
                    break
            assert rest == told[place + 1 :], place
        async for part in await client.threads.join_stream(thread_id, last_event_id="-1", stream_mode="lifecycle"):
            assert part.event == "metadata"
            break


@asynccontextmanager
async def several(database, mock_llm, place: Path, model: str) -> AsyncIterator[tuple[Any, list[ServiceClient]]]:
    """Instances behind a balancer: a client of that, and one of each."""
    sockets = [listen("127.0.0.1", 0) for _ in range(_INSTANCES)]
    ports = [sock.getsockname()[1] for sock in sockets]

    def own(port: int) -> AgenticSettings:
        many = {"replicas": "many", "spool_dir": str(place / f"spool-{port}")}
        changes = {"persistence": many, "fleet": {"url": f"http://127.0.0.1:{port}"}, **TRUSTED, **AGENTS}
        return AgenticSettings.model_validate(merge(for_tests(model, database, mock_llm, place, {}), changes))

    async with (
        serving([own(port) for port in ports], sockets) as instances,
        balanced("haproxy", ports, place) as balancer,
        client_of(balancer.port) as http,
        client_of(ports[0]) as one,
        client_of(ports[1]) as other,
    ):
        each = [ServiceClient(port=port, http=own) for port, own in zip(ports, (one, other), strict=False)]
        yield (ServiceClient(port=balancer.port, http=http), instances), each


@pytest.mark.proxies
async def test_a_chat_behind_a_balancer(database, mock_llm, tmp_path):
    async with (
        several(database, mock_llm, tmp_path, "mock;tokens=5") as ((service, _), _each),
        streaming(service, "Georges") as (_, thread),
    ):
        for number in range(4):
            await thread.run.start(input=human(f"hi {number}"))
            (message,) = [message async for message in thread.messages]
            assert len((await message).text.split()) == 5, number


async def rest_of_deleted(at: ServiceClient, thread_id: str, deletes: ServiceClient) -> list[Any]:
    """What a stream that waits says once its thread is deleted, until its end."""
    async with at.http.post(f"/threads/{thread_id}/stream/events", json={"channels": ALL}) as response:
        told = stream_events(response)
        async with asyncio.timeout(PATIENCE_S):
            async for event in told:
                if "data" in event and _ends(json.loads(event["data"])):
                    break
            async with deletes.http.delete(f"/threads/{thread_id}") as answer:
                assert answer.status == 204
            return [json.loads(event["data"]) async for event in told if "data" in event]


async def test_the_streams_of_a_deleted_thread_end(start_service):
    async with start_service("mock;tokens=3", **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "hi")
        (said,) = await rest_of_deleted(service, thread_id, service)
        assert said["error"] == "session_not_found"
        assert await service.wait_empty() == 0


@pytest.mark.proxies
async def test_the_streams_of_a_thread_end_that_another_instance_deletes(database, mock_llm, tmp_path):
    async with several(database, mock_llm, tmp_path, "mock;tokens=5") as (_, (one, other)):
        thread_id = str(uuid4())
        await begin(one, thread_id, "hi")
        (said,) = await rest_of_deleted(other, thread_id, one)
        assert said["error"] == "session_not_found"


@pytest.mark.proxies
async def test_a_stream_hears_runs_of_another_instance(database, mock_llm, tmp_path):
    async with several(database, mock_llm, tmp_path, "mock;tokens=5;gap=30") as (_, (one, other)):
        thread_id = str(uuid4())
        await begin(one, thread_id, "hi")
        first = await heard(one, thread_id)
        # It waits at the other, where nothing of the thread runs.
        waiting = asyncio.create_task(heard(other, thread_id, ends=2, since=first[-1]["seq"]))
        for text in ("two", "three"):
            await begin(one, thread_id, text)
            own = await heard(one, thread_id)
        told = await waiting
        assert plain(told)[-len(own) :] == plain(own)
        assert plain(await heard(other, thread_id)) == plain(own)


async def test_a_hosted_graph_tells_its_own_state(start_service):
    async with start_service(**GRAPHS_TOO) as service, streaming(service, "agent") as (client, thread):
        await thread.run.start(input=human("hi"))
        (message,) = [message async for message in thread.messages]
        assert (await message).text == "Hello there friend"
        values = await thread.output
        told = await heard(service, thread.thread_id)
        seen = [one["params"]["data"] for one in told if one["method"] == "values"]
        assert [one["id"] for one in seen[-1]["messages"]] == [one["id"] for one in values["messages"]]
        assert seen[-1]["messages"][-1]["id"] == message.message_id
        nodes = [one["params"]["data"]["node"] for one in told if one["method"] == "updates"]
        assert nodes == ["model"]
        assert [one["params"]["data"] for one in told if one["method"] == "custom"] == [{"payload": {"step": "model"}}]
        assert (await client.threads.get(thread.thread_id))["status"] == "idle"


async def test_a_hosted_graph_asks_and_goes_on(start_service):
    async with start_service(**GRAPHS_TOO) as service, streaming(service, "asker") as (client, thread):
        await thread.run.start(input=human("hi"))
        async for _ in thread.values:
            pass
        (asked,) = thread.interrupts
        assert asked["value"] == {"title": "Publish?", "question": "ok?"}
        assert (await client.threads.get(thread.thread_id))["status"] == "interrupted"
        await thread.run.respond("yes")
        values = await thread.output
        assert values["messages"][-1]["content"] == "done yes"
        told = await heard(service, thread.thread_id, ends=2, since=0)
        assert [one["params"]["data"]["event"] for one in told if _ends(one)] == ["interrupted", "completed"]
        for place in range(len(told) - 1):
            ends = 2 - sum(_ends(one) for one in told[: place + 1])
            rest = await heard(service, thread.thread_id, ends=ends, since=told[place]["seq"])
            assert plain(told[: place + 1] + rest) == plain(told), place


async def test_a_process_that_starts_again_tells_the_same_runs(start_service):
    thread_id = str(uuid4())
    async with start_service("mock;tokens=5", **AGENTS) as service:
        await begin(service, thread_id, "hi")
        before = await heard(service, thread_id)
        assert await service.flush() == 0
    async with start_service("mock;tokens=5", **AGENTS) as service:
        after = await heard(service, thread_id)
        assert _said(after) == _said(before)
        # Who has all of it hears the next run alone, who has a part of it all of it.
        assert plain(await heard(service, thread_id, since=before[4]["seq"])) == plain(after)
        second = await begin(service, thread_id, "two")
        told = await heard(service, thread_id, since=before[-1]["seq"])
        assert second["meta"]["applied_through_seq"] < told[0]["seq"]
        assert told == [one for one in told if one["seq"] > before[-1]["seq"]]
        assert sum(_ends(one) for one in told) == 1


def _said(told: list[dict[str, Any]]) -> list[Any]:
    """What a page shows in the end."""
    values = [one["params"]["data"] for one in told if one["method"] == "values"]
    finished = [one["params"]["data"] for one in told if one["params"]["data"].get("event") == "content-block-finish"]
    return [values[-1], finished, [one["params"]["data"] for one in told if one["method"] == "checkpoints"]]


def _texts(told: list[dict[str, Any]]) -> list[str]:
    """The text of each message, as far as it has come: one that begins again begins anew."""
    texts_: list[str] = []
    for one in told:
        data = one["params"]["data"]
        if one["method"] == "messages" and data["event"] == "message-start":
            texts_.append("")
        elif _is_delta(one):
            texts_[-1] += data["delta"]["text"]
    return texts_


async def test_after_a_kill_the_run_runs_again_in_the_same_thread(start_process):
    agents = {"agents": [GEORGES]}
    async with start_process(STALLS, ai=agents) as service:
        thread_id = str(uuid4())
        run_id = (await begin(service, thread_id, "hi"))["result"]["run_id"]
        first = await heard(service, thread_id, most=6)
        assert _texts(first)[-1]
        await service.ask_on_disk(run_id)
        await service.process.until(service.process.kill)
    async with start_process("mock;tokens=3", ai=agents) as service:
        rest = await heard(service, thread_id, since=first[-1]["seq"])
        assert rest[0]["seq"] > first[-1]["seq"]
        assert rest[0]["params"]["data"]["event"] == "running"
        assert [len(text.split()) for text in _texts(rest)] == [3]
        assert plain(await heard(service, thread_id)) == plain(rest)
        for place in range(len(rest) - 1):
            assert plain(await heard(service, thread_id, since=rest[place]["seq"])) == plain(rest[place + 1 :])


async def test_another_user_hears_nothing_and_begins_nothing(start_service):
    async with start_service("mock;tokens=3", security=SECURITY, **AGENTS) as service:
        thread_id = str(uuid4())
        ann, bob = headers_of("ann"), headers_of("bob")
        command = {"id": 1, "method": "run.start", "params": {"assistant_id": "Georges", "input": human("hi")}}
        path = f"/threads/{thread_id}"
        async with service.http.post(f"{path}/commands", json=command, headers=ann) as response:
            assert (await response.json())["type"] == "success"
        for ask in (command, {**command, "method": "input.respond", "params": {"interrupt_id": "i", "response": 1}}):
            async with service.http.post(f"{path}/commands", json=ask, headers=bob) as response:
                assert (await response.json())["type"] == "error"
        for wish in (
            service.http.post(f"{path}/stream/events", json={"channels": ALL}, headers=bob),
            service.http.get(f"{path}/stream", headers=bob),
        ):
            async with wish as response:
                assert response.status == 404


async def test_streams_count_as_sockets(start_service):
    async with start_service("mock;tokens=3", limits={"per_user": {"sockets": 1}}, **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, "hi")
        path, body = f"/threads/{thread_id}/stream/events", {"channels": ALL}
        async with service.http.post(path, json=body) as first:
            assert first.status == 200
            async with service.http.post(path, json=body) as second:
                assert (second.status, (await second.json())["code"]) == (429, "rate_limited")
