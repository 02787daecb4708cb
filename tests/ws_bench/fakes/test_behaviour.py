"""How the fake model misbehaves on request: distributions, tool calls, pauses, garbage, limits."""

import json
import time
from typing import Any

import openai
import pytest

from tests.ws_bench.dice import dice
from tests.ws_bench.fakes.conftest import Model, StartModel
from tests.ws_bench.fakes.test_mock_llm import CHAT, TOKEN, ask, events, first_tokens, text_of
from ws_bench.config.distributions import RandomVariable
from ws_bench.fakes.answers import Turn
from ws_bench.fakes.completions import TokenSchedule
from ws_bench.fakes.knobs import Knobs, knobs_of
from ws_bench.fakes.tools import arguments_for, offered_tool
from ws_bench.record.results import percentile

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "question": {"type": "string"},
                "top_k": {"type": "integer", "minimum": 3},
                "policy": {"enum": ["hybrid", "strict"]},
                "scope": {"type": "object", "properties": {"all": {"type": "boolean"}}, "required": ["all"]},
                "tags": {"type": "array"},
            },
            "required": ["question", "top_k", "policy", "scope"],
        },
    },
}


def test_times_have_the_distribution_in_the_models_name() -> None:
    knobs = knobs_of("mock;ttft=lognormal:300,900;gap=exp:20", Knobs())
    random = dice(4)
    drawn = [TokenSchedule(knobs, 3, random) for _ in range(4000)]
    first = sorted(times.due_s(0) for times in drawn)
    gaps = sorted(times.due_s(2) - times.due_s(1) for times in drawn)
    assert percentile(first, 0.50) == pytest.approx(0.300, rel=0.05)
    assert percentile(first, 0.95) == pytest.approx(0.900, rel=0.08)
    assert sum(gaps) / len(gaps) == pytest.approx(0.020, rel=0.05)
    assert all(times.due_s(0) <= times.due_s(1) <= times.due_s(2) for times in drawn)


def test_the_same_seed_gives_the_same_times() -> None:
    knobs = knobs_of("mock;gap=exp:20", Knobs())
    once, again, other = (TokenSchedule(knobs, 9, dice(seed)) for seed in (1, 1, 2))
    assert [once.due_s(n) for n in range(9)] == [again.due_s(n) for n in range(9)] != [other.due_s(n) for n in range(9)]


def test_knobs_hold_distributions_pauses_and_names() -> None:
    knobs = knobs_of("m;tokens=normal:50,10;ttft=uniform:10..20;pause=5:250;tool=search;retry=2.5;garbage=3", Knobs())
    assert knobs.tokens == RandomVariable("normal", 50, 10)
    assert knobs.ttft_ms == RandomVariable("uniform", 10, 20)
    assert (knobs.pause, knobs.tool, knobs.retry_s, knobs.garbage) == ((5, 250.0), "search", 2.5, 3)


@pytest.mark.servers
async def test_tokens_may_be_drawn_and_the_seed_decides(start_model: StartModel) -> None:
    counts = []
    for _ in range(2):
        model = await start_model("--seed", "9", "--tokens", "uniform:5..50")
        bodies = [(await model.post(CHAT, ask()))[1] for _ in range(8)]
        counts.append([body["usage"]["completion_tokens"] for body in bodies])
    assert counts[0] == counts[1]
    assert len(set(counts[0])) > 3
    assert all(5 <= count <= 50 for count in counts[0])


@pytest.mark.servers
async def test_a_pause_holds_back_what_comes_after_it(model: Model) -> None:
    hour = ask("mock;tokens=4;pause=2:3600000", stream=True)
    async with model.http.post(model.base_url + CHAT, json=hour) as response:
        assert (await first_tokens(response, 2)).count(TOKEN) == 2
        assert (await model.stats())["tokens"] == 2
        response.close()
    begin = time.perf_counter()
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=4;pause=2:300", stream=True)) as response:
        found = await events(response)
    assert time.perf_counter() - begin >= 0.299
    assert len(text_of(found).split()) == 4
    assert found[-1] is None


@pytest.mark.servers
async def test_garbage_is_an_event_that_no_client_can_read(model: Model) -> None:
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=4;garbage=2", stream=True)) as response:
        raw = await response.read()
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    assert sum(not _is_json(line) for line in lines) == 1
    assert raw.count(b'"delta":{"content":') == 4
    assert raw.endswith(b"data: [DONE]\n\n")
    async with model.http.post(model.base_url + CHAT, json=ask("mock;tokens=4;garbage=2")) as response:
        assert (response.status, _is_json(await response.read())) == (200, False)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


@pytest.mark.servers
async def test_a_limit_says_when_to_come_back(model: Model) -> None:
    async with model.http.post(model.base_url + CHAT, json=ask("mock;status=429;retry=2.5")) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "2.5")
    async with model.http.post(model.base_url + CHAT, json=ask("mock;status=500;retry=2.5")) as response:
        assert "retry-after" not in response.headers


@pytest.mark.servers
async def test_a_tool_is_called_with_arguments_that_fit_its_schema(model: Model) -> None:
    body = ask("mock;tool=search", "Where is Paris?", tools=[SEARCH])
    _, whole = await model.post(CHAT, body)
    choice = whole["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "search")
    arguments = json.loads(call["function"]["arguments"])
    assert arguments == {"question": "Where is Paris?", "top_k": 3, "policy": "hybrid", "scope": {"all": True}}
    async with model.http.post(model.base_url + CHAT, json={**body, "stream": True}) as response:
        found = [one for one in await events(response) if one]
    deltas = [
        one["choices"][0]["delta"]["tool_calls"][0] for one in found if "tool_calls" in one["choices"][0]["delta"]
    ]
    assert (deltas[0]["id"], deltas[0]["function"]["name"]) == (deltas[0]["id"], "search")
    assert json.loads("".join(delta["function"]["arguments"] for delta in deltas)) == arguments
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.servers
async def test_after_the_tools_result_the_model_answers(model: Model) -> None:
    body = ask("mock;tool=*;tokens=6", tools=[SEARCH])
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Paris is in France."},
    ]
    _, whole = await model.post(CHAT, body)
    assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("stop", 6)


@pytest.mark.servers
async def test_without_the_tool_on_offer_the_model_answers(model: Model) -> None:
    for tools in ([], [{"type": "function", "function": {"name": "other"}}], ["nonsense"]):
        _, whole = await model.post(CHAT, ask("mock;tool=search;tokens=3", tools=tools))
        assert whole["choices"][0]["finish_reason"] == "stop"


@pytest.mark.servers
async def test_openais_own_client_reads_a_streamed_tool_call(model: Model) -> None:
    async with openai.AsyncOpenAI(base_url=f"{model.base_url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="mock;tool=*", messages=[{"role": "user", "content": "Find it"}], stream=True,
            tools=[SEARCH],  # type: ignore[list-item] # the SDK's type is a TypedDict
        )  # fmt: skip
        assert isinstance(stream, openai.AsyncStream)
        pieces: list[Any] = [chunk async for chunk in stream]
    calls = [piece.choices[0].delta.tool_calls[0] for piece in pieces if piece.choices[0].delta.tool_calls]
    assert calls[0].function.name == "search"
    assert json.loads("".join(call.function.arguments or "" for call in calls))["question"] == "Find it"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "default": "d"}, "d"),
        ({"type": "number"}, 1.0),
        ({"type": "null"}, None),
        ({"type": "array"}, []),
        ({"description": "no type"}, "asked"),
    ],
)
def test_every_kind_of_argument_has_a_value(schema: dict[str, Any], value: object) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}, "required": ["x"]}}
    assert json.loads(arguments_for(function, [Turn("user", "asked")])) == {"x": value}
    assert offered_tool({"messages": [{"role": "user"}], "tools": [{"function": function}]}, "*") == function
