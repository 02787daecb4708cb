"""LangGraph's own client, unmodified, as a user of a service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.support.people import headers_of
from tests.support.service import ServiceClient


@asynccontextmanager
async def sdk(
    service: ServiceClient, user: str | None = None, key: str | None = None
) -> AsyncIterator[LangGraphClient]:
    """The client of a user with a token, of a key, or of whoever comes where authentication is off."""
    headers = {} if user is None else headers_of(user)
    async with get_client(url=f"http://127.0.0.1:{service.port}", api_key=key, headers=headers) as client:
        yield client
