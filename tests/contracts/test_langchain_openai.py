"""What `ChatOpenAI` is made of, where our client takes the SDK's place below it and streams text as text above it."""

import inspect
from typing import Any

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


class Client:
    """In the place of the SDK's `chat.completions`: keeps what it is asked for, answers with dicts."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def create(self, **payload: Any) -> Any:
        self.asked.append(payload)
        message = {"role": "assistant", "content": "whole"}
        return Raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    @property
    def with_raw_response(self) -> "Client":
        return self


class Raw:
    """An answer that has to be asked for."""

    headers: dict[str, str] = {}

    def __init__(self, answer: dict[str, Any]) -> None:
        self.parse = lambda: answer


def model(client: Client) -> ChatOpenAI:
    return ChatOpenAI(
        model="m",
        api_key=SecretStr("k"),
        client=object(),
        async_client=client,
        use_responses_api=False,
        temperature=0.5,
    )


def test_the_payload_of_a_request_is_made_in_one_place() -> None:
    """agentic_backend/llm/models.py asks `_get_request_payload` for what `astream` would send."""
    made = model(Client())._get_request_payload([HumanMessage("Hi")], tools=[], stream=True)
    assert made["messages"] == [{"role": "user", "content": "Hi"}]
    assert (made["model"], made["temperature"], made["stream"], made["tools"]) == ("m", 0.5, True, [])


def test_a_chunk_becomes_a_message_with_its_information_beside_it() -> None:
    """agentic_backend/llm/models.py gives `_convert_chunk_to_generation_chunk` the chunks that are more than text."""
    assert list(inspect.signature(ChatOpenAI._convert_chunk_to_generation_chunk).parameters) == [
        "self",
        "chunk",
        "default_chunk_class",
        "base_generation_info",
    ]
    chunk = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "model": "m-1"}
    made = model(Client())._convert_chunk_to_generation_chunk(chunk, AIMessageChunk, None)
    assert made is not None
    assert isinstance(made.message, AIMessageChunk)
    assert made.message.content == "a"
    assert made.generation_info is not None
    assert (made.generation_info["finish_reason"], made.generation_info["model_name"]) == ("stop", "m-1")
    # To both it adds the reasoning, which langchain-openai leaves out.
    chunk = {"choices": [{"delta": {"content": "a", "reasoning_content": "b"}, "finish_reason": None}]}
    made = model(Client())._convert_chunk_to_generation_chunk(chunk, AIMessageChunk, None)
    assert made is not None
    assert made.message.additional_kwargs == {}
    message = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    result = model(Client())._create_chat_result({"choices": [{"index": 0, "message": message}]})
    assert [one.message.additional_kwargs for one in result.generations] == [{}]
    # Without choices or usage it is nothing.
    assert model(Client())._convert_chunk_to_generation_chunk({"type": "content.delta"}, AIMessageChunk, None) is None


async def test_a_given_client_is_the_one_that_is_asked_and_no_other_is_made() -> None:
    """agentic_backend/llm/models.py puts agentic_backend/llm/client.py where the SDK's client would be: a call in one
    piece goes through `with_raw_response`, its answer is asked for by `parse()`, and dicts are taken as they are."""
    client = Client()
    asking = model(client)
    assert (asking.root_client, asking.root_async_client) == (None, None)
    assert (await asking.ainvoke("Hi", stream=False)).content == "whole"
    (asked,) = client.asked
    assert asked["messages"] == [{"role": "user", "content": "Hi"}]
