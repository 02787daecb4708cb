"""What we use of langchain-anthropic beyond what it documents."""

import httpx2
from langchain_anthropic import ChatAnthropic
from pydantic import SecretStr

from ws_bench.fakes.plan import CompletionPlan
from ws_bench.fakes.wires.anthropic import MessagesWire


async def test_a_client_that_is_put_in_its_place_is_the_one_that_is_asked() -> None:
    """agentic_backend/llm/providers/make.py puts one with an HTTP client of our own there: that of langchain-anthropic
    is shared by the models of all event loops, has no bounds, and nobody closes it."""
    plan = CompletionPlan(1, "mock", 0, ["Hello"], "", "stop", 1, with_usage=True)
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(200, json=MessagesWire().whole(plan))

    model = ChatAnthropic(model_name="mock", api_key=SecretStr("none"), base_url="http://nowhere.invalid")
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        model._async_client = model._async_client.with_options(http_client=http)
        assert (await model.ainvoke("Hi")).content == "Hello"
    assert asked == ["/v1/messages"]
