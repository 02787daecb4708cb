"""The official client of MCP, unmodified, against a service on a port of this machine."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

ERAS = ("legacy", "2026-07-28")
"""The handshake of older clients, and the protocol without sessions."""
_TLS = ssl.create_default_context()
"""Not needed here. Each client would make one of its own, which computes for 25 ms: twenty at once stall a loop."""


@asynccontextmanager
async def mcp_client(
    port: int, era: str = "auto", *, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of `/mcp` that has connected; `options` are those of `Client`."""
    async with httpx2.AsyncClient(headers=headers or {}, trust_env=False, timeout=600, verify=_TLS) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
        async with Client(transport, mode=era, cache=None, **options) as client:
            yield client
