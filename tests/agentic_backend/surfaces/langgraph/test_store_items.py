"""The store over LangGraph's own client: what hosted graphs remember of a user, and nobody else's."""

import json

import pytest
from langgraph_sdk.errors import APIStatusError, UnprocessableEntityError

from agentic_backend.agent.hosted.memory import UserMemory
from agentic_backend.errors import HistoryUnavailable
from backend_kit.auth import KeyScope
from tests.agentic_backend.surfaces.langgraph.clients import sdk
from tests.support.api_keys import stored_key
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear_until, say

pytestmark = pytest.mark.servers

MEMORY = {"agents": [{"name": "Memory", "graph": "tests.hosted.graphs.memory"}]}
ANN, ANNA = "ann", "anna"


@pytest.fixture
async def service(start_service):
    async with start_service(security=SECURITY, ai=MEMORY) as running:
        yield running


async def turn(service, user, message):
    """What the graph answers."""
    async with service.http.post(
        f"{BASE}/chatbot/session", json={"agent_id": "Memory"}, headers=headers_of(user)
    ) as response:
        session_id = (await response.json())["id"]
    async with service.native(token_of(user)) as socket:
        await say(socket, type="ask", session_id=session_id, agent_id="Memory", message=message)
        final = (await hear_until(socket, "final"))[-1]
    return json.loads(final["messages"][-1]["parts"][0]["text"])


async def test_an_item_is_put_found_and_deleted(service):
    async with sdk(service, ANN) as client:
        await client.store.put_item(["u", "mem"], key="k1", value={"text": "likes tea", "n": 2})
        found = await client.store.get_item(["u", "mem"], key="k1")
        assert list(found) == ["namespace", "key", "value", "created_at", "updated_at"]
        assert (found["namespace"], found["key"]) == (["u", "mem"], "k1")
        assert found["value"] == {"text": "likes tea", "n": 2}
        assert await client.store.get_item(["u", "mem"], key="k2") is None
        searched = await client.store.search_items(["u"], filter={"text": "likes tea"}, limit=3)
        assert searched == {"items": [{**found, "score": None}]}
        assert (await client.store.search_items([], filter={"n": {"$gt": 1}}))["items"]
        assert (await client.store.search_items(["u"], filter={"n": {"$eq": 3}})) == {"items": []}
        assert (await client.store.search_items(["m"])) == {"items": []}
        assert await client.store.list_namespaces(prefix=["u"], max_depth=2) == {"namespaces": [["u", "mem"]]}
        assert await client.store.list_namespaces(max_depth=1) == {"namespaces": [["u"]]}
        assert await client.store.list_namespaces(suffix=["none"]) == {"namespaces": []}
        await client.store.put_item(["u", "mem"], key="k1", value={})
        assert (await client.store.get_item(["u", "mem"], key="k1"))["value"] == {}
        for _ in range(2):
            await client.store.delete_item(["u", "mem"], key="k1")
        assert await client.store.get_item(["u", "mem"], key="k1") is None


async def test_nobody_sees_what_is_anothers(service):
    async with sdk(service, ANN) as ann:
        await ann.store.put_item(["likes"], key="tea", value={"much": True})
        for user in (ANNA, "*", "an", "%", "_nn", f"{ANN}.likes", "ANN"):
            async with sdk(service, user) as other:
                assert await other.store.get_item(["likes"], key="tea") is None
                assert await other.store.search_items([]) == {"items": []}
                assert await other.store.list_namespaces() == {"namespaces": []}
                assert await other.store.list_namespaces(prefix=["*"]) == {"namespaces": []}
                await other.store.delete_item(["likes"], key="tea")
                await other.store.put_item(["likes"], key="tea", value={"much": False})
        assert (await ann.store.get_item(["likes"], key="tea"))["value"] == {"much": True}
        assert len((await ann.store.search_items([]))["items"]) == 1


async def test_it_is_the_memory_of_the_users_graphs(service):
    await turn(service, ANN, "I like cheese")
    async with sdk(service, ANN) as ann, sdk(service, ANNA) as anna:
        assert (await ann.store.get_item(["likes", "food"], key="cheese"))["value"] == {"since": "today"}
        assert await anna.store.search_items([]) == {"items": []}
        await ann.store.put_item(["likes", "food"], key="ham", value={})
        await ann.store.delete_item(["likes", "food"], key="cheese")
    told = await turn(service, ANN, "What do I like?")
    assert (told["all"], told["namespaces"]) == (["ham"], [["likes", "food"]])
    assert (await turn(service, ANNA, "What do I like?"))["all"] == []


async def test_keys_may_what_their_scopes_say(service, database):
    async with sdk(service, key=stored_key(database, ANN)) as client:
        await client.store.put_item(["a"], key="k", value={"v": 1})
    async with sdk(service, key=stored_key(database, ANN, frozenset({KeyScope.READ}))) as client:
        assert (await client.store.get_item(["a"], key="k"))["value"] == {"v": 1}
        for doing in (client.store.put_item(["a"], key="k", value={}), client.store.delete_item(["a"], key="k")):
            with pytest.raises(APIStatusError) as refused:
                await doing
            assert refused.value.status_code == 403
    async with sdk(service, key=stored_key(database, ANNA)) as client:
        assert await client.store.get_item(["a"], key="k") is None


GOOD = {"namespace": ["a"], "key": "k", "value": {}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**GOOD, "namespace": []}, "namespace"),
        ({**GOOD, "namespace": ["a"] * 11}, "namespace"),
        ({**GOOD, "namespace": ["a", ""]}, "namespace[1]"),
        ({**GOOD, "namespace": ["a.b"]}, "namespace[0]"),
        ({**GOOD, "namespace": ["x" * 129]}, "namespace[0]"),
        ({**GOOD, "namespace": ["a\0"]}, "namespace[0]"),
        ({**GOOD, "namespace": ["langgraph"]}, "namespace"),
        ({**GOOD, "namespace": "a"}, "namespace"),
        ({**GOOD, "key": ""}, "key"),
        ({**GOOD, "key": "x" * 513}, "key"),
        ({**GOOD, "key": 1}, "key"),
        ({**GOOD, "value": [1]}, "value"),
        ({**GOOD, "value": {"a": "b\0"}}, "value"),
        ({**GOOD, "ttl": 5}, "ttl"),
        ({"namespace": ["a"], "key": "k"}, "value"),
    ],
)
async def test_a_fault_of_an_item_names_its_field(service, body, field):
    async with service.http.put("/store/items", json=body, headers=headers_of(ANN)) as response:
        told = await response.json()
        assert (response.status, told["field"], told["code"]) == (422, field, "bad_request")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("items/search", {}, "namespace_prefix"),
        ("items/search", {"namespace_prefix": [], "query": "tea"}, "query"),
        ("items/search", {"namespace_prefix": [], "limit": 0}, "limit"),
        ("items/search", {"namespace_prefix": [], "limit": 101}, "limit"),
        ("items/search", {"namespace_prefix": [], "offset": -1}, "offset"),
        ("items/search", {"namespace_prefix": [], "filter": {"a": {"$in": [1]}}}, "filter"),
        ("items/search", {"namespace_prefix": [], "filter": {"a": {"b": 1}}}, "filter"),
        ("namespaces", {"prefix": ["a."]}, "prefix[0]"),
        ("namespaces", {"max_depth": 0}, "max_depth"),
        ("namespaces", {"limit": 1001}, "limit"),
    ],
)
async def test_a_fault_of_a_search_names_its_field(service, path, body, field):
    async with service.http.post(f"/store/{path}", json=body, headers=headers_of(ANN)) as response:
        told = await response.json()
        assert (response.status, told["field"]) == (422, field)


async def test_what_is_no_json_or_too_large_is_refused(service):
    async with service.http.put("/store/items", data=b"{", headers=headers_of(ANN)) as response:
        assert (response.status, (await response.json())["detail"]) == (422, "The body is no JSON.")
    async with service.http.put("/store/items", data=b"[]", headers=headers_of(ANN)) as response:
        assert (response.status, (await response.json())["detail"]) == (422, "The body is no JSON object.")
    big = {**GOOD, "value": {"a": "x" * 64 * 1024}}
    async with service.http.put("/store/items", json=big, headers=headers_of(ANN)) as response:
        assert (response.status, (await response.json())["field"]) == (413, "value")
    async with sdk(service, ANN) as client:
        with pytest.raises(UnprocessableEntityError):
            await client.store.get_item([], key="k")
    async with service.http.get("/store/items?namespace=a&key=k") as response:
        assert response.status == 401


async def test_where_graphs_keep_nothing_it_is_unavailable():
    with pytest.raises(HistoryUnavailable):
        await UserMemory(None).get(ANN, ["a"], "k")
