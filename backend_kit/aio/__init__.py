"""Background work that is named, held, watched and drained."""

from backend_kit.aio.tasks import TaskRegistry

__all__ = ["TaskRegistry"]
