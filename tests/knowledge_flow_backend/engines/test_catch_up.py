"""How often an index looks for what another process left undone."""

import asyncio
import logging
from typing import cast

import pytest

from knowledge_flow_backend.engines.scheduling import CatchUp
from knowledge_flow_backend.index.database import IndexDatabase


class Ready:
    """A database that is there."""

    async def wait_ready(self) -> None:
        return


class Looks(CatchUp):
    """Finds something in the looks of these numbers; is woken in the waits of `woken`; ends with the tenth."""

    def __init__(self, found: set[int], woken: set[int]) -> None:
        super().__init__(cast(IndexDatabase, Ready()), logging.getLogger(__name__), "looks", wait=self._note)
        self.waits_s = list[float]()
        self._looks = 0
        self._found = found
        self._wakes = woken

    async def catch_up(self) -> bool:
        self._looks += 1
        return self._looks in self._found

    async def _note(self, _event: asyncio.Event, seconds: float) -> None:
        self.waits_s.append(seconds)
        if len(self.waits_s) in self._wakes:
            self.wake()
        if len(self.waits_s) == 10:
            raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("found", "woken", "waits_s"),
    [
        (set(), set(), [2, 4, 4, 4, 4, 4, 4, 4, 4, 4]),
        ({1, 5}, set(), [1, 2, 4, 4, 1, 2, 4, 4, 4, 4]),
        (set(), {4}, [2, 4, 4, 4, 1, 2, 4, 4, 4, 4]),
    ],
    ids=["nothing", "found", "written here"],
)
async def test_it_looks_less_often_while_there_is_nothing(
    found: set[int], woken: set[int], waits_s: list[float]
) -> None:
    looks = Looks(found, woken)
    with pytest.raises(asyncio.CancelledError):
        await looks.follow_writes()
    assert looks.waits_s == waits_s
