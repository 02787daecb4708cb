"""Background tasks that are named, watched and drained; retries; a circuit breaker; and who waits for what next."""

from backend_kit.aio.fair import Crowded, FairGate, GateRules, Pace
from backend_kit.aio.retry import Breaker
from backend_kit.aio.tasks import TaskRegistry
from backend_kit.aio.vigil import Vigil, WatchedThread

__all__ = ["Breaker", "Crowded", "FairGate", "GateRules", "Pace", "TaskRegistry", "Vigil", "WatchedThread"]
