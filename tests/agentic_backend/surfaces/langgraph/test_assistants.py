"""Assistants over LangGraph's own client: agents, their graphs, and those that clients make, change and delete."""

import asyncio
import json
from uuid import uuid4

import psycopg
import pytest
from langgraph_sdk.errors import APIStatusError, NotFoundError, UnprocessableEntityError

from agentic_backend.agent.versions import MAX_VERSIONS
from agentic_backend.surfaces.langgraph.names import assistant_id_of
from backend_kit.auth import KeyScope
from tests.agentic_backend.surfaces.langgraph.clients import sdk
from tests.support.api_keys import stored_key
from tests.support.people import SECURITY, headers_of
from tests.support.service import BASE, hear_until, say

pytestmark = pytest.mark.servers

GRAPHS = "tests.agentic_backend.surfaces.langgraph.graphs"
PLAIN = "agentic_backend.agent.plain"
KEYS = [
    "assistant_id",
    "config",
    "context",
    "created_at",
    "description",
    "graph_id",
    "metadata",
    "name",
    "updated_at",
    "version",
]
NOBODY = "00000000-0000-0000-0000-000000000000"
GEORGES = assistant_id_of("Georges")


def agents(**more):
    """A configuration with agents of classes and of graphs, from which others can be made."""
    prompts = {"fields": [{"key": "prompts.system", "type": "prompt", "default": "Be Georges."}]}
    listed = [
        {"name": "Georges", "class_path": PLAIN, "tuning": prompts},
        {"name": "Rico", "class_path": "agentic_backend.agent.rag", "tuning": {"description": "Reads"}},
        {"name": "Nested", "graph": f"{GRAPHS}:nested"},
        {"name": "Declared", "graph": f"{GRAPHS}:declared", "context": {"length": 1}},
        {"name": "Free", "graph": f"{GRAPHS}:free", "context": {"tenant": "ours"}},
        {"name": "PerRun", "graph": f"{GRAPHS}:per_run"},
        {"name": "Fails", "graph": f"{GRAPHS}:fails"},
    ]
    return {"use_static_config_only": False, "agents": listed, **more}


@pytest.fixture
async def service(start_service):
    async with start_service(ai=agents()) as running:
        yield running


@pytest.fixture
async def client(service):
    async with sdk(service) as made:
        yield made


async def refused(doing):
    """The status, the text and the field of a refusal."""
    with pytest.raises(APIStatusError) as caught:
        await doing
    body = caught.value.response.json()
    return caught.value.status_code, body["detail"], body.get("field")


async def fields_of(service, agent_id):
    """The values of an agent, as REST shows them."""
    (agent,) = [one for one in await service.get("/agents") if one["id"] == agent_id]
    return {field["key"]: field["default"] for field in agent["tuning"]["fields"]}


async def agent_id_of(service, assistant):
    """The agent that is an assistant."""
    listed = await service.get("/agents")
    return next(one["id"] for one in listed if assistant_id_of(one["id"]) == assistant["assistant_id"])


async def answer(service, agent_id, exchange_id="e1"):
    """What an agent answers."""
    session_id = await service.create_session(agent_id=agent_id)
    async with service.native() as socket:
        head = {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": "Hello"}
        await say(socket, **head, client_exchange_id=exchange_id)
        final = (await hear_until(socket, "final"))[-1]
    return final["messages"][-1]["parts"][0]["text"]


async def test_configured_agents_are_assistants(client):
    found = await client.assistants.search()
    assert [one["graph_id"] for one in found] == ["Georges", "Rico", "Nested", "Declared", "Free", "PerRun", "Fails"]
    assert sorted(found[0]) == KEYS
    georges = {key: found[0][key] for key in KEYS if not key.endswith("_at")}
    assert georges == {
        "assistant_id": GEORGES,
        "graph_id": "Georges",
        "name": "Georges",
        "description": None,
        "config": {},
        "context": {},
        "metadata": {"created_by": "system"},
        "version": 1,
    }
    assert found[1]["description"] == "Reads"
    assert await client.assistants.get(GEORGES) == found[0]
    versions = await client.assistants.get_versions(GEORGES)
    assert versions == [{key: value for key, value in found[0].items() if key != "updated_at"}]
    assert await client.assistants.get_versions(GEORGES, metadata={"created_by": "ann"}) == []


async def test_they_are_searched_sorted_cut_and_counted(client, service):
    names = [one["name"] for one in await client.assistants.search(sort_by="name", sort_order="asc", limit=3)]
    assert names == ["Declared", "Fails", "Free"]
    first = await client.assistants.search(limit=4, response_format="object")
    assert first["next"] == "4"
    rest = await client.assistants.search(limit=4, offset=4, response_format="object")
    assert rest["next"] is None
    assert len(first["assistants"] + rest["assistants"]) == 7
    assert [one["name"] for one in await client.assistants.search(name="RIC")] == ["Rico"]
    assert [one["name"] for one in await client.assistants.search(graph_id="Free")] == ["Free"]
    assert await client.assistants.search(graph_id="Free", select=["name", "version"]) == [
        {"name": "Free", "version": 1}
    ]
    assert await client.assistants.search(metadata={"created_by": "ann"}) == []
    counts = [
        await client.assistants.count(**how) for how in ({}, {"name": "e"}, {"metadata": {"created_by": "system"}})
    ]
    assert counts == [7, 5, 7]
    async with service.http.post("/assistants/search", json={"limit": 2}) as response:
        assert response.headers["X-Pagination-Total"] == "7"


async def test_an_id_is_a_uuid_of_something_that_is_there(client):
    told = (422, "Invalid assistant ID: must be a UUID", "assistant_id")
    assistants = client.assistants
    for ask in (assistants.get, assistants.get_schemas, assistants.get_subgraphs, assistants.get_versions):
        assert await refused(ask("Georges")) == told
        assert (await refused(ask(NOBODY)))[0] == 404
    for change in (assistants.update, assistants.delete):
        assert await refused(change("Georges")) == told
        assert (await refused(change(NOBODY)))[0] == 404
    assert (await assistants.get(GEORGES.upper()))["assistant_id"] == GEORGES
    with pytest.raises(NotFoundError):
        await assistants.get_graph("Nobody")


async def test_the_graph_of_an_assistant(client):
    nested = await client.assistants.get_graph("Nested")
    assert nested == {
        "nodes": [
            {"id": "__start__", "type": "runnable", "data": {"name": "__start__"}},
            {"id": "outer", "type": "runnable", "data": {"name": "outer"}},
            {"id": "__end__"},
        ],
        "edges": [{"source": "__start__", "target": "outer"}, {"source": "outer", "target": "__end__"}],
    }
    for xray in (True, 1):
        deep = await client.assistants.get_graph(assistant_id_of("Nested"), xray=xray)
        assert any("inner" in node["id"] for node in deep["nodes"])
    assert await client.assistants.get_graph("Nested", xray=0) == nested
    rico = await client.assistants.get_graph("Rico")
    assert {"__start__", "__end__"} < {node["id"] for node in rico["nodes"]}
    assert any(edge.get("conditional") for edge in rico["edges"])
    per_run = await client.assistants.get_graph("PerRun")
    assert "for_admin" in {node["id"] for node in per_run["nodes"]}
    assert (await refused(client.assistants.get_graph("Nested", xray=99)))[::2] == (422, "xray")
    assert (await refused(client.assistants.get_graph("Fails")))[0] == 500


async def test_the_schemas_of_an_assistant(client):
    declared = await client.assistants.get_schemas(assistant_id_of("Declared"))
    assert declared["graph_id"] == "Declared"
    assert set(declared) == {"graph_id", *(f"{of}_schema" for of in ("input", "output", "state", "config", "context"))}
    assert set(declared["context_schema"]["properties"]) == {"tone", "length"}
    nested = await client.assistants.get_schemas(assistant_id_of("Nested"))
    assert nested["context_schema"] is None
    georges = await client.assistants.get_schemas(GEORGES)
    for each in (declared, nested, georges):
        assert all(set(each[f"{of}_schema"]["properties"]) == {"messages"} for of in ("input", "output", "state"))
    assert georges["context_schema"]["properties"]["prompts.system"]["default"] == "Be Georges."
    rico = await client.assistants.get_schemas(assistant_id_of("Rico"))
    top_k = rico["context_schema"]["properties"]["rag.top_k"]
    assert (top_k["type"], top_k["minimum"], top_k["maximum"]) == ("integer", 1, 100)
    assert (await client.assistants.get_schemas(assistant_id_of("PerRun")))["input_schema"]["properties"]


async def test_the_graphs_within_a_graph(client):
    nested = assistant_id_of("Nested")
    for found in (
        await client.assistants.get_subgraphs(nested),
        await client.assistants.get_subgraphs(nested, recurse=True),
        await client.assistants.get_subgraphs(nested, namespace="outer"),
    ):
        assert list(found) == ["outer"]
        assert set(found["outer"]["input_schema"]["properties"]) == {"messages"}
    assert await client.assistants.get_subgraphs(nested, namespace="other") == {}
    assert await client.assistants.get_subgraphs(GEORGES) == {}


async def test_an_assistant_is_made_changed_set_back_and_deleted(client, service):
    config = {"configurable": {"prompts.system": "Rhyme."}}
    made = await client.assistants.create("Georges", config, metadata={"k": "v"}, name="mine", description="d")
    assert sorted(made) == KEYS
    assert (made["graph_id"], made["config"], made["context"]) == ("Georges", config, config["configurable"])
    assert (made["metadata"], made["name"], made["description"], made["version"]) == ({"k": "v"}, "mine", "d", 1)
    made_id, agent_id = made["assistant_id"], await agent_id_of(service, made)
    assert (await fields_of(service, agent_id))["prompts.system"] == "Rhyme."
    assert await client.assistants.get(made_id) == made
    assert await answer(service, agent_id)

    changed = await client.assistants.update(
        made_id, metadata={"j": 1}, name="mine2", context={"prompts.system": "Sing."}
    )
    assert (changed["version"], changed["name"], changed["description"]) == (2, "mine2", "d")
    assert (changed["metadata"], changed["created_at"]) == ({"k": "v", "j": 1}, made["created_at"])
    assert changed["updated_at"] > made["updated_at"]
    assert changed["config"] == {"configurable": {"prompts.system": "Sing."}}
    assert (await fields_of(service, agent_id))["prompts.system"] == "Sing."
    plain = await client.assistants.update(made_id, context={})
    assert (plain["version"], plain["context"]) == (3, {})
    assert (await fields_of(service, agent_id))["prompts.system"] == "Be Georges."

    versions = await client.assistants.get_versions(made_id)
    assert [(one["version"], one["name"]) for one in versions] == [(3, "mine2"), (2, "mine2"), (1, "mine")]
    assert set(versions[0]) == {*KEYS} - {"updated_at"}
    assert [one["version"] for one in await client.assistants.get_versions(made_id, limit=1, offset=1)] == [2]
    assert [one["version"] for one in await client.assistants.get_versions(made_id, metadata={"j": 1})] == [3, 2]

    back = await client.assistants.set_latest(made_id, 1)
    assert {key: back[key] for key in KEYS if key != "updated_at"} == {
        key: made[key] for key in KEYS if key != "updated_at"
    }
    assert (await fields_of(service, agent_id))["prompts.system"] == "Rhyme."
    assert (await refused(client.assistants.set_latest(made_id, 4)))[::2] == (404, "version")
    assert (await client.assistants.update(made_id, name="mine3"))["version"] == 4

    await client.assistants.delete(made_id)
    for gone in (client.assistants.get(made_id), client.assistants.delete(made_id)):
        assert (await refused(gone))[0] == 404


async def test_it_begins_as_the_agent_that_it_is_made_of(client, service):
    made = await client.assistants.create("Rico")
    assert made["name"].startswith("Rico ")
    rico = await fields_of(service, await agent_id_of(service, made))
    assert rico == await fields_of(service, "Rico") | rico
    other = await client.assistants.update(made["assistant_id"], graph_id="Georges")
    assert (other["graph_id"], other["version"]) == ("Georges", 2)
    assert (await fields_of(service, await agent_id_of(service, made)))["prompts.system"] == "Be Georges."
    await client.assistants.set_latest(made["assistant_id"], 1)
    assert await fields_of(service, await agent_id_of(service, made)) == rico


async def test_an_agent_whose_class_no_configured_one_has_stands_for_itself(start_service):
    async with start_service(ai=agents(agents=[{"name": "Georges", "class_path": PLAIN}])) as service:
        async with service.http.post(f"{BASE}/agents/create", json={"name": "Ada", "type": "Rico"}) as response:
            ada = await response.json()
        async with sdk(service) as client:
            assistant_id = assistant_id_of(ada["id"])
            changed = await client.assistants.update(assistant_id, context={"rag.top_k": 3}, graph_id=ada["id"])
            assert (changed["graph_id"], changed["version"]) == (ada["id"], 2)
            assert (await fields_of(service, ada["id"]))["rag.top_k"] == 3
            await client.assistants.update(assistant_id, graph_id="Georges", context={})
            assert "rag.top_k" not in await fields_of(service, ada["id"])
            assert (await refused(client.assistants.set_latest(assistant_id, 1)))[::2] == (404, "graph_id")


async def test_a_client_chooses_the_id(client, service):
    chosen = str(uuid4())
    made = await client.assistants.create("Georges", assistant_id=chosen.upper(), name="One")
    assert made["assistant_id"] == chosen
    assert await agent_id_of(service, made) == chosen
    again = await client.assistants.create("Georges", assistant_id=chosen, name="Two", if_exists="do_nothing")
    assert again == made
    for taken in (chosen, GEORGES):
        assert (await refused(client.assistants.create("Georges", assistant_id=taken)))[::2] == (409, "assistant_id")
    system = await client.assistants.create("Georges", assistant_id=GEORGES, if_exists="do_nothing")
    assert system["metadata"] == {"created_by": "system"}
    assert (await refused(client.assistants.create("Georges", assistant_id="mine")))[::2] == (422, "assistant_id")
    assert (await refused(client.assistants.create("Georges", name="One")))[::2] == (409, "name")
    same = str(uuid4())
    both = await asyncio.gather(
        *(client.assistants.create("Georges", assistant_id=same, name=f"N{n}") for n in range(2)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in both) == ["ConflictError", "dict"]


async def test_an_assistant_of_a_hosted_graph_has_a_context_of_its_own(client, service):
    made = await client.assistants.create("Free", context={"tone": "kind"}, name="Kind")
    assert made["config"] == {"configurable": {"tone": "kind"}}
    agent_id = await agent_id_of(service, made)
    assert json.loads(await answer(service, agent_id)) == {"tone": "kind", "tenant": "ours", "user_id": "admin"}
    changed = await client.assistants.update(made["assistant_id"], context={"tenant": "other"})
    assert changed["context"] == {"tenant": "other"}
    assert json.loads(await answer(service, agent_id, "e2"))["tenant"] == "other"
    await client.assistants.set_latest(made["assistant_id"], 1)
    assert json.loads(await answer(service, agent_id, "e3"))["tone"] == "kind"
    declared = await client.assistants.create("Declared", context={"tone": "dry"}, name="Dry")
    assert json.loads(await answer(service, await agent_id_of(service, declared), "e4")) == {"length": 1, "tone": "dry"}
    assert json.loads(await answer(service, "Declared", "e5")) == {"length": 1}
    graph = await client.assistants.get_graph(declared["assistant_id"])
    assert graph == await client.assistants.get_graph("Declared")
    listed = await client.assistants.get_schemas(declared["assistant_id"])
    assert (listed["graph_id"], set(listed["context_schema"]["properties"])) == ("Declared", {"tone", "length"})


async def test_over_rest_such_an_agent_stays_one_of_its_graph(client, service):
    made = await client.assistants.create("Free", context={"tone": "kind"}, name="Kind")
    agent_id = await agent_id_of(service, made)
    body = {"id": agent_id, "name": "Kinder", "graph": "os:abort", "class_path": PLAIN}
    async with service.http.put(f"{BASE}/agents/update", json=body) as response:
        assert response.status == 200
    changed = await client.assistants.get(made["assistant_id"])
    assert (changed["name"], changed["version"], changed["context"]) == ("Kinder", 2, {"tone": "kind"})
    assert json.loads(await answer(service, agent_id))["tone"] == "kind"


@pytest.mark.parametrize("graph_id", ["Georges", "Nested"])
async def test_what_it_says_is_of_the_graph_that_it_is_made_of(client, graph_id):
    made = (await client.assistants.create(graph_id, name="Mine"))["assistant_id"]
    names = {"graph_id": graph_id, "assistant_id": made}
    asked = {"messages": [{"role": "user", "content": "Hi"}]}
    threads = [(await client.threads.create())["thread_id"] for _ in range(2)]
    thread_id = threads[0]
    for thread, assistant in zip(threads, (made, graph_id), strict=True):
        await client.runs.wait(thread, assistant, input=asked)
    assert (await client.threads.get(thread_id))["metadata"] == names
    (run,) = await client.runs.list(thread_id)
    assert run["metadata"].items() >= names.items()
    assert (run["assistant_id"], run["kwargs"]["config"]["configurable"]["graph_id"]) == (made, graph_id)
    assert (await client.threads.get_state(thread_id))["metadata"].items() >= names.items()
    states = await client.threads.get_history(thread_id, metadata=names)
    assert states
    assert all(state["metadata"].items() >= names.items() for state in states if state["checkpoint_id"])
    for other in ({"graph_id": "Free"}, {"assistant_id": NOBODY}):
        assert await client.threads.get_history(thread_id, metadata=other) == []

    async def found(**metadata):
        return {thread["thread_id"] for thread in await client.threads.search(metadata=metadata)}

    assert await found(graph_id=graph_id) == set(threads)
    assert await found(assistant_id=made) == await found(**names) == {thread_id}


async def test_agents_that_were_made_over_rest_are_assistants(client, service):
    async with service.http.post(f"{BASE}/agents/create", json={"name": "Ada"}) as response:
        ada = await response.json()
    assistant_id = assistant_id_of(ada["id"])
    found = await client.assistants.get(assistant_id)
    assert (found["name"], found["graph_id"], found["version"], found["metadata"]) == ("Ada", "Georges", 1, {})
    before = await fields_of(service, ada["id"])
    assert len(await client.assistants.get_versions(assistant_id)) == 1
    changed = await client.assistants.update(assistant_id, context={"prompts.system": "Sing."}, metadata={"k": 1})
    assert (changed["version"], changed["metadata"]) == (2, {"k": 1})
    assert (await client.assistants.set_latest(assistant_id, 1))["metadata"] == {}
    assert await fields_of(service, ada["id"]) == before

    ada["tuning"]["fields"][0]["default"] = "Shout."
    async with service.http.put(f"{BASE}/agents/update", json={**ada, "name": "Ada II"}) as response:
        assert response.status == 200
    newest = await client.assistants.get(assistant_id)
    assert (newest["version"], newest["name"], newest["context"]["prompts.system"]) == (3, "Ada II", "Shout.")


async def test_changes_at_the_same_time_are_versions_one_after_the_other(client):
    made = (await client.assistants.create("Georges", name="mine"))["assistant_id"]
    told = await asyncio.gather(*(client.assistants.update(made, metadata={f"k{n}": n}) for n in range(3)))
    assert max(one["version"] for one in told) == 4
    assert (await client.assistants.get(made))["metadata"] == {"k0": 0, "k1": 1, "k2": 2}
    assert len(await client.assistants.get_versions(made)) == 4


async def test_the_oldest_versions_go(client, service, database):
    made = await client.assistants.create("Georges", name="mine")
    agent_id = await agent_id_of(service, made)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO agent_version SELECT agent_id, %s, graph_id, name, description, config_json, context_json,"
            " metadata_json, now() FROM agent_version WHERE agent_id = %s",
            (MAX_VERSIONS, agent_id),
        )
        connection.execute("UPDATE agent SET version = 1 WHERE id = %s", (agent_id,))
    async with sdk(service) as client:
        await service.service.running.chat.agents.created._look()
        assert (await client.assistants.update(made["assistant_id"], name="new"))["version"] == MAX_VERSIONS + 1
        left = [one["version"] for one in await client.assistants.get_versions(made["assistant_id"])]
    assert left == [MAX_VERSIONS + 1, MAX_VERSIONS]


async def test_it_survives_a_restart_and_what_no_longer_fits_is_left_out(start_service):
    async with start_service(ai=agents()) as service, sdk(service) as client:
        chosen = str(uuid4())
        made = await client.assistants.create(
            "Georges", context={"prompts.system": "Sing."}, assistant_id=chosen, metadata={"k": [1]}, name="mine"
        )
        changed = await client.assistants.update(chosen, name="mine2")
        kind = await client.assistants.create("Free", context={"tone": "kind"}, name="Kind")
    async with start_service(ai=agents()) as service, sdk(service) as client:
        assert await client.assistants.get(chosen) == changed
        assert [one["name"] for one in await client.assistants.get_versions(chosen)] == ["mine2", made["name"]]
        assert await fields_of(service, chosen) == {**await fields_of(service, "Georges"), "prompts.system": "Sing."}
        assert await client.assistants.get(kind["assistant_id"]) == kind
    fewer = agents(agents=[{"name": "Georges", "class_path": PLAIN}])
    async with start_service(ai=fewer) as service, sdk(service) as client:
        assert [one["name"] for one in await client.assistants.search()] == ["Georges", "mine2"]
        assert (await refused(client.assistants.get(kind["assistant_id"])))[0] == 404


async def test_another_instance_sees_it_at_its_next_look(start_service):
    many = {"ack": "db", "replicas": "many"}
    async with (
        start_service(ai=agents(), persistence=many) as one,
        start_service(ai=agents(), persistence=many) as other,
        sdk(one) as here,
        sdk(other) as there,
    ):
        made = await here.assistants.create("Georges", name="mine")
        await other.service.running.chat.agents.created._look()
        assert await there.assistants.get(made["assistant_id"]) == made
        changed = await there.assistants.update(made["assistant_id"], name="yours")
        again = await here.assistants.update(made["assistant_id"], metadata={"k": 1})
        assert (again["version"], again["name"]) == (3, changed["name"])


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "graph_id", ""),
        ({"graph_id": 1}, "graph_id", ""),
        ({"graph_id": "Rico", "context": {"rag.nothing": 1}}, "context", "rag.nothing is no field"),
        (
            {"graph_id": "Rico", "context": {"rag.top_k": 0}},
            "tuning.fields.rag.top_k",
            "rag.top_k is not a whole number from 1 to 100.",
        ),
        ({"graph_id": "Rico", "config": {"configurable": 1}}, "config.configurable", ""),
        ({"graph_id": "Rico", "config": {"recursion_limit": 9}}, "config", "config.recursion_limit is not kept"),
        ({"graph_id": "Rico", "config": {"configurable": {"a": 1}}, "context": {"b": 1}}, "context", "only one"),
        ({"graph_id": "Free", "context": {"thread_id": "t"}}, "context", "thread_id is set by the service."),
        ({"graph_id": "Free", "context": {"__pregel_resuming": 1}}, "context", "is set by the service."),
        ({"graph_id": "Free", "context": {"a": "x\0"}}, "context", ""),
        ({"graph_id": "Free", "context": {"x" * 129: 1}}, "context", "longer than 128"),
        ({"graph_id": "Declared", "context": {"size": 1}}, "context", "size is not in the context of this graph."),
        ({"graph_id": "Georges", "name": "x" * 81}, "name", ""),
        ({"graph_id": "Georges", "name": " "}, "name", ""),
        ({"graph_id": "Georges", "metadata": []}, "metadata", ""),
        ({"graph_id": "Georges", "description": 1}, "description", ""),
        ({"graph_id": "Georges", "if_exists": "replace"}, "if_exists", ""),
    ],
)
async def test_a_fault_names_its_field(service, body, field, words):
    async with service.http.post("/assistants", json=body) as response:
        told = await response.json()
        assert (response.status, told.get("field")) == (422, field)
        assert words in told["detail"]
    assert len(await service.get("/agents")) == 7


async def test_other_faults(client, service):
    for name in ("Nobody", "os:abort", GEORGES):
        assert (await refused(client.assistants.create(name)))[::2] == (404, "graph_id")
    big = client.assistants.create("Georges", metadata={"a": "x" * 64 * 1024})
    assert (await refused(big))[::2] == (413, "metadata")
    for body, field in (({"limit": 0}, "limit"), ({"sort_by": "age"}, "sort_by"), ({"select": ["a"]}, "select[0]")):
        async with service.http.post("/assistants/search", json=body) as response:
            assert (response.status, (await response.json())["field"]) == (422, field)
    made = (await client.assistants.create("Georges", name="mine"))["assistant_id"]
    assert (await refused(client.assistants.delete(made, delete_threads=True)))[::2] == (422, "delete_threads")
    assert (await refused(client.assistants.update(made, name="Georges")))[::2] == (409, "name")
    assert (await refused(client.assistants.update(made, graph_id="Nobody")))[::2] == (404, "graph_id")
    assert (await client.assistants.get(made))["version"] == 1


async def test_agents_of_the_configuration_stay_as_they_are(client):
    told = (403, "This agent comes from the configuration file.", None)
    assistants = client.assistants
    for doing in (
        assistants.update(GEORGES, name="x"),
        assistants.delete(GEORGES),
        assistants.set_latest(GEORGES, 1),
    ):
        assert await refused(doing) == told


async def test_where_agents_come_from_the_configuration_alone_none_is_made(start_service):
    async with start_service() as service, sdk(service) as client:
        assert len(await client.assistants.search()) == 1
        assert (await refused(client.assistants.create("Georges")))[0] == 403
        assert (await refused(client.assistants.delete(GEORGES)))[0] == 403


async def test_who_may(start_service, database):
    people = {"agent_editor_roles": ["admin"]}
    async with start_service(security=SECURITY, ai=agents(**people)) as service:
        keys = {
            "reads": stored_key(database, "ann", frozenset({KeyScope.READ})),
            "asks Rico": stored_key(database, "ann", frozenset({KeyScope.ASK}), agents=["Rico"]),
            "all": stored_key(database, "ann"),
        }
        async with sdk(service, "ann") as ann:
            assert await ann.assistants.count() == 7
            assert (await refused(ann.assistants.create("Georges")))[0] == 403
            assert (await refused(ann.assistants.delete(GEORGES)))[0] == 403
        for name, key in keys.items():
            async with sdk(service, key=key) as client:
                assert await client.assistants.count() == (1 if name == "asks Rico" else 7)
                assert (await refused(client.assistants.create("Georges")))[0] == 403
        async with sdk(service, key=keys["asks Rico"]) as client:
            assert (await refused(client.assistants.get(GEORGES)))[0] == 404
            assert (await refused(client.assistants.get_graph("Georges")))[0] == 404
        async with service.http.post("/assistants/search", json={}) as response:
            assert response.status == 401
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute("INSERT INTO agent_grant VALUES ('Georges', 'use', 'user', 'bob')")
        await service.service.running.chat.agents.policy.look()
        async with sdk(service, "ann") as ann, sdk(service, "bob") as bob:
            assert (await bob.assistants.get(GEORGES))["name"] == "Georges"
            assert await ann.assistants.search(graph_id="Georges") == []
            for hidden in (ann.assistants.get(GEORGES), ann.assistants.get_graph("Georges")):
                assert (await refused(hidden))[0] == 404


async def test_an_editor_makes_them_and_a_stranger_to_them_finds_nothing(start_service, database):
    async with start_service(security=SECURITY, ai=agents()) as service:
        admin = stored_key(database, "eve", roles=["admin"])
        async with sdk(service, key=admin) as eve, sdk(service, "ann") as ann:
            made = (await eve.assistants.create("Georges", name="mine"))["assistant_id"]
            assert (await ann.assistants.get(made))["name"] == "mine"
            for doing in (ann.assistants.update(made, name="x"), ann.assistants.set_latest(made, 1)):
                assert (await refused(doing))[0] == 403
            agent_id = await _agent_of(service, "mine")
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                connection.execute("INSERT INTO agent_grant VALUES (%s, 'use', 'user', 'bob')", (agent_id,))
            await service.service.running.chat.agents.policy.look()
            for doing in (ann.assistants.get(made), ann.assistants.get_versions(made)):
                assert (await refused(doing))[0] == 404
            assert (await eve.assistants.update(made, name="x"))["version"] == 2
            await eve.assistants.delete(made)
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM agent_version").fetchone() == (0,)


async def _agent_of(service, name):
    async with service.http.get(f"{BASE}/agents", headers=headers_of("ann")) as response:
        return next(one["id"] for one in await response.json() if one["name"] == name)


async def test_a_version_that_does_not_fit_any_more_is_refused(start_service):
    async with start_service(ai=agents()) as service, sdk(service) as client:
        made = (await client.assistants.create("Rico", name="mine"))["assistant_id"]
        await client.assistants.update(made, graph_id="Georges")
    without = agents(agents=[{"name": "Georges", "class_path": PLAIN}])
    async with start_service(ai=without) as service, sdk(service) as client:
        assert (await refused(client.assistants.set_latest(made, 1)))[::2] == (404, "graph_id")
        with pytest.raises(UnprocessableEntityError):
            await client.assistants.update(made, context={"rag.top_k": 3})
