"""The only module that creates tasks: each has a name, an owner, a log line when it fails, and an end."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from backend_kit.aio.vigil import Vigil, Watched

logger = logging.getLogger(__name__)


class StrayCancellation(Exception):
    """A task was ended by a cancellation that was not meant for it: it awaited something that was cancelled."""


class TaskRegistry:
    """Holds every background task of a process until it has ended.

    A task that fails is logged with its traceback and counted by its kind; one that was spawned with `restart` is
    started again with back-off. `vigil` knows which of the essential ones are down. `aclose` cancels what is left and
    waits.
    """

    def __init__(self, vigil: Vigil | None = None) -> None:
        self.vigil = vigil or Vigil()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def failures(self) -> Counter[str]:
        """How often tasks and threads have failed, by kind."""
        return self.vigil.failures

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def names(self) -> list[str]:
        """Names of the tasks that run now."""
        return sorted(task.get_name() for task in self._tasks)

    def spawn(
        self,
        name: str,
        start: Callable[[], Coroutine[Any, Any, None]],
        *,
        restart: bool = False,
        essential: bool = False,
    ) -> asyncio.Task[None]:
        """Run `start()` as a task of this registry. Raises RuntimeError while the registry is closing.

        `start` is called again for each restart, so it must return a new coroutine each time. An `essential` task must
        not return on its own: the service is not ready while it is down.
        """
        if self._closing:
            raise RuntimeError(f"task {name!r} spawned while the registry is closing")
        watched = self.vigil.watch(name, essential=essential)
        task = asyncio.get_running_loop().create_task(self._keep(watched, start, restart), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep(self, watched: Watched, start: Callable[[], Coroutine[Any, Any, None]], restart: bool) -> None:
        while True:
            with watched.attempt():
                await self._once(start)
            if watched.over or not restart or self._closing:
                watched.over = True
                return
            await asyncio.sleep(watched.delay_s)

    async def _once(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await start()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closing or task is None or task.cancelling():
                raise
            # Otherwise it would end silently, like a task that its owner cancelled.
            raise StrayCancellation from None

    async def aclose(self, deadline_s: float = 5.0) -> int:
        """Cancel what still runs and wait for it, at most `deadline_s`. Returns how many did not end in time."""
        self._closing = True
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if not running:
            return 0
        _, pending = await asyncio.wait(running, timeout=deadline_s)
        for task in pending:
            logger.error("task %s did not end within %.1f s", task.get_name(), deadline_s)
        return len(pending)
