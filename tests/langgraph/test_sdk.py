"""LangGraph's SDK for Python, unmodified: what its users' code relies on beyond keys and statuses."""

import asyncio
import json
from uuid import uuid4

import psycopg
import pytest
from httpx import HTTPStatusError
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError, UnprocessableEntityError

from tests.agentic_backend.records import until_waiting
from tests.langgraph.graphs import QUESTION
from tests.langgraph.stage import AGENTS, BEARER, client_of, human, told, url_of
from tests.support.patience import PATIENCE_S

EACH = pytest.mark.parametrize("agent", ["agent", "Georges"], ids=["hosted", "ours"])
ENDLESS = "mock;tokens=2000;gap=50"


async def heard(stream):
    """Name and data of each part, to the end."""
    return [(part.event, part.data) async for part in stream]


def named(parts, event):
    return [data for name, data in parts if name == event]


async def status_once(client, thread, run_id, *wanted):
    """The status of a run, once it is one of these."""
    async with asyncio.timeout(PATIENCE_S):
        while (status := (await client.runs.get(thread, run_id))["status"]) not in wanted:
            pass
    return status


async def thread_of(client, **given):
    return (await client.threads.create(**given))["thread_id"]


@EACH
async def test_a_chat_by_each_way_to_run(start_service, agent):
    async with start_service("mock;tokens=3", **AGENTS) as service, client_of(service) as client:
        thread = await thread_of(client)
        waited = await client.runs.wait(thread, agent, input=human("one"))
        assert [kind for kind, _ in told(waited)] == ["human", "ai"]
        parts = await heard(client.runs.stream(thread, agent, input=human("two"), stream_mode="values"))
        assert parts[0][0] == "metadata"
        assert [len(values["messages"]) for values in named(parts, "values")] == [3, 4]
        run = await client.runs.create(thread, agent, input=human("three"))
        joined = await client.runs.join(thread, run["run_id"])
        assert told(joined)[:4] == told(named(parts, "values")[-1])
        assert len(joined["messages"]) == 6
        state = await client.threads.get_state(thread)
        assert told(state["values"]) == told(joined)
        runs = await client.runs.list(thread)
        assert [one["status"] for one in runs] == ["success"] * 3
        assert runs[0]["run_id"] == run["run_id"]
        assert (await client.runs.get(thread, run["run_id"]))["status"] == "success"


@EACH
async def test_who_made_a_run_is_told_which_before_its_first_event(start_service, agent):
    async with start_service("mock;tokens=3", **AGENTS) as service, client_of(service) as client:
        thread, made = await thread_of(client), []
        stream = client.runs.stream(thread, agent, input=human("one"), on_run_created=made.append)
        first = await anext(stream)
        assert made == [{"run_id": first.data["run_id"], "thread_id": thread}]
        await heard(stream)
        # Of a thread that was made for it, too: it can be joined.
        parts = await heard(client.runs.stream(None, agent, input=human("one"), on_run_created=made.append))
        assert made[1]["run_id"] == parts[0][1]["run_id"]


@EACH
async def test_ids_of_messages_are_the_client_s_and_those_of_their_fragments(start_service, agent):
    async with start_service("mock;tokens=5", **AGENTS) as service, client_of(service) as client:
        thread, mine = await thread_of(client), str(uuid4())
        content = [{"type": "text", "text": "one"}]
        parts = await heard(
            client.runs.stream(
                thread,
                agent,
                input=human("", id=mine) | {"messages": [{"role": "user", "id": mine, "content": content}]},
                stream_mode=["values", "messages-tuple"],
            )
        )
        question, answer = named(parts, "values")[-1]["messages"]
        assert question["id"] == mine
        assert question["content"] in ("one", content)
        fragments = [message for message, _ in named(parts, "messages")]
        assert {one["id"] for one in fragments} == {answer["id"]}
        assert "".join(one["content"] for one in fragments) == answer["content"]
        state = await client.threads.get_state(thread)
        assert [one["id"] for one in state["values"]["messages"]] == [mine, answer["id"]]


async def test_a_question_makes_the_run_a_success_and_the_thread_interrupted(start_service):
    async with start_service(**AGENTS) as service, client_of(service) as client:
        thread = await thread_of(client)
        modes = ["values", "updates"]
        parts = await heard(client.runs.stream(thread, "asker", input=human("one"), stream_mode=modes))
        (asked,) = named(parts, "updates")[-1]["__interrupt__"]
        assert asked["value"] == QUESTION
        assert named(parts, "values")[-1]["__interrupt__"][0]["id"] == asked["id"]
        run_id = parts[0][1]["run_id"]
        assert (await client.runs.get(thread, run_id))["status"] == "success"
        about = await client.threads.get(thread)
        assert about["status"] == "interrupted"
        assert [one["id"] for task in about["interrupts"].values() for one in task] == [asked["id"]]
        (found,) = await client.threads.search(status="interrupted")
        assert found["thread_id"] == thread
        state = await client.threads.get_state(thread)
        assert state["next"] == ["ask"]
        assert [one["interrupts"][0]["id"] for one in state["tasks"]] == [asked["id"]]

        went_on = await heard(client.runs.stream(thread, "asker", command={"resume": "yes"}, stream_mode=modes))
        assert went_on[0][1]["run_id"] != run_id  # a run of its own
        assert told(named(went_on, "values")[-1])[-1] == ("ai", "done yes")
        assert (await client.threads.get(thread))["status"] == "idle"
        assert [one["status"] for one in await client.runs.list(thread)] == ["success", "success"]
        with pytest.raises(HTTPStatusError, match="No answer is awaited here"):
            await client.runs.wait(thread, "asker", command={"resume": "no"})


@EACH
async def test_a_cancelled_run_is_interrupted_and_what_it_said_stays(start_service, agent):
    async with start_service(ENDLESS, **AGENTS) as service, client_of(service) as client:
        thread = await thread_of(client)
        stream = client.runs.stream(thread, agent, input=human("long"), stream_mode="messages-tuple")
        run_id, said = (await anext(stream)).data["run_id"], ""
        async for part in stream:
            said += part.data[0]["content"]
            if len(said.split()) >= 3:
                break
        await stream.aclose()
        assert (await client.threads.get(thread))["status"] == "busy"
        assert (await client.runs.get(thread, run_id))["status"] in ("pending", "running")
        await client.runs.cancel(thread, run_id, wait=True)
        assert (await client.runs.get(thread, run_id))["status"] == "interrupted"
        assert (await client.threads.get(thread))["status"] == "idle"
        state = await client.threads.get_state(thread)
        kind, text = told(state["values"])[-1]
        assert kind == "ai"
        assert text.startswith(said.strip())
        with pytest.raises(NotFoundError):
            await client.runs.cancel(thread, run_id)


@EACH
async def test_what_is_stopped_while_history_is_read_is_in_it(start_service, database, agent):
    async with (
        start_service("mock;tokens=40;gap=50", **AGENTS) as service,
        client_of(service) as client,
        asyncio.TaskGroup() as group,
    ):
        thread = await thread_of(client)
        await client.runs.wait(thread, agent, input=human("before"))  # the first of a graph makes its tables
        await service.flush()
        stops = {"stream_mode": "messages-tuple", "on_disconnect": "cancel"}
        stream = client.runs.stream(thread, agent, input=human("long"), **stops)
        await anext(stream)  # which run it is
        said = (await anext(stream)).data[0]["content"].strip()
        with psycopg.connect(database.dsn) as connection:
            await asyncio.to_thread(connection.execute, "LOCK TABLE session_history IN SHARE MODE")
            connection.execute("SAVEPOINT reads")
            await asyncio.to_thread(connection.execute, "LOCK TABLE session_history IN ACCESS EXCLUSIVE MODE")
            reads = group.create_task(client.threads.get_history(thread))
            await until_waiting(database.dsn, 1)
            await stream.aclose()
            await until_waiting(database.dsn, 2)  # it has ended, and is about to be stored
            connection.execute("ROLLBACK TO SAVEPOINT reads")  # who reads goes on, who writes does not
            await reads
        asked, (kind, kept) = told(reads.result()[0]["values"])[2:]
        assert asked == ("human", "long")
        assert kind == "ai"
        assert kept.startswith(said)


@EACH
async def test_who_waits_hears_white_space_until_the_values_are_there(start_service, agent):
    async with (
        start_service(ENDLESS, deadlines={"heartbeat_s": 2}, **AGENTS) as service,
        client_of(service) as client,
        asyncio.TaskGroup() as group,
    ):
        thread = await thread_of(client)
        headers = {"Accept-Encoding": "gzip, zstd"}
        body = {"assistant_id": agent, "input": human("long")}
        async with service.http.post(f"/threads/{thread}/runs/wait", json=body, headers=headers) as waits:
            assert (waits.status, waits.content_type) == (200, "application/json")
            assert await waits.content.readexactly(1) == b"\n"
            run_id = (await client.runs.list(thread))[0]["run_id"]
            by_sdk = group.create_task(client.runs.join(thread, run_id))
            async with service.http.get(f"/threads/{thread}/runs/{run_id}/join", headers=headers) as joins:
                assert await joins.content.readexactly(1) == b"\n"
                await client.runs.cancel(thread, run_id, wait=True)
                values = json.loads(await joins.read())
            assert json.loads(await waits.read()) == values
            assert await by_sdk == values
        assert [kind for kind, _ in told(values)] == ["human", "ai"]


@EACH
async def test_a_run_beside_a_running_one_as_it_is_told(start_service, agent):
    async with start_service(ENDLESS, **AGENTS) as service, client_of(service) as client:
        thread = await thread_of(client)
        first = await client.runs.create(thread, agent, input=human("long"))
        with pytest.raises(ConflictError):
            await client.runs.create(thread, agent, input=human("x"), multitask_strategy="reject")
        queued = await client.runs.create(thread, agent, input=human("long"), multitask_strategy="enqueue")
        assert (await client.runs.get(thread, queued["run_id"]))["status"] == "pending"
        await client.runs.cancel(thread, queued["run_id"], wait=True)
        second = await client.runs.create(thread, agent, input=human("long"), multitask_strategy="interrupt")
        await status_once(client, thread, first["run_id"], "interrupted")
        third = await client.runs.create(thread, agent, input=human("long"), multitask_strategy="rollback")
        with pytest.raises(NotFoundError):
            await client.runs.get(thread, second["run_id"])
        with pytest.raises(HTTPStatusError, match="action"):
            await client.runs.cancel(thread, third["run_id"], wait=True, action="rollback")
        await client.runs.cancel(thread, third["run_id"], wait=True)
        state = await client.threads.get_state(thread)
        # The first was stopped, the second was taken back.
        assert len([kind for kind, _ in told(state["values"]) if kind == "human"]) == 2


@EACH
async def test_a_client_that_leaves_ends_its_run_only_if_it_says_so(start_service, agent):
    async with start_service(ENDLESS, **AGENTS) as service, client_of(service) as client:
        for policy in ("continue", "cancel"):
            thread = await thread_of(client)
            stream = client.runs.stream(
                thread, agent, input=human("long"), stream_mode="messages-tuple", on_disconnect=policy
            )
            run_id = (await anext(stream)).data["run_id"]
            await stream.aclose()
            if policy == "cancel":
                # Who joins it now would keep it.
                await status_once(client, thread, run_id, "interrupted")
                continue
            joined = client.runs.join_stream(thread, run_id, stream_mode="messages-tuple")
            assert (await anext(joined)).event in ("metadata", "messages")
            await joined.aclose()
            await client.runs.cancel(thread, run_id, wait=True)


@EACH
async def test_a_run_is_joined_from_its_first_event(start_service, agent):
    async with start_service("mock;tokens=5", **AGENTS) as service, client_of(service) as client:
        thread = await thread_of(client)
        modes = ["values", "messages-tuple"]
        run = await client.runs.create(thread, agent, input=human("one"), stream_mode=modes, stream_resumable=True)
        run_id = run["run_id"]
        whole = await heard(client.runs.join_stream(thread, run_id, stream_mode=modes, last_event_id="-1"))
        assert [name for name, _ in whole][:2] == ["metadata", "values"]
        assert len(named(whole, "values")[-1]["messages"]) == 2
        again = await heard(client.runs.join_stream(thread, run_id, stream_mode=modes, last_event_id="-1"))
        assert named(again, "values") == named(whole, "values")


async def test_metadata_of_threads_is_merged_and_found(start_service):
    async with start_service(**AGENTS) as service, client_of(service) as client:
        chosen = str(uuid4())
        made = await client.threads.create(thread_id=chosen, metadata={"user": "u", "tags": {"a": 1}})
        assert made["thread_id"] == chosen
        with pytest.raises(ConflictError):
            await client.threads.create(thread_id=chosen)
        assert (await client.threads.create(thread_id=chosen, if_exists="do_nothing"))["metadata"]["user"] == "u"
        await client.threads.update(chosen, metadata={"title": "x"})
        await client.runs.wait(chosen, "agent", input=human("one"))
        metadata = (await client.threads.get(chosen))["metadata"]
        assert metadata.items() >= {"user": "u", "tags": {"a": 1}, "title": "x", "graph_id": "agent"}.items()
        assert metadata["assistant_id"] == (await client.assistants.search(graph_id="agent"))[0]["assistant_id"]
        for query, count in (({"user": "u"}, 1), ({"tags": {"a": 1}}, 1), ({"user": "v"}, 0), ({}, 1)):
            assert await client.threads.count(metadata=query) == count
            assert len(await client.threads.search(metadata=query)) == count
        copied = await client.threads.copy(chosen)
        if copied is not None:
            assert copied["thread_id"] != chosen
        await client.threads.delete(chosen)
        with pytest.raises(NotFoundError):
            await client.threads.get(chosen)


@EACH
async def test_what_is_not_there_is_unknown(start_service, agent):
    async with start_service(**AGENTS) as service, client_of(service) as client:
        nobody, thread = str(uuid4()), await thread_of(client)
        with pytest.raises(NotFoundError):
            await client.threads.get_state(nobody)
        with pytest.raises(NotFoundError):
            await client.runs.get(thread, nobody)
        with pytest.raises(UnprocessableEntityError):
            await client.threads.get("abc")
        with pytest.raises(APIStatusError) as unknown:
            await client.runs.create(thread, "nobody", input=human("x"))
        assert unknown.value.status_code == 422
        with pytest.raises(UnprocessableEntityError) as mode:
            await client.runs.create(thread, agent, input=human("x"), stream_mode="debug")
        assert "stream mode" in str(mode.value)
        made = await client.runs.wait(nobody, agent, input=human("x"), if_not_exists="create")
        assert len(made["messages"]) == 2
        assert (await client.threads.get(nobody))["thread_id"] == nobody


async def test_memories_of_a_user(start_service):
    async with start_service(**AGENTS) as service, client_of(service) as client:
        store, place = client.store, ["likes", "food"]
        await store.put_item(place, "cheese", {"text": "old"})
        await store.put_item(place, "tea", {"text": "green"})
        assert (await store.get_item(place, "cheese"))["value"] == {"text": "old"}
        assert await store.get_item(place, "milk") is None
        found = await store.search_items(["likes"], filter={"text": "green"})
        assert [one["key"] for one in found["items"]] == ["tea"]
        assert (await store.list_namespaces())["namespaces"] == [place]
        await store.delete_item(place, "tea")
        assert await store.get_item(place, "tea") is None


@EACH
async def test_without_asyncio(start_service, agent):
    def runs(url):
        with get_sync_client(url=url, api_key=None, headers=BEARER) as client:
            thread = client.threads.create()["thread_id"]
            waited = client.runs.wait(thread, agent, input=human("one"))
            parts = [(part.event, part.data) for part in client.runs.stream(thread, agent, input=human("two"))]
            assert told(named(parts, "values")[-1])[:2] == told(waited)
            assert told(client.threads.get_state(thread)["values"]) == told(named(parts, "values")[-1])
            assert len(client.threads.get_history(thread)) >= 4
            run = client.runs.create(thread, agent, input=human("three"))
            return len(client.runs.join(thread, run["run_id"])["messages"])

    async with start_service("mock;tokens=3", **AGENTS) as service:
        assert await asyncio.to_thread(runs, url_of(service)) == 6
