"""Watchers of the turns of sessions, also of those that other instances begin."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.session.store import Elsewhere, NewestElsewhere

_LOOK_S: Final = 1.0
OnTurn = Callable[[str | None, int], None]
"""Called with the exchange of a turn that begins; or with None and the rank up to which the session has messages, where
another instance has run turns of it. With None and `GONE` the session is being deleted."""
GONE: Final = -1


class Watches:
    """Calls back when turns of watched sessions begin. Sessions that nobody watches cost nothing."""

    def __init__(self) -> None:
        self._watching: dict[tuple[str, str], list[OnTurn]] = {}
        self._seen: dict[tuple[str, str], NewestElsewhere] = {}

    def __len__(self) -> int:
        return len(self._watching)

    def add(self, session_id: str, user_id: str, on_turn: OnTurn) -> Callable[[], None]:
        """Call `on_turn` from now on, until what is returned is called."""
        key = (session_id, user_id)
        watching = self._watching.setdefault(key, [])
        watching.append(on_turn)
        self._seen.pop(key, None)  # it is called also with what others have heard already

        def stop() -> None:
            if on_turn in watching:
                watching.remove(on_turn)
            if not watching and self._watching.get(key) is watching:
                del self._watching[key]
                self._seen.pop(key, None)

        return stop

    def notify(self, session_id: str, user_id: str, exchange_id: str | None, next_rank: int = 0) -> None:
        """Tell who watches the session."""
        for on_turn in tuple(self._watching.get((session_id, user_id), ())):
            on_turn(exchange_id, next_rank)

    async def look_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Ask once, for all watched sessions, what other instances run and have run. Raises `HistoryUnavailable`."""
        if not self._watching:
            return
        for newest in await elsewhere.newest(list(self._watching)):
            key = (newest.session_id, newest.user_id)
            if key not in self._watching or self._seen.get(key) == newest:
                continue
            self._seen[key] = newest
            self.notify(*key, newest.exchange_id, newest.next_rank)

    async def follow(self, elsewhere: Elsewhere) -> None:
        """Do that once a second until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            with suppress(HistoryUnavailable):
                await self.look_elsewhere(elsewhere)
