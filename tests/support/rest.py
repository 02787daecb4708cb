"""A client of REST that may be idle between two requests."""

from typing import Any

import aiohttp


def rest_client(base_url: str | None = None, **options: Any) -> aiohttp.ClientSession:
    """A session of aiohttp's, with its options, that closes idle connections before a service does.

    That is after five seconds: a request that meets the close fails, and nobody sends it again.
    """
    return aiohttp.ClientSession(base_url, connector=aiohttp.TCPConnector(keepalive_timeout=2.0), **options)
