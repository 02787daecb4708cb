"""A model that reasons, made by an asynchronous function."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


async def make() -> object:
    model = ChatOpenAI(
        model="mock;think=4;tokens=3",
        api_key="none",
        base_url=os.environ["MOCK_URL"],
        use_responses_api=True,
        reasoning={"summary": "auto"},
    )
    return create_agent(model, tools=[])
