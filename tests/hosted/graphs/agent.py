"""Agents of LangChain: with tools, with calls that a person reviews, and with an answer that is no text."""

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from pydantic import BaseModel

from tests.hosted.graphs.models import model
from tests.hosted.graphs.tools import add, shout

graph = create_agent(model, tools=[add, shout], system_prompt="You add.")

reviewed = create_agent(
    model,
    tools=[add, shout],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True, "shout": False})],
)


class Weather(BaseModel):
    """What the weather is like."""

    place: str
    degrees: int


structured = create_agent(model, tools=[], response_format=ToolStrategy(Weather))
