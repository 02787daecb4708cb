"""A Python that has imported the libraries of the services, and forks into one of them.

`python -m agentic_backend` spends seconds of CPU on imports before it does anything, and the tests start hundreds of
services. Only libraries are imported ahead: each service runs its own code from the first line, with its own
arguments, environment, directory, output and session. What an interpreter or a library reads only at its start cannot
be given to a fork: `needs_own_interpreter` tells.

Benches start services as users do, and so does chaos wherever a start is judged, and in its full form.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend_kit.parent_death import _set_parent_death_signal, with_parent_death_signal

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    "aiohttp",
    "alembic.migration",
    "fastapi",
    "fastapi.openapi.utils",
    "langchain_core.tracers.event_stream",
    "langchain_openai",
    "langgraph.checkpoint.postgres.aio",
    "langgraph.checkpoint.serde.jsonplus",
    "langgraph.graph.state",
    "markdown_it",
    "mcp.client.streamable_http",
    "mcp.server.mcpserver",
    "openai.resources.chat",
    "opensearchpy",
    "prometheus_client",
    "psycopg_pool",
    "pypdf",
    "rich.progress",
    "selectolax.lexbor",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.ext.asyncio",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvloop",
)
"""What takes long to import, but for what starts threads (NumPy, ONNX): a fork copies only the thread that forks."""
TEST_LIBRARIES = (
    "hypothesis",
    "jsonschema",
    "pytest",
    "pytest_asyncio.plugin",
    "websockets.asyncio.client",
    "xdist.plugin",
)
"""What takes long to import in a run of tests beside these."""
_AT_START = ("FAKETIME", "GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "SSL_", "TZ")
"""How the names of variables begin that are read when a process or an imported library starts, and never again."""
_OURS = {"backend_kit", "tests"}
"""What of ours the server itself imports: what it becomes imports its own, from where it runs."""
_READ_BY_LIBRARIES = {"LANGGRAPH_STRICT_MSGPACK": "true"}
"""What the services set before they import the library that reads it, which has been imported here."""
FORK_EVENT = "turnwise.tests.fork"
"""The audit event of a start, with the module; the interpreter knows only those of its own."""
_NUMBER = struct.Struct("!i")
_LARGEST = 1 << 17


def needs_own_interpreter(env: Mapping[str, str]) -> bool:
    """Whether one of the variables is read only when an interpreter starts."""
    return any(name.startswith(_AT_START) for name in env)


class Fork:
    """A process that the fork server became, with what `ModuleProcess` uses of a `subprocess.Popen`."""

    def __init__(self, output: int, told: int) -> None:
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._ended = threading.Event()
        self._told = os.fdopen(told, "rb", buffering=0)
        pid = self._told.read(_NUMBER.size)
        if not pid:
            self.stdout.close()
            self._told.close()
            raise RuntimeError("the fork server has ended; its last words are on stderr")
        self.pid: int = _NUMBER.unpack(pid)[0]
        threading.Thread(target=self._await_end, name=f"fork {self.pid}", daemon=True).start()

    def poll(self) -> int | None:
        """The exit code, negative where a signal ended it; None while it runs."""
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        self._ended.wait(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
        return self.returncode

    def send_signal(self, what: int) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, what)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _await_end(self) -> None:
        with self._told:
            code = self._told.read(_NUMBER.size)
        # A server that was killed tells nothing; what it had become was killed with it.
        self.returncode = _NUMBER.unpack(code)[0] if code else -signal.SIGKILL
        self._ended.set()


class ForkServer:
    """The server, of which there is one for each process of tests. It is started when first needed, by the thread that
    calls, and ends with that. `more` are modules that it imports beside `LIBRARIES`."""

    def __init__(self, *more: str) -> None:
        self._more = more
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, None before it was needed."""
        return None if self._process is None else self._process.pid

    def start(self, module: str, arguments: list[str], env: Mapping[str, str], cwd: Path) -> Fork:
        """Run `python -m module arguments…` in a session of its own."""
        sys.audit(FORK_EVENT, module)
        request = {"module": module, "arguments": arguments, "env": dict(env), "cwd": str(cwd)}
        output, output_end = os.pipe()
        told, told_end = os.pipe()
        try:
            # Where the server has ended since we looked, nobody has the other ends: the fork is told to be none.
            with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._running(), [json.dumps(request).encode()], [output_end, told_end])
        finally:
            os.close(output_end)
            os.close(told_end)
        return Fork(output, told)

    def stop(self) -> None:
        """End it, and whatever it has become."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
        self._socket = self._process = None

    def _running(self) -> socket.socket:
        if self._socket is None or self._process is None or self._process.poll() is not None:
            self.stop()
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", __name__, str(theirs.fileno()), *self._more]
                self._process = subprocess.Popen(
                    with_parent_death_signal(command, signal.SIGKILL),
                    cwd=ROOT,
                    env={**os.environ, **_READ_BY_LIBRARIES, "PYTHONUNBUFFERED": "1"},  # as `ModuleProcess` gives it
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        return self._socket


FORKS = ForkServer()


class _Server:
    """Answers requests until the socket is closed."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._children: dict[int, int] = {}
        """Where to tell of the end of each."""

    def serve(self) -> dict[str, Any] | None:
        """What to become, in each process that is to become something; None at the end, in the first."""
        signal.set_wakeup_fd(self._woken.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._requests, self._wake], [], [])
            if self._wake in ready:
                self._wake.recv(4096)
                self._reap()
            if self._requests in ready:
                told, descriptors, _, _ = socket.recv_fds(self._requests, _LARGEST, 2)
                if not told:
                    return None
                if self._fork(*descriptors):
                    return dict(json.loads(told))

    def _fork(self, output: int, told: int) -> bool:
        """Whether this is the child."""
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave(server, output, told)
            return True
        os.close(output)
        os.write(told, _NUMBER.pack(pid))
        self._children[pid] = told
        return False

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            told = self._children.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(told, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)

    def _leave(self, server: int, output: int, told: int) -> None:
        """Be as a program that was just started, with a parent-death signal from the server."""
        os.setsid()
        _set_parent_death_signal(server, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        for end in (self._requests, self._wake, self._woken):
            end.close()
        for descriptor in (output, told, *self._children.values()):
            os.close(descriptor)


def main() -> None:
    """Import, serve, and become what is asked for."""
    gc.disable()
    for library in (*LIBRARIES, *sys.argv[2:]):
        importlib.import_module(library)
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1:
        sys.exit(f"the import of a library started {threads - 1} threads: fork without it")
    gc.freeze()
    gc.enable()
    what = _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if what is None:
        return
    os.environ.clear()
    os.environ.update(what["env"])
    os.chdir(what["cwd"])
    sys.path[0] = what["cwd"]
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    sys.argv[1:] = what["arguments"]
    runpy.run_module(what["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
