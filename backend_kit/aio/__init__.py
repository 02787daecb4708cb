"""Background tasks that are named, watched and drained; retries; and a circuit breaker."""

from backend_kit.aio.retry import Breaker
from backend_kit.aio.tasks import TaskRegistry
from backend_kit.aio.vigil import Vigil, WatchedThread

__all__ = ["Breaker", "TaskRegistry", "Vigil", "WatchedThread"]
