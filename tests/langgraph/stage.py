"""A service with the graphs of the recording and agents of ours, and clients of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.support.service import ServiceClient
from tests.support.telling_agent import telling

GRAPHS: Final = [{"name": name, "graph": f"tests.langgraph.graphs:{name}"} for name in ("agent", "asker", "failing")]
GEORGES: Final = {"name": "Georges", "class_path": "agentic_backend.agent.plain"}
AGENTS: Final[dict[str, Any]] = {"ai": {"agents": [*GRAPHS, GEORGES, telling()], "use_static_config_only": False}}
BEARER: Final = {"Authorization": "Bearer local"}


def url_of(service: ServiceClient) -> str:
    """The one that a client's configuration changes."""
    return f"http://127.0.0.1:{service.port}"


@asynccontextmanager
async def client_of(
    service: ServiceClient, headers: dict[str, str] | None = None, *, key: str | None = None
) -> AsyncIterator[LangGraphClient]:
    """A client, until the block ends; with an API key, it sends no other credentials."""
    given = {} if key else headers or BEARER
    async with get_client(url=url_of(service), api_key=key, headers=given) as client:
        yield client


def human(text: str, **more: Any) -> dict[str, Any]:
    """An input of one message."""
    return {"messages": [{"role": "user", "content": text, **more}]}


def told(values: Any) -> list[tuple[str, str]]:
    """Who said what, in the values of a state."""
    return [(one["type"], text_of(one)) for one in (values or {}).get("messages", [])]


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, whose content may be blocks."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
