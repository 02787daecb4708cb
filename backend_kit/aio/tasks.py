"""The one place where tasks are made: each has a name, an owner, a log line when it dies, and an end."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0


class TaskRegistry:
    """Holds every background task of a process until it has ended.

    A task that fails is logged with its traceback and counted in `failures`; one that was spawned with `restart`
    is started again with back-off (0.1 s doubling to 5 s, with jitter). `aclose` cancels what is left and waits.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.failures: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def names(self) -> list[str]:
        """Names of the tasks that run now."""
        return sorted(task.get_name() for task in self._tasks)

    def spawn(
        self, name: str, start: Callable[[], Coroutine[Any, Any, None]], *, restart: bool = False
    ) -> asyncio.Task[None]:
        """Run `start()` as a task that this registry holds.

        `start` is called again for each restart, so it must make a new coroutine each time.
        """
        if self._closing:
            raise RuntimeError(f"task {name!r} spawned while the registry is closing")
        task = asyncio.get_running_loop().create_task(self._watch(name, start, restart), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watch(self, name: str, start: Callable[[], Coroutine[Any, Any, None]], restart: bool) -> None:
        delay = _FIRST_DELAY_S
        while True:
            try:
                await start()
            except Exception:  # the edge of every background task: whatever it is must be seen
                self.failures[name] += 1
                logger.exception("task %s failed", name)
            else:
                return
            if not restart or self._closing:
                return
            self.restarts[name] += 1
            # Jitter spreads tasks that died of the same cause.
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - not for secrets
            delay = min(delay * 2, _MAX_DELAY_S)

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
