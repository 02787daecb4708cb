"""Models made from settings: what their classes are told, and what is said of those that cannot be made."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest

from agentic_backend.llm.providers import Models, ModelUnusable
from agentic_backend.llm.providers.make import ProviderModel, make
from agentic_backend.llm.providers.transport import MAX_BODY_BYTES, MAX_LINE_BYTES, AnswerTooLarge, client_arguments
from agentic_backend.settings import ChatModel, Deadlines
from backend_kit.client.connections import Connections
from tests.support.wires import WIRES

FOREIGN = {name: wire for name, wire in WIRES.items() if wire.provider != "openai"}
CANARY = "hunter2-canary"


def model(provider: str, **settings: Any) -> ChatModel:
    called = {"base_url": "http://model.test", "api_key": "k", **settings}
    return ChatModel.model_validate({"provider": provider, "name": "m", "settings": called})


@pytest.fixture
async def made() -> AsyncIterator[Any]:
    """Makes models, and closes what they leave."""
    async with AsyncExitStack() as stack:

        async def made(configured: ChatModel) -> ProviderModel:
            one = await asyncio.to_thread(make, configured, Connections())  # it imports for seconds
            for close in one.closes:
                stack.push_async_callback(close)
            return one

        yield made


@pytest.mark.parametrize("wire", FOREIGN.values(), ids=FOREIGN)
async def test_a_temperature_is_sent_only_where_it_is_set(made: Any, wire: Any) -> None:
    options = {key: value for key, value in wire.options.items() if key != "thinking"}
    assert (await made(model(wire.provider, options=options))).model.temperature is None
    assert (await made(model(wire.provider, options=options, temperature=0.5))).model.temperature == 0.5


@pytest.mark.parametrize("wire", FOREIGN.values(), ids=FOREIGN)
async def test_no_class_tries_again_by_itself(made: Any, wire: Any) -> None:
    assert getattr((await made(model(wire.provider, options=wire.options))).model, "max_retries", 0) == 0


@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        ("anthropic", {"max_tokens": "many"}, "model m: max_tokens: Input should be a valid integer"),
        ("anthropic", {"thonking": {}}, "model m: "),
        ("ollama", {"reasoning": True, "num_ctx": CANARY}, "model m: num_ctx: Input should be a valid integer"),
        ("ollama", {"numctx": 5}, "model m: options: ChatOllama has no numctx"),
        ("azure_openai", {"azure_deployment": "d", "api_version": ["x"]}, "model m: "),
    ],
)
async def test_options_that_a_class_refuses_are_named_without_their_values(
    made: Any, provider: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelUnusable) as refused:
        await made(model(provider, options=options))
    assert str(refused.value).startswith(said)
    assert CANARY not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.servers  # the library asks uname what it runs on
async def test_azure_without_a_key_asks_entra_id(made: Any) -> None:
    if os.environ.get("AZURE_OPENAI_API_KEY"):
        pytest.fail("the test needs an environment without a key")
    one = await made(model("azure_openai", api_key=None, options={"api_version": "2024-10-21"}))
    assert one.model.openai_api_key is None
    assert one.model.azure_ad_async_token_provider is not None
    assert len(one.closes) == 2  # the HTTP client, and the credential
    with_key = await made(model("azure_openai", options={"api_version": "2024-10-21"}))
    assert with_key.model.azure_ad_async_token_provider is None


async def test_equal_settings_share_a_model_and_its_circuit() -> None:
    models, deadlines = Models(), Deadlines()
    one, same = model("ollama"), model("ollama")
    others = [model("ollama", api_key="l"), model("ollama", options={"num_ctx": 5}), model("anthropic")]
    await asyncio.to_thread(models.prepare, [one, *others], deadlines)
    assert models.model_of(one, deadlines) is models.model_of(same, deadlines)
    assert len({id(models.model_of(other, deadlines)) for other in [one, *others]}) == 4
    assert models.model_of(one, deadlines).metadata["turnwise_metered"] is True
    await models.aclose()


@pytest.mark.parametrize("http", [httpx, httpx2])
@pytest.mark.parametrize(
    ("piece", "count"), [(b"x" * 1000, MAX_LINE_BYTES // 1000 + 1), (b"\n" * 65_536, MAX_BODY_BYTES // 65_536 + 1)]
)
async def test_a_line_and_an_answer_have_bounds(http: ModuleType, piece: bytes, count: int) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(2 * count):
            yield piece

    transport = http.MockTransport(lambda _request: http.Response(200, content=body()))
    arguments = client_arguments(http, Connections())
    async with (
        http.AsyncClient(transport=transport, **arguments) as client,
        client.stream("GET", "http://a/") as answer,
    ):
        pieces = answer.aiter_raw()
        for _ in range(count - 1):
            await anext(pieces)
        with pytest.raises(AnswerTooLarge):
            await anext(pieces)


@pytest.mark.parametrize("http", [httpx, httpx2])
async def test_a_redirect_is_not_followed(http: ModuleType) -> None:
    asked: list[str] = []

    def answer(request: Any) -> Any:
        asked.append(request.url.host)
        return http.Response(307, headers={"location": "http://elsewhere/"})

    async with http.AsyncClient(
        transport=http.MockTransport(answer), **client_arguments(http, Connections())
    ) as client:
        assert (await client.post("http://a/")).status_code == 307
    assert asked == ["a"]
