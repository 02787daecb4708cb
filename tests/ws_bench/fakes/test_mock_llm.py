"""The fake model over HTTP: answers, knobs, statistics, and connections that end early."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_bench.fakes.conftest import Model, StartModel

pytestmark = pytest.mark.servers

CHAT = "/v1/chat/completions"


def ask(model: str = "mock", text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


TOKEN = b'"delta":{"content":'


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    """All events of a stream, `[DONE]` as None."""
    found: list[Any] = []
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            found.append(None if data == b"[DONE]" else json.loads(data))
    return found


async def first_tokens(response: aiohttp.ClientResponse, count: int) -> bytes:
    """What has come by the time that so many tokens have, in however many pieces."""
    read = b""
    while read.count(TOKEN) < count:
        read += await response.content.readany()
    return read


def text_of(found: list[Any]) -> str:
    return "".join(one["choices"][0]["delta"].get("content", "") for one in found if one and one["choices"])


async def until_stats(model: Model, **wanted: int) -> Any:
    """The statistics once the streams have these counts: what the server sees of a leaving client takes a moment."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stats = await model.stats()
            if all(stats["streams"][key] == value for key, value in wanted.items()):
                return stats
            await asyncio.sleep(0.005)


async def test_health_models_and_unknown_paths(model: Model) -> None:
    assert await model.get("/healthz") == (200, {"status": "ok"})
    status, body = await model.get("/v1/models")
    assert (status, [entry["id"] for entry in body["data"]]) == (200, ["mock"])
    status, body = await model.get("/v1/elsewhere")
    assert (status, body["error"]["type"]) == (404, "invalid_request_error")
    assert (await model.get(CHAT))[0] == 405


async def test_a_whole_answer(model: Model) -> None:
    status, body = await model.post(CHAT, ask("mock;tokens=7"))
    assert status == 200
    assert (body["object"], body["model"]) == ("chat.completion", "mock;tokens=7")
    choice = body["choices"][0]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")
    assert len(choice["message"]["content"].split()) == 7
    assert body["usage"] == {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8}


async def test_a_stream_has_one_event_a_token_and_usage_when_asked(model: Model) -> None:
    body = ask("mock;tokens=50", stream=True, stream_options={"include_usage": True})
    async with model.http.post(model.base_url + CHAT, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = await events(response)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    tokens = [one for one in found[1:] if one and one["choices"] and one["choices"][0]["delta"]]
    assert len(tokens) == 50
    assert len(text_of(found).split()) == 50
    assert found[-3]["choices"][0]["finish_reason"] == "stop"
    assert found[-2]["usage"] == {"prompt_tokens": 1, "completion_tokens": 50, "total_tokens": 51}
    assert found[-1] is None
    assert len({one["id"] for one in found if one}) == 1


async def test_without_being_asked_a_stream_has_no_usage(model: Model) -> None:
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=2", stream=True)) as response:
        assert all("usage" not in one for one in await events(response) if one)


async def test_a_paced_stream_comes_in_pieces_and_whole(model: Model) -> None:
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=2;gap=3600000", stream=True)) as response:
        assert (await first_tokens(response, 1)).count(TOKEN) == 1
        assert (await model.stats())["tokens"] == 1
        response.close()
    async with model.http.post(
        model.base_url + CHAT, json=ask("mock;tokens=30;gap=20;ttft=10", stream=True)
    ) as response:
        raw = await response.content.read()
    assert raw.count(b'"delta":{"content":') == 30
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_the_floor_holds_back_the_last_token_only(model: Model) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=3;floor=300", stream=True)) as response:
        await response.content.read()
    # A floor is a promise about time: never sooner.
    assert loop.time() - begin >= 0.299
    begin = loop.time()
    await model.post(CHAT, ask("mock;tokens=3;floor=100"))
    assert loop.time() - begin >= 0.099
    sent = (await model.stats())["tokens"]
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=3;floor=3600000", stream=True)) as response:
        assert (await first_tokens(response, 2)).count(TOKEN) == 2
        assert (await model.stats())["tokens"] == sent + 2
        response.close()


async def test_flags_hold_for_every_request_and_the_name_for_one(start_model: StartModel) -> None:
    model = await start_model("--tokens", "4", "--model", "other")
    assert (await model.post(CHAT, ask("any")))[1]["usage"]["completion_tokens"] == 4
    assert (await model.post(CHAT, ask("any;tokens=2")))[1]["usage"]["completion_tokens"] == 2
    assert (await model.get("/v1/models"))[1]["data"][0]["id"] == "other"


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
async def test_a_token_limit_cuts_the_answer(model: Model, key: str) -> None:
    _, body = await model.post(CHAT, ask("mock;tokens=9", **{key: 4}))
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (4, "length")


async def test_streamed_and_whole_answers_say_the_same(model: Model) -> None:
    _, whole = await model.post(CHAT, ask(text="What is Turnwise?"))
    async with model.http.post(model.base_url + CHAT, json=ask(text="What is Turnwise?", stream=True)) as response:
        assert text_of(await events(response)) == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit_error"), (500, "server_error"), (503, "server_error")])
async def test_refusals_have_their_status(model: Model, status: int, kind: str) -> None:
    async with model.http.post(model.base_url + CHAT, json=ask(f"mock;status={status}", stream=True)) as response:
        assert response.status == status
        assert (await response.json())["error"]["type"] == kind
        assert ("retry-after" in response.headers) is (status in (429, 503))
    assert (await model.stats())["requests"]["refused"] == 1


async def test_an_error_rate_refuses_a_share_that_the_seed_fixes(start_model: StartModel) -> None:
    outcomes = []
    for _ in range(2):
        model = await start_model("--error", "0.5", "--seed", "7")
        outcomes.append([(await model.post(CHAT, ask("mock;tokens=1")))[0] for _ in range(40)])
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0]) == {200, 500}


async def test_a_truncated_stream_ends_without_an_end(model: Model) -> None:
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=9;truncate=3", stream=True)) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
    stats = await model.stats()
    assert (stats["streams"]["truncated"], stats["streams"]["cut"], stats["tokens"]) == (1, 0, 3)


async def test_a_truncated_whole_answer_is_a_lost_connection(model: Model) -> None:
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await model.post(CHAT, ask("mock;truncate=0"))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stall_lasts_until_the_client_leaves_and_is_counted_as_cut(model: Model, stream: bool) -> None:
    request = asyncio.ensure_future(
        model.http.post(model.base_url + CHAT, json=ask("mock;tokens=9;stall=2", stream=stream))
    )
    stats = await until_stats(model, open=1, cut=0)
    if stream:
        response = await request
        assert (await first_tokens(response, 2)).count(TOKEN) == 2
        response.close()
    else:
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    stats = await until_stats(model, open=0, cut=1)
    assert stats["streams"]["finished"] == 0


async def test_a_client_that_leaves_mid_stream_is_noticed(model: Model) -> None:
    response = await model.http.post(model.base_url + CHAT, json=ask("mock;tokens=1000;gap=50", stream=True))
    await response.content.readany()
    response.close()
    stats = await until_stats(model, open=0, cut=1)
    assert stats["tokens"] < 1000


async def test_a_client_that_leaves_before_the_first_token_is_noticed(model: Model) -> None:
    request = asyncio.ensure_future(model.http.post(model.base_url + CHAT, json=ask("mock;ttft=600000", stream=True)))
    await until_stats(model, open=1)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until_stats(model, open=0, cut=1)


async def test_statistics_show_that_turn_two_contained_turn_one(start_model: StartModel) -> None:
    model = await start_model("--keep", "2")
    for text in ("one", "two", "three"):
        await model.post(
            CHAT, {"model": "mock", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": text}]}
        )
    await model.post("/v1/embeddings", {"model": "e", "input": "x"})
    await model.get("/v1/models")
    stats = await model.stats()
    assert stats["requests"] == {"chat": 3, "embeddings": 1, "reranks": 0, "models": 1, "refused": 0}
    assert stats["streams"] == {"open": 0, "finished": 3, "cut": 0, "truncated": 0}
    assert sum(stats["late_ms"].values()) == 3
    assert all(int(late) >= 0 for late in stats["late_ms"])
    assert stats["last_messages_count"] == 2
    assert [one["messages"][1]["content"] for one in stats["last_requests"]] == ["two", "three"]


async def test_remembered_requests_are_bounded_in_bytes(model: Model) -> None:
    big = "x" * 3_000_000
    for _ in range(3):
        assert (await model.post(CHAT, ask("mock;tokens=1", big)))[0] == 200
    assert len((await model.stats())["last_requests"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"model": "m"},
        {"model": 3, "messages": [{"role": "user", "content": "x"}]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": ["x"]},
        {"model": "m;speed=9", "messages": [{"role": "user", "content": "x"}]},
    ],
)
async def test_a_request_that_makes_no_sense_is_a_400(model: Model, body: Any) -> None:
    status, answer = await model.post(CHAT, body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


async def test_embeddings_come_in_order_with_the_dimensions_asked_for(model: Model) -> None:
    status, body = await model.post("/v1/embeddings", {"model": "e", "input": ["a b", "c", "a b"]})
    assert status == 200
    assert [one["index"] for one in body["data"]] == [0, 1, 2]
    assert body["data"][0]["embedding"] == body["data"][2]["embedding"] != body["data"][1]["embedding"]
    assert len(body["data"][0]["embedding"]) == 384
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    _, body = await model.post("/v1/embeddings", {"model": "e", "input": [1, 2], "dimensions": 16})
    assert [len(one["embedding"]) for one in body["data"]] == [16]
    _, body = await model.post("/v1/embeddings", {"model": "e", "input": [[1, 2], [3]]})
    assert len(body["data"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": "e"},
        {"model": "e", "input": []},
        {"model": "e", "input": [1, "x"]},
        {"model": "e", "input": "x", "dimensions": 0.5},
        {"model": "e", "input": "x", "dimensions": 5000},
        {"model": "e", "input": ["x"] * 2049},
    ],
)
async def test_bad_embedding_requests_are_a_400(model: Model, body: Any) -> None:
    assert (await model.post("/v1/embeddings", body))[0] == 400


async def test_embeddings_may_be_slow(start_model: StartModel) -> None:
    model = await start_model("--embed-latency", "100ms")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert (await model.post("/v1/embeddings", {"model": "e", "input": "x"}))[0] == 200
    assert loop.time() - begin >= 0.099


async def test_many_streams_at_once_are_each_whole(model: Model) -> None:
    async def one() -> int:
        body = ask("mock;tokens=20;gap=5", stream=True)
        async with model.http.post(model.base_url + CHAT, json=body) as response:
            return len(text_of(await events(response)).split())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one()) for _ in range(60)]
    assert [task.result() for task in tasks] == [20] * 60
    assert (await model.stats())["streams"] == {"open": 0, "finished": 60, "cut": 0, "truncated": 0}
