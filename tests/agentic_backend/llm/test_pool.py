"""Connections, settings and metrics around the client."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from agentic_backend import settings
from agentic_backend.errors import LlmTimeout
from agentic_backend.llm import CallDeadlines, Endpoint, Metered, ModelPool, TokenUse, connections_of, endpoint_of
from agentic_backend.llm.failures import retry_after_s
from agentic_backend.metrics import AgenticMetrics
from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections
from backend_kit.kpi import Kpi, Ledger
from tests.agentic_backend.llm.conftest import Watched
from tests.support.mock_llm import MockModel


async def test_connections_are_kept_and_shared(mock_llm: MockModel, pool: ModelPool) -> None:
    models = [pool.chat_model(Endpoint(mock_llm.base_url, f"mock;tokens={n}")) for n in (3, 5)]
    for _ in range(3):
        for model in models:
            assert (await model.ainvoke("Hi")).content
    connector = pool._session.connector
    assert connector is not None
    assert sum(len(idle) for idle in connector._conns.values()) == 1


async def test_keepalive_can_be_switched_off(mock_llm: MockModel) -> None:
    pool = ModelPool(Connections(max_idle=0))
    assert (await pool.chat_model(Endpoint(mock_llm.base_url, "mock;tokens=3")).ainvoke("Hi")).content
    connector = pool._session.connector
    assert connector is not None
    assert not connector._conns
    await pool.aclose()


async def test_waits_for_a_connection_are_told(mock_llm: MockModel) -> None:
    waits: list[float] = []
    pool = ModelPool(Connections(max_connections=1), pool_wait=waits.append)
    model = pool.chat_model(Endpoint(mock_llm.base_url, "mock;tokens=3;gap=10"))
    answers = await asyncio.gather(*(model.ainvoke("Hi") for _ in range(3)))
    assert len({str(answer.content) for answer in answers}) == 1
    assert len(waits) == 2
    await pool.aclose()


async def test_the_real_mock_model_streams_and_counts(mock_llm: MockModel, pool: ModelPool, watched: Watched) -> None:
    model = pool.chat_model(Endpoint(mock_llm.base_url, "mock;tokens=50", coalesce=False))
    texts = [str(chunk.content) async for chunk in model.astream("Hi")]
    assert len([text for text in texts if text]) == 50
    assert watched.requests == [("mock;tokens=50", "ok")]
    assert [written for _model, _read, written in watched.tokens] == [50]


async def test_a_stalled_mock_model_times_out(mock_llm: MockModel, pool: ModelPool) -> None:
    endpoint = Endpoint(mock_llm.base_url, "mock;tokens=50;stall=5", deadlines=CallDeadlines(inter_token_s=0.2))
    with pytest.raises(LlmTimeout):
        await pool.chat_model(endpoint).ainvoke("Hi")


def test_calls_become_metrics() -> None:
    registry = CollectorRegistry()
    observer = Metered(AgenticMetrics(registry, Kpi(registry, service="agentic")))
    observer.llm_first_chunk("m", 0.1)
    observer.llm_request("m", "timeout", 0.5)
    observer.llm_tokens("m", TokenUse(3, 2))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model": "m", **labels})

    assert value("app_llm_time_to_first_chunk_seconds_count", status="ok") == 1
    assert value("app_llm_request_seconds_count", status="timeout") == 1
    assert value("app_llm_tokens_total", type="input") == 3
    assert value("app_llm_tokens_total", type="output") == 2
    assert value("app_llm_tokens_total", type="cached") is None
    observer.llm_tokens("m", TokenUse(10, 5, 8, 4))
    counted = {kind: value("app_llm_tokens_total", type=kind) for kind in ("input", "output", "cached", "reasoning")}
    assert counted == {"input": 13, "output": 7, "cached": 8, "reasoning": 4}


@pytest.mark.parametrize(("of_cached", "cost"), [(None, 110.0), (1.0, 38.0), (0.0, 30.0)])
def test_cached_tokens_have_a_price_of_their_own(of_cached: float | None, cost: float) -> None:
    registry = CollectorRegistry()
    kpi = Kpi(registry, service="agentic")
    price = settings.ModelPrice(
        model="m",
        input_per_million=10e6,
        output_per_million=2e6,
        cached_input_per_million=of_cached and of_cached * 1e6,
    )
    observer, ledger = Metered(AgenticMetrics(registry, kpi), [price]), Ledger(kpi)
    with ledger.activate():
        observer.llm_tokens("m", TokenUse(10, 5, 8, 4))
    (spent,) = ledger.spent
    assert (spent.cost, spent.cached_tokens, spent.reasoning_tokens) == (cost, 8, 4)
    assert registry.get_sample_value("app_llm_cost_total", {"model": "m"}) == cost


def test_settings_become_an_endpoint() -> None:
    model = settings.ChatModel.model_validate(
        {
            "name": "m",
            "settings": {
                "base_url": "http://127.0.0.1:8099/v1",
                "max_retries": 9,
                "temperature": 0.3,
                "timeout": {"connect": 3, "read": 7, "write": 9, "pool": 2},
                "http_client_limits": {"max_connections": 11, "max_keepalive_connections": 4},
            },
        }
    )
    assert endpoint_of(model, settings.Deadlines(first_token_s=3, inter_token_s=4)) == Endpoint(
        base_url="http://127.0.0.1:8099/v1",
        model="m",
        temperature=0.3,
        deadlines=CallDeadlines(first_token_s=3, inter_token_s=4, answer_s=7, write_s=9),
        retries=Retries(max_retries=9, cap_s=1.0),
    )
    assert connections_of(model) == Connections(
        max_connections=11, max_idle=4, keepalive_s=30, connect_s=3, pool_s=2, read_s=7, write_s=9
    )


def test_silence_is_timed_only_where_the_other_deadlines_are_longer() -> None:
    def read_s(configured_s: float) -> float | None:
        model = settings.ChatModel.model_validate({"name": "m", "settings": {"timeout": {"read": configured_s}}})
        return endpoint_of(model, settings.Deadlines(first_token_s=30, inter_token_s=20)).deadlines.read_s

    assert [read_s(configured_s) for configured_s in (5, 29, 30, 60)] == [5, 29, None, None]


def test_without_an_address_the_provider_is_called() -> None:
    endpoint = endpoint_of(settings.ChatModel(name="m"), settings.Deadlines())
    assert endpoint.base_url == "https://api.openai.com/v1"


def test_a_key_is_in_no_repr() -> None:
    assert "sk-1" not in repr(Endpoint("http://x/v1", "m", SecretStr("sk-1")))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CallDeadlines(first_token_s=0),
        lambda: CallDeadlines(answer_s=-1),
        lambda: Connections(max_connections=-1),
        lambda: Connections(pool_s=0),
    ],
)
def test_bounds_that_bound_nothing_are_refused(make: type) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of its words
        make()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("1.5", 1.5),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("9999999", 3600.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 9015 07:28:00 GMT", 3600.0),
        ("Wed, 21 Oct 9015 07:28:00 -0000", None),
    ],
)
def test_retry_after_is_read_in_both_its_forms(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header) == seconds
