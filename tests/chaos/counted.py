"""The agentic service as it is run, which writes a line with its number of asyncio tasks at each SIGUSR1."""

import asyncio
import signal
import sys
from types import FrameType

from agentic_backend.__main__ import main


def count_tasks(_signal: int, _frame: FrameType | None) -> None:
    """The handler: it runs in the loop's thread, between two of its callbacks."""
    sys.stderr.write(f"tasks={len(asyncio.all_tasks())}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, count_tasks)
    sys.exit(main())
