"""Several processes that serve one port: started, restarted when one dies, ended together.

Each worker listens for itself with SO_REUSEPORT, so the kernel spreads connections by their addresses (63:87 to 75:75
of 150; docs/libraries.md#a-shared-listening-socket: 49:101), and the connections of a dead one are refused at once
instead of waiting for its successor.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from backend_kit.aio import Vigil, WatchedThread
from backend_kit.http import CannotListen, hold_back_unsent, listen
from backend_kit.settings import App

logger = logging.getLogger(__name__)

EXIT_REFUSED = 2
"""A worker's exit code for a configuration or a port that it cannot use."""
EXIT_NOT_STARTED = 3
"""uvicorn's exit code for a failed lifespan, for instance where the metrics port is taken. A restart helps after
neither."""
GIVE_UP_AFTER = 5
"""Deaths in a row, each within QUICK_S of its start, after which a worker is left out while others serve; so is one
whose restart is refused. Without another one that serves, and where its first start is refused, the service ends."""
QUICK_S = 10.0
LEFT_OUT_S = 60.0
"""After which one that was left out is tried again."""
_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 5.0

Command = Callable[[int, int], Sequence[str]]
"""The command line of worker N (from 0), given the descriptor of its lifeline."""


def serve_workers(module: str, app: App, *, kill_after_s: float, more: Sequence[str] = ()) -> int:
    """Run `python -m module --worker N --lifeline DESCRIPTOR` for each worker of `app` until a signal ends them; the
    exit code of `supervise_workers`.

    `more` are further arguments; `kill_after_s` is how long a worker may take to end. Raises `CannotListen`.
    """

    def command(number: int, lifeline: int) -> list[str]:
        return [sys.executable, "-m", module, "--worker", str(number), "--lifeline", str(lifeline), *more]

    async def run() -> int:
        return await Workers(app.workers, command, kill_after_s=kill_after_s).supervise_workers()

    with hold_port(app.address, app.port):
        return asyncio.run(run())


class Workers:
    """N processes of one command. They end with this one, however it ends: each watches a pipe that closes then."""

    def __init__(
        self,
        count: int,
        command: Command,
        *,
        kill_after_s: float,
        left_out_s: float = LEFT_OUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kill_after_s`: how long a worker may take to end after SIGTERM. `clock`, in seconds, tells how long each has
        lived."""
        self._left_out_s = left_out_s
        self._clock = clock
        self._count = count
        self._command = command
        self._kill_after_s = kill_after_s
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._began: dict[int, float] = {}
        self._stopping = asyncio.Event()
        self._code = 0

    async def supervise_workers(self) -> int:
        """Supervise until SIGTERM, SIGINT or SIGHUP. Returns the exit code: where no worker was left that serves that
        of one that could not start, or 1; 1 where one was cut short."""
        loop = asyncio.get_running_loop()
        for what in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if what is not signal.SIGHUP or signal.getsignal(what) is signal.SIG_DFL:  # nohup has it ignored
                loop.add_signal_handler(what, self._on_signal, what)
        lifeline, held = os.pipe()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._count):
                    tasks.create_task(self._keep(number, lifeline), name=f"worker {number}")
        finally:
            os.close(lifeline)
            os.close(held)
        return self._code

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [process.pid for process in self._processes.values()]

    def stop(self, code: int = 0) -> None:
        """End every worker in order."""
        self._code = self._code or code
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def _on_signal(self, what: signal.Signals) -> None:
        logger.info("%s: ending %d workers", what.name, len(self._processes))
        # A second signal reaches them too: they cut short what they are doing.
        self.stop()

    def _signal(self, what: signal.Signals) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(what)

    async def _keep(self, number: int, lifeline: int) -> None:
        """Run one worker, and restart it, until the end."""
        quick, delay, first = 0, _FIRST_DELAY_S, True
        while not self._stopping.is_set():
            self._began[number] = self._clock()
            code = await self._run_once(number, lifeline)
            if self._stopping.is_set():
                self._code = self._code or (1 if code else 0)
                return
            lived = self._lived_s(number)
            quick, delay = (quick + 1, delay) if lived < QUICK_S else (1, _FIRST_DELAY_S)
            logger.error("worker %d ended by itself with code %d after %.1f s", number, code, lived)
            hopeless = code in (EXIT_REFUSED, EXIT_NOT_STARTED)
            at_the_start, first = first, False
            if hopeless or quick >= GIVE_UP_AFTER:
                # A failure at the start of the service is passed on to the process that started it.
                if (hopeless and at_the_start) or not self._another_serves(number):
                    self.stop(code if hopeless else 1)
                    return
                logger.critical("ALARM worker %d does not start: it is left out for %g s", number, self._left_out_s)
                await self._pause(self._left_out_s)
                continue
            await self._pause(delay)
            delay = min(delay * 2, _MAX_DELAY_S)

    def _lived_s(self, number: int) -> float:
        return self._clock() - self._began[number]

    def _another_serves(self, number: int) -> bool:
        return any(self._lived_s(other) >= QUICK_S for other in self._processes if other != number)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _run_once(self, number: int, lifeline: int) -> int:
        # A session of its own: Ctrl-C in the terminal comes to us, and from us to the workers, once.
        process = await asyncio.create_subprocess_exec(
            *self._command(number, lifeline), pass_fds=(lifeline,), start_new_session=True
        )
        self._processes[number] = process
        if self._stopping.is_set():  # the signal came while it was being started
            process.terminate()
        try:
            return await self._wait(process)
        finally:
            if process.returncode is None:
                process.kill()
            del self._processes[number]

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        async with asyncio.TaskGroup() as tasks:
            patience = tasks.create_task(self._lose_patience(process))
            code = await process.wait()
            patience.cancel()
        return code

    async def _lose_patience(self, process: asyncio.subprocess.Process) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._kill_after_s)
        logger.error("a worker (pid %d) did not end within %.0f s: killing it", process.pid, self._kill_after_s)
        process.kill()


def hold_port(host: str, port: int) -> socket.socket:
    """Make sure that nobody listens there, and keep the port for workers. Raises `CannotListen`.

    Close the socket that comes back when they have ended; it is bound and never listens.
    """
    listen(host, port).close()
    return _bound(host, port)


def bind_beside_others(host: str, port: int) -> socket.socket:
    """A worker's own socket on a port that other workers listen on too. Raises `CannotListen`.

    The server has it listen once the application has started: until then connections go to those that can answer.
    """
    sock = _bound(host, port)
    hold_back_unsent(sock)
    sock.setblocking(False)
    return sock


def end_with(lifeline: int) -> None:
    """End this process as SIGTERM does once the supervisor is gone, however it ended."""

    def watch() -> None:
        os.read(lifeline, 1)  # nothing is ever written: it returns at the end of the pipe
        os.kill(os.getpid(), signal.SIGTERM)

    WatchedThread(Vigil(), "lifeline", watch).start()


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
    return sock
