"""What we use of langchain-anthropic beyond what it documents."""

import asyncio

import pytest
from anthropic import APIConnectionError

from agentic_backend.llm.providers.make import make
from agentic_backend.settings import ChatModel
from backend_kit.client.connections import Connections
from tests.ws_bench.fakes.conftest import Model, model, start_model

__all__ = ["model", "start_model"]


@pytest.mark.servers
async def test_a_client_that_is_put_in_its_place_is_the_one_that_is_asked(model: Model) -> None:
    """agentic_backend/llm/providers/make.py puts one with an HTTP client of our own there (`_async_client`): that of
    langchain-anthropic is shared by the models of all event loops, has no bounds, and nobody closes it."""
    called = {
        "provider": "anthropic",
        "name": "mock;tokens=1",
        "settings": {"base_url": model.base_url, "api_key": "k"},
    }
    made = await asyncio.to_thread(make, ChatModel.model_validate(called), Connections())
    assert (await made.model.ainvoke("Hi")).content == "Each"
    for close in made.closes:
        await close()
    with pytest.raises(APIConnectionError):
        await made.model.ainvoke("Hi")
