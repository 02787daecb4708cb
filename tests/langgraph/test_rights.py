"""Who may do what at the door: nobody sees what is another's, keys open it, and the limits of all doors hold here."""

from uuid import uuid4

import pytest

from backend_kit.auth import KeyScope
from tests.langgraph.stage import AGENTS, GEORGES, client_of, human, told
from tests.langgraph.wire import asks, begin, run_of
from tests.support.api_keys import ALL, stored_key
from tests.support.people import SECURITY, headers_of

SILENT = "mock;ttft=600000"


async def status(service, method, path, headers, body=None):
    async with service.http.request(method, path, json=body, headers=headers) as response:
        await response.read()
        return response.status


def of_thread(thread_id, run_id, checkpoint_id):
    """Every request about a thread and its runs."""
    thread = f"/threads/{thread_id}"
    run = f"{thread}/runs/{run_id}"
    body = {"assistant_id": "Georges", "input": human("hi")}
    at = {"checkpoint": {"checkpoint_id": checkpoint_id}}
    return [
        ("GET", thread, None),
        ("PATCH", thread, {"metadata": {"mine": True}}),
        ("POST", f"{thread}/copy", None),
        ("GET", f"{thread}/state", None),
        ("GET", f"{thread}/state/{checkpoint_id}", None),
        ("POST", f"{thread}/state/checkpoint", at),
        ("POST", f"{thread}/state", {"values": human("mine")}),
        ("POST", f"{thread}/history", {"limit": 10}),
        ("GET", f"{thread}/runs", None),
        ("POST", f"{thread}/runs", body),
        ("POST", f"{thread}/runs/wait", body),
        ("POST", f"{thread}/runs/stream", body),
        ("GET", run, None),
        ("GET", f"{run}/join", None),
        ("GET", f"{run}/stream", None),
        ("POST", f"{run}/cancel", None),
        ("DELETE", run, None),
        ("DELETE", thread, None),
    ]


async def test_another_users_thread_is_unknown(start_service):
    async with start_service(security=SECURITY, **AGENTS) as service:
        thread_id = str(uuid4())
        run_id = run_of(await begin(service, thread_id, asks("Georges"), **headers_of("ann")))
        async with service.http.get(f"/threads/{thread_id}/state", headers=headers_of("ann")) as response:
            before = await response.json()
        for method, path, body in of_thread(thread_id, run_id, before["checkpoint"]["checkpoint_id"]):
            assert await status(service, method, path, headers_of("bob"), body) == 404, (method, path)
            assert await status(service, method, path, {"Authorization": ""}, body) == 401, (method, path)
        async with service.http.get(f"/threads/{thread_id}/state", headers=headers_of("ann")) as response:
            assert await response.json() == before


async def test_a_thread_of_the_same_name_is_not_made_over_another_users(start_service):
    async with start_service(security=SECURITY, **AGENTS) as service:
        thread_id = str(uuid4())
        await begin(service, thread_id, asks("Georges"), **headers_of("ann"))
        body = asks("Georges", "mine")
        assert await status(service, "POST", f"/threads/{thread_id}/runs/wait", headers_of("bob"), body) in (404, 409)
        for if_exists in ("raise", "do_nothing"):
            given = {"thread_id": thread_id, "if_exists": if_exists}
            assert await status(service, "POST", "/threads", headers_of("bob"), given) in (404, 409)
        async with client_of(service, headers_of("ann")) as client:
            state = await client.threads.get_state(thread_id)
            assert [kind for kind, _ in told(state["values"])] == ["human", "ai"]


async def test_nothing_of_another_user_is_found(start_service):
    async with (
        start_service(security=SECURITY, **AGENTS) as service,
        client_of(service, headers_of("ann")) as ann,
        client_of(service, headers_of("bob")) as bob,
    ):
        made = await ann.threads.create(metadata={"user": "u"})
        await ann.runs.wait(made["thread_id"], "Georges", input=human("hi"))
        await ann.store.put_item(["likes"], "food", {"text": "cheese"})
        assert await bob.threads.search() == []
        assert await bob.threads.search(metadata={"user": "u"}) == []
        assert await bob.threads.count() == 0
        assert len(await ann.threads.search()) == 1
        assert await bob.store.get_item(["likes"], "food") is None
        assert (await bob.store.search_items([]))["items"] == []
        assert (await bob.store.list_namespaces())["namespaces"] == []
        await bob.store.put_item(["likes"], "food", {"text": "bread"})
        await bob.store.delete_item(["likes"], "food")
        assert (await ann.store.get_item(["likes"], "food"))["value"] == {"text": "cheese"}


async def test_the_key_of_an_sdk_opens_the_door(start_service, database):
    async with start_service(security=SECURITY, **AGENTS) as service:
        key = stored_key(database, "ann")
        async with client_of(service, key=key) as client:
            made = await client.threads.create()
            values = await client.runs.wait(made["thread_id"], "Georges", input=human("hi"))
            assert [kind for kind, _ in told(values)] == ["human", "ai"]
        # It is ann's thread, and nobody else's.
        assert await status(service, "GET", f"/threads/{made['thread_id']}", headers_of("ann")) == 200
        assert await status(service, "GET", f"/threads/{made['thread_id']}", headers_of("bob")) == 404
        other = stored_key(database, "bob")
        assert (
            await status(service, "GET", f"/threads/{made['thread_id']}", {"Authorization": "", "x-api-key": other})
            == 404
        )
        wrong = {"Authorization": "", "x-api-key": key[:-4] + "0000"}
        assert await status(service, "GET", f"/threads/{made['thread_id']}", wrong) == 401


async def test_a_key_opens_what_its_scopes_say(start_service, database):
    async with start_service(security=SECURITY, **AGENTS) as service:
        thread_id = str(uuid4())
        run_id = run_of(await begin(service, thread_id, asks("Georges"), **headers_of("ann")))
        body = {"assistant_id": "Georges", "input": human("hi")}
        reading = {"Authorization": "", "x-api-key": stored_key(database, "ann", ALL - {KeyScope.ASK})}
        assert await status(service, "POST", f"/threads/{thread_id}/runs/wait", reading, body) == 403
        assert await status(service, "GET", f"/threads/{thread_id}/runs/{run_id}/join", reading) == 200
        asking = {"Authorization": "", "x-api-key": stored_key(database, "ann", frozenset({KeyScope.ASK}))}
        assert await status(service, "POST", f"/threads/{thread_id}/runs/wait", asking, body) == 200
        assert await status(service, "GET", f"/threads/{thread_id}/runs/{run_id}/join", asking) == 200
        assert await status(service, "POST", "/threads/search", asking, {}) == 403


@pytest.mark.parametrize("how", ["", "/stream", "/wait"])
async def test_the_limit_of_a_users_turns_holds_here(start_service, how):
    limits = {"per_user": {"turns": 1}}
    async with start_service(SILENT, limits=limits, security=SECURITY, ai={"agents": [GEORGES]}) as service:
        body = {"assistant_id": "Georges", "input": human("hi"), "if_not_exists": "create"}
        thread_id = str(uuid4())
        async with service.http.post(f"/threads/{thread_id}/runs", json=body, headers=headers_of("ann")) as response:
            assert response.status == 200, await response.text()
            run_id = (await response.json())["run_id"]
        for path in (f"/threads/{uuid4()}/runs{how}", f"/runs{how}"):
            async with service.http.post(path, json=body, headers=headers_of("ann")) as response:
                assert response.status == 429, path
                assert (await response.json())["code"] == "too_many_turns"
                assert int(response.headers["Retry-After"]) >= 1
        # Not another's.
        other = {**body, "on_disconnect": "cancel"}
        async with service.http.post(f"/threads/{uuid4()}/runs", json=other, headers=headers_of("bob")) as response:
            assert response.status == 200
            bobs = await response.json()
        for run, who in (
            (f"/threads/{thread_id}/runs/{run_id}", headers_of("ann")),
            (f"/threads/{bobs['thread_id']}/runs/{bobs['run_id']}", headers_of("bob")),
        ):
            assert await status(service, "POST", f"{run}/cancel?wait=1", who) == 200


@pytest.mark.parametrize("how", ["", "/stream", "/wait"])
async def test_the_rate_of_a_users_questions_holds_here(start_service, how):
    limits = {"per_user": {"asks_per_min": 1, "burst": 1}}
    async with start_service("mock;tokens=2", limits=limits, security=SECURITY, ai={"agents": [GEORGES]}) as service:
        body = {"assistant_id": "Georges", "input": human("hi"), "if_not_exists": "create"}
        assert await status(service, "POST", f"/threads/{uuid4()}/runs/wait", headers_of("ann"), body) == 200
        async with service.http.post(f"/threads/{uuid4()}/runs{how}", json=body, headers=headers_of("ann")) as response:
            assert (response.status, (await response.json())["code"]) == (429, "rate_limited")
            assert int(response.headers["Retry-After"]) >= 1
        assert await status(service, "POST", f"/threads/{uuid4()}/runs/wait", headers_of("bob"), body) == 200


async def test_who_waits_for_a_run_counts_as_its_streams_do(start_service):
    limits = {"per_user": {"sockets": 1}}
    async with start_service(SILENT, limits=limits, security=SECURITY, ai={"agents": [GEORGES]}) as service:
        body, thread_id = {**asks("Georges"), "if_not_exists": "create"}, str(uuid4())
        async with service.http.post(f"/threads/{thread_id}/runs", json=body, headers=headers_of("ann")) as response:
            run = f"/threads/{thread_id}/runs/{(await response.json())['run_id']}"
        async with service.http.get(f"{run}/stream", headers=headers_of("ann")) as stream:
            assert stream.status == 200
            for method, path in (
                ("GET", f"{run}/join"),
                ("POST", f"/threads/{uuid4()}/runs/wait"),
                ("POST", "/runs/wait"),
            ):
                sent = {} if method == "GET" else {"json": body}
                async with service.http.request(method, path, headers=headers_of("ann"), **sent) as response:
                    assert (response.status, (await response.json())["code"]) == (429, "rate_limited"), path
            assert await status(service, "POST", f"{run}/cancel?wait=1", headers_of("ann")) == 200


async def test_a_page_of_an_authorized_origin_reads_the_door(start_service):
    page, other = "https://chat.example.com", "https://elsewhere.example.com"
    security = {**SECURITY, "authorized_origins": [page]}
    async with start_service(security=security, ai={"agents": [GEORGES]}) as service:
        path = f"/threads/{uuid4()}/runs/stream"
        asks_first = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,last-event-id,x-api-key",
        }
        for origin, allowed in ((page, page), (other, None)):
            async with service.http.options(path, headers={**asks_first, "Origin": origin}) as response:
                assert response.headers.get("Access-Control-Allow-Origin") == allowed
                if allowed:
                    assert response.ok
                    taken = response.headers["Access-Control-Allow-Headers"].lower()
                    assert all(name in taken for name in ("authorization", "last-event-id", "x-api-key"))
        async with service.http.post(
            path, json=asks("Georges"), headers={**headers_of("ann"), "Origin": page}
        ) as response:
            assert response.headers["Access-Control-Allow-Origin"] == page
            shown = response.headers["Access-Control-Expose-Headers"].lower()
            assert all(name in shown for name in ("content-location", "location", "x-pagination-total"))
            await response.read()
