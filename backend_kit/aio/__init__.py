"""Background work that is named, held, watched and drained; and calls that are not made to what is down."""

from backend_kit.aio.breaker import Breaker
from backend_kit.aio.tasks import TaskRegistry
from backend_kit.aio.vigil import Vigil, WatchedThread

__all__ = ["Breaker", "TaskRegistry", "Vigil", "WatchedThread"]
