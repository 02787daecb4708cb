"""An MCP server that is a program of the operator's: started, spoken to over its pipes, and ended.

Not the SDK's own transport: that reads a line of any length, tells nobody when the program ends, and writes what it
says to our stderr.
"""

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agentic_backend.settings import McpServer
from backend_kit.aio.retry import Backoff
from backend_kit.http.redact import redact
from backend_kit.parent_death import with_parent_death_signal

logger = logging.getLogger(__name__)

_INHERITED: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_MAX_LINE_BYTES: Final = 1024 * 1024
_MAX_LOGGED_CHARS: Final = 2000
_SHORTEST_SECRET: Final = 4
"""A shorter value would hide words that say nothing, such as `1` or `en`."""
_CLOSED_S: Final = 1.0
_TERMINATED_S: Final = 1.0
_HEALTHY_S: Final = 30.0
_FIRST_S: Final = 0.5
_LONGEST_S: Final = 30.0

Read = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class TooSoon(OSError):
    """The program has ended a moment ago."""


class McpProgram:
    """The program of one server; `running` starts it."""

    def __init__(self, config: McpServer, *, environ: Mapping[str, str] | None = None) -> None:
        """`environ`: the variables of the service, which has each of `env_from`."""
        service = os.environ if environ is None else environ
        given = {name: service[name] for name in config.env_from}
        kept = {name: service[name] for name in _INHERITED if name in service}
        self._config = config
        self._environment = {**kept, **config.env, **given}
        hidden = {value for value in (*config.env.values(), *given.values()) if len(value) >= _SHORTEST_SECRET}
        # Longer ones first: one may be part of another.
        self._secrets = sorted(hidden, key=len, reverse=True)
        self._backoff = Backoff(_FIRST_S, _LONGEST_S, jitter=0.0)
        self._not_before = float("-inf")

    @asynccontextmanager
    async def running(self, on_end: Callable[[], None]) -> AsyncIterator[Streams]:
        """Start it, and end it with the block; a transport as the SDK's client takes it. Raises OSError.

        `on_end` is called if the program exits on its own. `TooSoon` is raised within the wait after its last exit: 0.5
        s, doubling to 30 s, and 0.5 s again for one that has run for 30 s.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            raise TooSoon
        began = loop.time()
        try:
            process = await self._start()
            to_session, from_program = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            to_program, from_session = anyio.create_memory_object_stream[SessionMessage](0)
            async with asyncio.TaskGroup() as group, to_session, from_program, to_program, from_session:
                pipes = [
                    group.create_task(self._read(process, to_session, on_end), name=f"mcp-read:{self._config.id}"),
                    group.create_task(_write(process, from_session), name=f"mcp-write:{self._config.id}"),
                    group.create_task(self._log(process), name=f"mcp-stderr:{self._config.id}"),
                ]
                try:
                    yield from_program, to_program
                finally:
                    await _stop(process)
                    for pipe in pipes:
                        pipe.cancel()
        finally:
            if loop.time() - began >= _HEALTHY_S:
                self._backoff.reset()
            self._not_before = loop.time() + self._backoff.next_s()

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *with_parent_death_signal(self._command(), signal.SIGKILL),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._environment,
            cwd=self._config.cwd,
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )

    def _command(self) -> list[str]:
        command = self._config.command
        assert command is not None  # the settings require it
        program = shutil.which(command, path=self._environment.get("PATH"))
        if program is None:
            raise FileNotFoundError(2, "no such program")
        return [str(Path(program).absolute()), *self._config.args]

    async def _read(self, process: Process, session: Read, on_end: Callable[[], None]) -> None:
        """Hand its lines to the session until it ends, or writes one that is too long."""
        assert process.stdout is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with session:
                # ValueError: a line is too long.
                with suppress(ValueError, ConnectionError):
                    while line := await process.stdout.readline():
                        await session.send(_message(line))
        on_end()
        # What it still writes is discarded, or it could not end.
        while await process.stdout.read(_MAX_LINE_BYTES):
            pass

    async def _log(self, process: Process) -> None:
        """Log what it writes to stderr, without the values that it was given."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                continue  # a line that is too long has been dropped
            if not line:
                return
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("mcp server %s: %s", self._config.id, self._shown(line.decode(errors="replace")))

    def _shown(self, line: str) -> str:
        for secret in self._secrets:
            line = line.replace(secret, "***")
        # On one line, whatever it holds.
        return redact(ascii(line.rstrip())[1:-1], _MAX_LOGGED_CHARS)


def _message(line: bytes) -> SessionMessage | Exception:
    """A message as the session takes it, or the failure to read it."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as failure:
        return failure


async def _write(process: Process, session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with suppress(anyio.ClosedResourceError, ConnectionError):
        async for said in session:
            process.stdin.write(said.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()


async def _stop(process: Process) -> None:
    """Close its input, as the protocol asks for; then SIGTERM and SIGKILL for it and what it has started."""
    assert process.stdin is not None
    with suppress(ConnectionError):
        process.stdin.close()
    for wait_s, stop_signal in ((_CLOSED_S, signal.SIGTERM), (_TERMINATED_S, signal.SIGKILL)):
        if await _ended(process, wait_s):
            break
        _signal(process, stop_signal)
    # What it has started leads no session of its own, unless it wanted to be left behind.
    _signal(process, signal.SIGKILL)
    await _ended(process, _TERMINATED_S)


async def _ended(process: Process, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        return process.returncode is not None
    return True


def _signal(process: Process, stop_signal: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, stop_signal)
