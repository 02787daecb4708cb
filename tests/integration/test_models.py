"""Which model answers: the agent's own, the session's preferred one, or the one that a turn names."""

import json

import pytest
from pydantic import ValidationError

from agentic_backend.settings import AgenticSettings
from agentic_backend.wiring import turn_limits
from tests.support.following import over_stream
from tests.support.ports import free_port
from tests.support.service import BASE, hear, hear_until, say

SMALL = "mock;tokens=1"
LARGE = "mock;tokens=4"
OWN = "mock;tokens=2"
ALONE = {
    "storage": {"postgres": {"host": "127.0.0.1", "database": "d", "username": "u"}},
    "security": {"user": {"enabled": False}},
}


@pytest.fixture
async def service(start_service):
    """Three models beside the default one, of which Georges offers two and Ada, with one of her own, none."""
    models = [
        {"id": "small", "name": SMALL},
        {"id": "large", "title": "The large one", "description": "Slow and thorough", "name": LARGE},
        {"id": "own", "name": OWN},
    ]
    agents = [
        {"name": "Georges", "further_models": ["small", "large"]},
        {"name": "Ada", "model": "own"},
        {"name": "All", "further_models": ["*"], "model": "small"},
    ]
    async with start_service(ai={"chat_models": models, "agents": agents}) as running:
        yield running


def ask(session_id, exchange_id="e1", model=None, agent_id="Georges", **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": "Hello"}
    context = {} if model is None else {"runtime_context": {"model": model}}
    return {**head, "client_exchange_id": exchange_id, **context, **more}


async def answered(socket, **frame):
    """Which model stands in the answer."""
    await say(socket, **frame)
    return (await hear_until(socket, "final"))[-1]["messages"][-1]["metadata"]["model"]


async def prefer(service, session_id, **preferences):
    path = f"{BASE}/chatbot/session/{session_id}/preferences"
    async with service.http.put(path, json={"preferences": preferences}) as response:
        assert response.status == 200


async def test_agents_list_what_may_be_chosen(service):
    choices = {agent["id"]: agent["model_choices"] for agent in await service.get("/agents")}
    default = {"id": "default", "title": "mock", "description": "", "vision": False}
    small = {"id": "small", "title": "small", "description": "", "vision": False}
    large = {"id": "large", "title": "The large one", "description": "Slow and thorough", "vision": False}
    own = {"id": "own", "title": "own", "description": "", "vision": False}
    assert choices == {
        "Georges": [default, small, large],
        "Ada": [own],
        "All": [small, default, large, own],
    }


async def test_the_turn_chooses_before_the_session_and_the_session_before_the_agent(service):
    session_id = await service.create_session()
    async with service.native() as socket:
        assert await answered(socket, **ask(session_id, "e1")) == "mock"
        assert await answered(socket, **ask(session_id, "e2", "large")) == LARGE
        await prefer(service, session_id, model="small", theme="dark")
        assert await answered(socket, **ask(session_id, "e3")) == SMALL
        assert await answered(socket, **ask(session_id, "e4", "default")) == "mock"
        # Another agent of the same conversation does not offer what is preferred.
        assert await answered(socket, **ask(session_id, "e5", agent_id="Ada")) == OWN
        for strange in ("own", 7, ["small"], {"id": "small"}, None):
            await prefer(service, session_id, model=strange)
            assert await answered(socket, **ask(session_id, f"strange {strange}")) == "mock"


@pytest.mark.one_instance("counts what one process keeps")
async def test_a_graph_and_a_client_are_shared_and_figures_are_by_model(service):
    session_id = await service.create_session()
    async with service.native() as socket:
        for number, model in enumerate(["small", "large", "small", "default"]):
            await answered(socket, **ask(session_id, f"e{number}", model))
    value = service.service.running.chat.kpi.registry.get_sample_value
    assert value("app_cache_requests_total", {"cache": "graph", "result": "miss"}) == 1
    counted = [
        value("app_llm_request_seconds_count", {"model": model, "status": "ok"}) for model in (SMALL, LARGE, "mock")
    ]
    assert counted == [2, 1, 1]


@pytest.mark.parametrize("model", ["own", "nobody's", "*", "default "])
async def test_native_refuses_a_model_that_is_not_offered_and_nothing_is_lost(service, model):
    session_id = await service.create_session()
    async with service.native() as socket:
        await say(socket, **ask(session_id, model=model))
        refused = await hear(socket)
        assert (refused["type"], refused["code"], refused["exchange_id"]) == ("error", "bad_request", "e1")
        assert "seq" not in refused
        assert await service.history(session_id) == []
        assert await answered(socket, **ask(session_id, model="large")) == LARGE
    async with service.http.post(f"{BASE}/chatbot/query/stream", json=ask(session_id, "e2", model)) as response:
        assert response.status == 422
        assert (await response.json())["detail"]["code"] == "bad_request"


async def test_a_stream_may_choose_too(service):
    session_id = await service.create_session()
    told = [json.loads(text) async for text in over_stream(service, ask(session_id, model="small"))]
    assert told[-1]["messages"][-1]["metadata"]["model"] == SMALL


async def test_an_answer_is_told_again_although_its_model_is_no_longer_offered(service, start_service):
    session_id = await service.create_session()
    async with service.native() as socket:
        await answered(socket, **ask(session_id, model="large"))
    for each in service.instances:
        each.running.registry._ended.clear()
    frame = ask(session_id, model="gone")
    async with service.native() as socket:
        assert await answered(socket, **frame) == LARGE


@pytest.mark.parametrize(
    ("model", "expected"), [("large", LARGE), ("own", "mock"), ("", "mock"), (7, "mock"), ({"a": 1}, "mock")]
)
async def test_compatible_passes_over_what_is_not_offered(service, model, expected):
    session_id = await service.create_session()
    async with service.compatible() as socket:
        assert await answered(socket, **ask(session_id, model=model)) == expected


async def test_a_model_that_stalls_fills_its_share_and_turns_of_another_run(start_service):
    models = [{"id": "stalled", "name": "mock;ttft=600000"}]
    agents = [{"name": "Georges", "further_models": ["*"]}]
    limits = {"max_turns": 4, "model_share": 0.5, "queue_deadline_s": 600}
    async with start_service(ai={"chat_models": models, "agents": agents}, limits=limits) as service:
        sessions = [await service.create_session() for _ in range(4)]
        async with service.native() as socket:
            for session_id, exchange_id in zip(sessions, ("e0", "e1", "e2"), strict=False):
                await say(socket, **ask(session_id, exchange_id, "stalled"))
            places = {}
            while len(places) < 3:
                frame = await hear(socket)
                if frame["type"] == "accepted":
                    places[frame["exchange_id"]] = frame.get("queue_position")
            assert places == {"e0": None, "e1": None, "e2": 1}
            for number in range(3):
                assert await answered(socket, **ask(sessions[3], f"other {number}")) == "mock"
            for exchange_id in ("e2", "e1", "e0"):
                await say(socket, type="cancel", exchange_id=exchange_id)
                await hear_until(socket, "cancelled")


@pytest.mark.parametrize(
    ("ai", "limits", "bound"),
    [
        ({}, {}, 0),
        ({"chat_models": True}, {}, 0),
        ({"chat_models": True, "agents": [{"name": "A", "further_models": ["b"]}]}, {}, 1000),
        ({"chat_models": True, "agents": [{"name": "A", "further_models": ["*"]}]}, {"model_share": 0.1}, 200),
        ({"chat_models": True, "agents": [{"name": "A"}, {"name": "B", "model": "b"}]}, {"max_turns": 1}, 1),
        ({"chat_models": True, "use_static_config_only": False}, {"max_turns": 7}, 3),
        ({"chat_models": True, "use_static_config_only": False}, {"max_turns": 0}, 0),
        ({"chat_models": True, "use_static_config_only": False}, {"model_share": 1}, 0),
    ],
)
def test_a_share_is_for_several_models_that_turns_may_have(ai, limits, bound):
    models = [{"id": "b", "name": "b"}] if ai.get("chat_models") else []
    section = {"default_chat_model": {"name": "a"}, "agents": [{"name": "A"}], **ai, "chat_models": models}
    settings = AgenticSettings.model_validate({"ai": section, "limits": limits, **ALONE})
    assert turn_limits(settings).turns_per_model == bound


async def test_another_model_answers_where_one_is_down_and_says_so(start_service):
    down = "mock;status=503"
    models = [
        {"id": "down", "name": down, "fallbacks": ["small"], "settings": {"max_retries": 0}},
        {"id": "small", "name": SMALL},
    ]
    agents = [{"name": "Georges", "model": "down"}]
    async with start_service(ai={"chat_models": models, "agents": agents}) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            assert await answered(socket, **ask(session_id)) == SMALL
        assert service.sample("app_llm_fallbacks_total", model=down, cause="llm_unavailable") == 1
        assert service.sample("app_turns_total", agent="Georges", status="ok") == 1


async def test_an_endpoint_that_is_down_is_left_out(start_service, mock_llm):
    down = f"http://127.0.0.1:{free_port()}/v1"
    model = {"id": "twice", "name": SMALL, "settings": {"base_url": down, "further_urls": [mock_llm.base_url]}}
    agents = [{"name": "Georges", "model": "twice"}]
    async with start_service(ai={"chat_models": [model], "agents": agents}) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            for number in range(3):
                assert await answered(socket, **ask(session_id, f"e{number}")) == SMALL


@pytest.mark.parametrize(
    ("default", "further", "where"),
    [
        (["none"], [], "default_chat_model.fallbacks.0"),
        (["default"], [], "default_chat_model.fallbacks.0"),
        (["b", "b"], [], "default_chat_model.fallbacks.1"),
        ([], ["none"], "chat_models.0.fallbacks.0"),
        ([], ["default", "b"], "chat_models.0.fallbacks.1"),
        (["b"], ["default"], None),
    ],
)
def test_a_fallback_is_another_model_that_is_there(default, further, where):
    section = {
        "default_chat_model": {"name": "a", "fallbacks": default},
        "chat_models": [{"id": "b", "name": "b", "fallbacks": further}],
    }
    if where is None:
        AgenticSettings.model_validate({"ai": section, **ALONE})
        return
    with pytest.raises(ValidationError) as refused:
        AgenticSettings.model_validate({"ai": section, **ALONE})
    (error,) = refused.value.errors()
    assert ".".join(map(str, error["ctx"]["error"].path)) == where
