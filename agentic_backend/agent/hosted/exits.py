"""Keeps what would end the program, such as `sys.exit()` in a node or in a tool, within its turn."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from agentic_backend.agent.hosted.current import CURRENT


class ProgramEnded(RuntimeError):
    """A graph's code raised SystemExit or KeyboardInterrupt."""


def contain_exits(loop: asyncio.AbstractEventLoop) -> None:
    """Have tasks of hosted turns fail where they would end the program. Asyncio lets these two exceptions through: the
    loop ends, and every turn of the process with it. Further calls do nothing."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_task)


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> "asyncio.Task[Any]":
    return asyncio.Task(coroutine if CURRENT.get() is None else _Contained(coroutine), loop=loop, **more)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine, but for how it ends."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as ending:
            raise ProgramEnded(type(ending).__name__) from ending

    def throw(self, *error: Any) -> Any:
        try:
            return self._inner.throw(*error)
        except (SystemExit, KeyboardInterrupt) as ending:
            raise ProgramEnded(type(ending).__name__) from ending

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:  # its frames, for who looks at tasks
        return getattr(self._inner, name)
