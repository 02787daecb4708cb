"""Clients that break every rule, at random: what stands beside the honest ones in the mixed chaos."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count

import aiohttp

from tests.chaos.ledger import Asked, Ledger
from tests.chaos.load import CUT, Address, ask_text, create_session, hear
from tests.support.raw import NO_CLOSE, PING, TEXT, Peer, close_frame, frame, head, peer
from tests.support.service import BASE

PATH = f"{BASE}/chatbot/query/ws"
_STAYS_S = 4.0
_SESSIONS = 40
Deed = Callable[["Strangers"], Awaitable[None]]


class Strangers:
    """So many tasks, each of which does one wrong thing after the other. `deeds` counts them by name."""

    def __init__(self, address: Address, draw: random.Random) -> None:
        self.deeds: Counter[str] = Counter()
        self.ledger = Ledger()
        self.address = address
        self.draw = draw
        self._sessions: list[str] = []
        self._numbers = count()

    async def go_on(self) -> None:
        """One stranger, for ever."""
        while True:
            deed = self.draw.choice(DEEDS)
            with contextlib.suppress(*CUT, aiohttp.ClientError):
                await deed(self)
            self.deeds[deed.__name__] += 1
            await asyncio.sleep(self.draw.uniform(0, 0.5))

    async def opened(self, stranger: Peer) -> bool:
        """Whether a native socket opened."""
        authorization = f"Authorization: Bearer {self.address.token}"
        answer = await stranger.upgrade(head(PATH, authorization, "Sec-WebSocket-Protocol: turnwise.v1"))
        return answer.startswith(b"HTTP/1.1 101 ")

    async def session(self) -> str:
        """One of their own sessions: few, since what is kept of each that is new is no leak."""
        if len(self._sessions) < _SESSIONS:
            async with aiohttp.ClientSession() as http:
                self._sessions.append(await create_session(http, self.address))
        return self.draw.choice(self._sessions)

    def ask(self, mark: str, session_id: str) -> Asked:
        """A question that nobody has asked before."""
        return self.ledger.ask(f"{mark}-{next(self._numbers)}-{session_id}", session_id, f"A question, {mark}?")

    async def send(self, data: bytes) -> int:
        """Send frames over a socket of their own; its close code."""
        async with peer(self.address.port) as stranger:
            if not await self.opened(stranger):
                return NO_CLOSE
            await stranger.send(data)
            return await stranger.close_code()


async def garbage(one: Strangers) -> None:
    """Bytes that are no frame."""
    await one.send(one.draw.randbytes(200))


async def bad_frames(one: Strangers) -> None:
    """Three frames that cannot be read."""
    await one.send(frame(TEXT, b"{") * 3)


async def too_large(one: Strangers) -> None:
    """A frame over the bound."""
    await one.send(frame(TEXT, b"x" * 300_000))


async def flood(one: Strangers) -> None:
    """More frames than a second may have."""
    await one.send(frame(PING, b"flood") * 5000)


async def half_handshake(one: Strangers) -> None:
    """A head that does not end."""
    async with peer(one.address.port) as stranger:
        await stranger.send(head(PATH)[:-10])
        await asyncio.sleep(one.draw.uniform(0, _STAYS_S))


async def foreign_page(one: Strangers) -> None:
    """A handshake from somewhere else."""
    async with peer(one.address.port) as stranger:
        await stranger.upgrade(head(PATH, "Origin: https://evil.example"))


async def never_reads(one: Strangers) -> None:
    """Ask, and read nothing of the answer."""
    session_id = await one.session()
    async with peer(one.address.port) as stranger:
        if await one.opened(stranger):
            stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of every TCP transport
            asked = one.ask("unread", session_id)
            await stranger.send(frame(TEXT, ask_text(asked).encode()))
            await asyncio.sleep(one.draw.uniform(0, _STAYS_S))


async def ask_and_drop(one: Strangers) -> None:
    """Ask, and vanish; now and then the turn is to end with its client."""
    session_id = await one.session()
    async with peer(one.address.port) as stranger:
        if await one.opened(stranger):
            asked = one.ask("dropped", session_id)
            policy = one.draw.choice(["continue", "cancel"])
            await stranger.send(frame(TEXT, ask_text(asked, on_disconnect=policy).encode()))
            await asyncio.sleep(one.draw.uniform(0, 0.3))


async def ask_and_stop(one: Strangers) -> None:
    """Ask, stop, ask the same again, and leave in the middle of the compatible protocol with 4000."""
    session_id = await one.session()
    asked = one.ask("stopped", session_id)
    async with one.address.dial() as socket:
        await socket.send(ask_text(asked))
        await socket.send(f'{{"type":"cancel","exchange_id":"{asked.exchange_id}"}}')
        await socket.send(ask_text(asked))
        async with asyncio.timeout(_STAYS_S):
            while (told := await hear(socket))["type"] not in ("cancelled", "final"):
                pass
            one.ledger.told(asked, told)
    async with one.address.dial(native=False) as socket:
        await socket.send(ask_text(one.ask("left", session_id)))
        await asyncio.sleep(one.draw.uniform(0, 0.3))
        await socket.close(4000)


async def close_badly(one: Strangers) -> None:
    """A close code that nobody may send."""
    await one.send(close_frame(1005))


DEEDS: tuple[Deed, ...] = (
    garbage,
    bad_frames,
    too_large,
    flood,
    half_handshake,
    foreign_page,
    never_reads,
    ask_and_drop,
    ask_and_stop,
    close_badly,
)
