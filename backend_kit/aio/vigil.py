"""The health of the tasks and threads that a process runs for its whole life."""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as PrometheusCounter

logger = logging.getLogger(__name__)

HEALTHY_S: Final = 30.0
"""After this many seconds without a failure, earlier ones no longer count."""
DOWN_AFTER: Final = 3
"""After this many consecutive failures it is down: a single brief one must not take an instance out of service."""
_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 5.0


def kind_of(name: str) -> str:
    """The kind of a task: its name without the part that identifies the instance, an id after a colon or a library's
    number (`turn:…`, `Task-17`)."""
    return name.partition(":")[0].rstrip("-0123456789")


class Vigil:
    """Counts the failures of a process' tasks and threads, and knows which of the essential ones are down.

    `clock` is monotonic, in seconds. Without a registry nothing is published.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        registry = registry or CollectorRegistry()
        # By kind: names are those of this program, and a turn's id is no part of it.
        self.counted = PrometheusCounter(
            "app_task_failures_total", "Failures by kind of task or thread.", ["task"], registry=registry
        )
        self.threads = Gauge("app_thread_up", "1 while a thread does its work.", ["thread"], registry=registry)
        self.failures: Counter[str] = Counter()
        self.clock = clock
        self._essential: dict[str, Watched] = {}

    @property
    def down(self) -> list[str]:
        """The essential tasks and threads that are down: meanwhile the instance should get no new work."""
        return sorted(kind for kind, watched in self._essential.items() if watched.down)

    def watch(self, name: str, *, essential: bool = False) -> "Watched":
        """Watch a new task or thread. The name of an essential one must be unique."""
        watched = Watched(name, self)
        if essential:
            self._essential[watched.kind] = watched
        return watched


class Watched:
    """One task or thread. It is `over` if it has stopped and will not restart, `dismissed` if its owner stopped it."""

    def __init__(self, name: str, vigil: Vigil) -> None:
        self.kind = kind_of(name)
        self.running = self.over = self.dismissed = False
        self._name = name
        self._clock = vigil.clock
        self._failures = vigil.failures
        self._counted = vigil.counted.labels(self.kind)
        self._in_a_row = 0
        self._since = 0.0

    @property
    def down(self) -> bool:
        """Whether it is over, or fails repeatedly."""
        if self.dismissed:
            return False
        return self.over or (self._in_a_row >= DOWN_AFTER and not (self.running and self._is_healthy()))

    @property
    def delay_s(self) -> float:
        """Seconds until the next attempt: 0.1, doubling to 5. Jitter spreads the restarts after a common failure."""
        longest = min(_FIRST_DELAY_S * 2.0 ** min(self._in_a_row - 1, 10), _MAX_DELAY_S)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Wrap one run of it; a failure is caught here, counted, and logged with its traceback."""
        self._since, self.running = self._clock(), True
        try:
            yield
            self.over = True
        except Exception:  # the edge of every background task and thread: any failure must be logged
            self._in_a_row = 1 if self._is_healthy() else self._in_a_row + 1
            self._failures[self.kind] += 1
            self._counted.inc()
            logger.exception("task %s failed", self._name)
        finally:
            self.running = False

    def _is_healthy(self) -> bool:
        return self._clock() - self._since >= HEALTHY_S


class WatchedThread:
    """A daemon thread that calls `run`, again after each failure, until it returns.

    `app_thread_up` shows whether it runs. The process is not ready without an `essential` one.
    """

    def __init__(self, vigil: Vigil, name: str, run: Callable[[], None], *, essential: bool = False) -> None:
        self._run = run
        self._watched = vigil.watch(name, essential=essential)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
        vigil.threads.labels(name).set_function(lambda: float(self.up))

    @property
    def up(self) -> bool:
        """Whether it is working now."""
        return self._watched.running

    @property
    def alive(self) -> bool:
        """Whether it has started and not ended; True also while it waits for its next attempt."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._watched.running = True
        self._thread.start()

    def end(self, timeout_s: float | None) -> None:
        """Wait until it has ended, as its owner must have requested before; it will not restart."""
        self._watched.dismissed = True
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _keep(self) -> None:
        while not self._watched.over:
            with self._watched.attempt():
                self._run()
            if not self._watched.over and self._ending.wait(self._watched.delay_s):
                return
