"""Follows the turns of other instances: their events become those of a turn here, number by number."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final

import aiohttp
from yarl import URL

from agentic_backend.peers.events import MAX_LINE_BYTES, decode_ask, decode_events
from agentic_backend.peers.relay import HEARTBEAT_S, PATH, VIEWS
from agentic_backend.peers.siblings import Siblings
from agentic_backend.session.stream import Ask, Awaiting, Turn, TurnEvent
from backend_kit.client.connections import Connections, open_session

CONNECT_S: Final = 1.0
MAX_VIEW_BYTES: Final = 4 << 20
_HEARTBEATS: Final = 3
"""A peer that is silent for this many heartbeats is lost."""


class TurnNotThere(Exception):
    """The instance has no such turn, or does not know the token."""


class PeerLost(Exception):
    """The instance cannot be reached, fell silent, stopped in mid-turn, or sent nonsense. Its text contains no
    content."""


class Peers:
    """The connections to the other instances of the fleet. Built on the running loop, closed by `aclose`."""

    def __init__(
        self,
        base: str,
        siblings: Siblings | None = None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        connect_s: float = CONNECT_S,
    ) -> None:
        """`base` is the base path of the services; `siblings` are the workers of this host, where there are several. A
        peer gets `connect_s` to accept a connection, and is lost once it has been silent for three times `heartbeat_s`;
        both in seconds."""
        self._base = base
        self._silence_s = _HEARTBEATS * heartbeat_s
        # No connection is kept: one that became half-open while idle would cost the next user the whole silence.
        self._limits = Connections(max_idle=0, connect_s=connect_s, pool_s=None, read_s=self._silence_s)
        self._session = open_session(self._limits)
        self._siblings = siblings

    async def follow(
        self,
        url: str,
        token: str,
        *,
        user_id: str,
        session_id: str,
        exchange_id: str,
        after: int,
        on_ask: Callable[[Ask], None] | None = None,
    ) -> AsyncGenerator[list[TurnEvent]]:
        """The events of a turn of the instance at `url` behind the event with number `after` (0: all), as they come; an
        empty list with each heartbeat of a silent one, so that the follower can check where the turn runs.

        It ends after the terminal event, or at once if `after` is that one. Raises `TurnNotThere` and `PeerLost`. A
        caller that stops before the end closes it. `on_ask` first gets what was asked, as far as clients see it: a
        mirror with that ask is streamed like the turn itself.
        """
        query = {"user": user_id, "session": session_id, "exchange": exchange_id, "after": str(after)}
        last: TurnEvent | None = None
        try:
            async with (
                self._answer(url, token, self._base + PATH, query) as parts,
                aclosing(lines_of(parts)) as lines,
            ):
                head = b""
                async for head in lines:
                    if head:
                        break
                asked = decode_ask(head, user_id=user_id, session_id=session_id, exchange_id=exchange_id)
                if on_ask is not None:
                    on_ask(asked)
                async for line in lines:
                    events = decode_events(line) if line else []
                    last = events[-1] if events else last
                    yield events
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            raise PeerLost(type(error).__name__) from None
        if last is not None and not last.terminal:
            raise PeerLost("the turn has no end")

    @asynccontextmanager
    async def _answer(
        self, url: str, token: str, path: str, query: dict[str, str]
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        """The parts of a good answer. Raises `TurnNotThere`, `PeerLost`, and what the client raises."""
        own = None if self._siblings is None else self._siblings.find(token)
        headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        async with AsyncExitStack() as stack:
            session = self._session
            if own is not None:
                session = await stack.enter_async_context(open_session(self._limits, unix_socket=own))
            async with asyncio.timeout(self._silence_s):  # also of the look-up of a name
                response = await session.get(
                    URL(url.rstrip("/") + path), params=query, headers=headers, allow_redirects=False
                )
            await stack.enter_async_context(response)
            if response.status != 200:
                raise TurnNotThere if response.status == 404 else PeerLost(f"HTTP {response.status}")
            yield response.content.iter_any()

    async def view(self, url: str, token: str, name: str, query: dict[str, str]) -> bytes:
        """A view of the instance at `url`: JSON of at most 4 MiB. Raises `TurnNotThere`, also where its version has no
        such view, and `PeerLost`."""
        said = bytearray()
        try:
            async with self._answer(url, token, self._base + VIEWS + name, query) as parts:
                async for part in parts:
                    said += part
                    if len(said) > MAX_VIEW_BYTES:
                        raise PeerLost("a view is too long")
        except (aiohttp.ClientError, OSError) as error:
            raise PeerLost(type(error).__name__) from None
        return bytes(said)

    async def pass_on(self, token: str, path: str, query: dict[str, str]) -> AsyncGenerator[bytes]:
        """The answer of the sibling with this token on a path, byte by byte, for an instance of another host, to which
        all workers of this one have the same address. Raises as `follow`."""
        try:
            async with self._answer("http://sibling", token, path, query) as parts:
                async for part in parts:
                    yield part
        except (aiohttp.ClientError, OSError) as error:
            raise PeerLost(type(error).__name__) from None

    async def aclose(self) -> None:
        """Close the connections. Followers of a turn get `PeerLost`."""
        await self._session.close()


async def lines_of(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The lines of a text that comes in parts. Raises ValueError for one that is too long or has no end."""
    begun = bytearray()
    async for part in parts:
        *whole, rest = part.split(b"\n")
        for end in whole:
            line = bytes(begun) + end
            begun.clear()
            yield line
        begun += rest
        if len(begun) > MAX_LINE_BYTES:
            raise ValueError("a line of events is too long")
    if begun:
        raise ValueError("a line of events has no end")


async def mirror(turn: Turn, events: AsyncGenerator[list[TurnEvent]]) -> None:
    """Publish the events of the mirrored turn in a turn here, until its end, and close them.

    Raises what they raise. It can be repeated from the turn's last event on without duplicates.
    """
    asked: TurnEvent | None = None
    try:
        async with aclosing(events):
            async for batch in events:
                for event in batch:
                    if asked is not None:
                        turn.take(asked, goes_on=True)
                        asked = None
                    # Only what follows shows whether it ends the exchange: a person may have let the run continue.
                    if isinstance(event.payload, Awaiting):
                        asked = event
                    else:
                        turn.take(event)
    except PeerLost:
        if not turn.ended:
            raise
    if asked is not None:
        turn.take(asked)
