"""ChatOpenAI models of people's graphs say the same, whether the SDK makes objects of their chunks or not."""

import openai
import pytest
from langchain_openai import ChatOpenAI
from openai.resources.chat.completions import AsyncCompletions

from agentic_backend.agent.hosted.openai_streams import PlainStreams, read_streams_plainly
from tests.agentic_backend.llm.scripted import scripted, status
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.servers


class OwnChatOpenAI(ChatOpenAI):
    """Somebody's own class."""


def model_of(kind, server, **more):
    return kind(model="m", api_key="none", base_url=server.base_url, max_retries=0, stream_usage=True, **more)


async def said(model, **how):
    return [chunk.model_dump(exclude={"id"}) async for chunk in model.astream("Hello", **how)]


@pytest.mark.parametrize("answer", [says("It is ", "5."), wants(("c1", "add", '{"a": 2}'), text="I add.")])
async def test_the_same_messages_come_of_both(answer):
    async with scripted(answer) as server:
        plain, own = model_of(ChatOpenAI, server), model_of(OwnChatOpenAI, server)
        as_the_sdk_has_it = await said(model_of(ChatOpenAI, server))
        assert read_streams_plainly() >= 1
        assert type(plain.async_client) is PlainStreams
        assert type(own.async_client) is AsyncCompletions
        assert await said(plain) == as_the_sdk_has_it == await said(own)
        first, *others = [request.body for request in server.requests]
        assert all(body == first for body in others[:2])


async def test_failures_are_the_sdks_own():
    async with scripted(status(429)) as server:
        model = model_of(ChatOpenAI, server)
        read_streams_plainly()
        with pytest.raises(openai.RateLimitError):
            await said(model)


async def test_options_of_a_request_go_the_sdks_way_and_a_second_look_changes_nothing():
    async with scripted(says("Yes.")) as server:
        model = model_of(ChatOpenAI, server, extra_body={"seen": 1}, stream_chunk_timeout=7.0)
        read_streams_plainly()
        client = model.async_client
        read_streams_plainly()
        assert model.async_client is client
        assert model.stream_chunk_timeout == 7.0
        assert "".join([chunk["content"] for chunk in await said(model)]) == "Yes."
        assert server.requests[0].body["seen"] == 1
