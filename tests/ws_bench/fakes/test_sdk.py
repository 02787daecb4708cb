"""The clients that agents use, against the fake model."""

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from tests.ws_bench.fakes.conftest import Model

pytestmark = pytest.mark.servers


@pytest.fixture
def client(model: Model) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{model.base_url}/v1", api_key="none", max_retries=0)


async def test_openai_streams_with_usage(client: openai.AsyncOpenAI) -> None:
    async with client:
        stream = await client.chat.completions.create(
            model="mock;tokens=12;gap=1",
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text.split()) == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


async def test_openai_whole_answer_models_and_embeddings(client: openai.AsyncOpenAI) -> None:
    async with client:
        answer = await client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "Hello"}])
        assert (answer.choices[0].message.content or "").startswith("Hello!")
        assert [entry.id async for entry in client.models.list()] == ["mock"]
        vectors = await client.embeddings.create(model="mock", input=["a", "b"], dimensions=64)
        assert [len(entry.embedding) for entry in vectors.data] == [64, 64]


@pytest.mark.parametrize(("status", "error"), [(429, openai.RateLimitError), (500, openai.InternalServerError)])
async def test_openai_sees_refusals(client: openai.AsyncOpenAI, status: int, error: type[Exception]) -> None:
    async with client:
        with pytest.raises(error):
            await client.chat.completions.create(
                model=f"mock;status={status}", messages=[{"role": "user", "content": "Hello"}]
            )


async def test_langchain_streams_and_remembers(model: Model) -> None:
    history = [("user", "My name is Ada."), ("assistant", "Hello Ada."), ("user", "What is my name?")]
    async with openai.DefaultAsyncHttpxClient() as http:
        chat = ChatOpenAI(
            model="mock",
            base_url=f"{model.base_url}/v1",
            api_key=SecretStr("none"),
            stream_usage=True,
            max_retries=0,
            http_async_client=http,
        )
        parts = [part async for part in chat.astream(history)]
        whole = await chat.ainvoke(history)
    assert "".join(str(part.content) for part in parts) == "Your name is Ada."
    assert sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata) == 4
    assert whole.content == "Your name is Ada."
    assert (await model.stats())["last_messages_count"] == 3


async def test_langchain_embeds_texts(model: Model) -> None:
    async with openai.DefaultAsyncHttpxClient() as http:
        embeddings = OpenAIEmbeddings(
            model="mock",
            base_url=f"{model.base_url}/v1",
            api_key=SecretStr("none"),
            check_embedding_ctx_length=False,
            max_retries=0,
            http_async_client=http,
        )
        vectors = await embeddings.aembed_documents(["one text", "another"])
        query = await embeddings.aembed_query("one text")
    assert [len(vector) for vector in vectors] == [384, 384]
    assert query == pytest.approx(vectors[0])
