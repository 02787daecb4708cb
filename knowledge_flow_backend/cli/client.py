"""What the commands of `knowledge-flow` share: how they reach a running service, and what it answered."""

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from backend_kit.wire import InvalidJson, loads

EXIT_FAILED = 1
EXIT_NOT_TRIED = 2
DEFAULT_URL = "http://127.0.0.1:8111/knowledge-flow/v1"
TOKEN_VARIABLE = "KNOWLEDGE_FLOW_TOKEN"  # noqa: S105 - the variable's name
_CONNECT_S = 5.0
_SILENCE_S = 600.0
"""Longest wait for a line of progress: a large file is parsed and embedded behind others."""
_TRIES = 6
_RETRY_S = 2.0
_SHOWN = 200


class NotReachable(Exception):
    """The service cannot be used for what is asked, at all; `str()` is for the person."""


class _Unready(Exception):
    """503: the first argument is the decoded body."""


def add_service(parser: argparse.ArgumentParser) -> None:
    """Where the service is and who asks, as options."""
    parser.add_argument("--url", default=DEFAULT_URL, help="default: %(default)s")
    parser.add_argument("--token", help=f"access token; better in the environment as {TOKEN_VARIABLE}")


def token_of(options: argparse.Namespace) -> str | None:
    """The token that was given, None without."""
    return options.token or os.environ.get(TOKEN_VARIABLE) or None


@asynccontextmanager
async def session_with(token: str | None) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to the service, with the token where there is one."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        yield session


async def call(session: aiohttp.ClientSession, method: str, url: str, **options: Any) -> tuple[int, Any]:
    """Status and decoded body; a service that is still starting is waited for. Raises `NotReachable`."""
    from backend_kit.aio.retry import try_again  # with it comes Prometheus' client, 0.1 s of the start of each command

    async def attempt() -> tuple[int, Any]:
        try:
            async with session.request(method, url, **options) as response:
                status, body = response.status, decoded(await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReachable(f"{url} cannot be reached: {error or type(error).__name__}") from None
        if status == 503:
            raise _Unready(body)
        return status, body

    try:
        return await try_again(attempt, _Unready, lambda _, tries: _RETRY_S if tries < _TRIES else None)
    except _Unready as last:
        return 503, last.args[0]


def decoded(body: bytes) -> Any:
    """What a body says; None where it is no JSON."""
    try:
        return loads(body)
    except InvalidJson:
        return None


def detail(body: Any) -> str:
    """What an answer says went wrong, for a person."""
    said = body.get("detail") if isinstance(body, dict) else None
    text = said.get("message") if isinstance(said, dict) else said
    return f" ({text[:_SHOWN]})" if isinstance(text, str) else ""


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def refuse(text: str, code: int = EXIT_NOT_TRIED) -> int:
    """Print on standard error why it was not done; returns the exit code."""
    sys.stderr.write(f"knowledge-flow: {text}\n")
    return code
