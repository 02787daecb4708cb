"""The parsing children: a few processes that live long, are killed at their deadline, and are replaced."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import knowledge_flow_backend
from backend_kit.aio import FairGate, GateRules
from backend_kit.wire import InvalidJson, dumps, loads
from knowledge_flow_backend.concurrency import UNBOUNDED
from knowledge_flow_backend.ingest.work import Job
from knowledge_flow_backend.ingest.worker import EXIT_OUT_OF_MEMORY
from knowledge_flow_backend.library.reasons import Reason, Refused

logger = logging.getLogger(__name__)

CHECKOUT = Path(knowledge_flow_backend.__file__).parents[1]
WORKER = (sys.executable, "-B", "-m", "knowledge_flow_backend.ingest.worker")
_MIB = 1024 * 1024
FILES_A_CHILD = 500
"""Files after which a child is replaced, so that a parser's leaks stay small."""


@dataclass(frozen=True, slots=True)
class ParserPoolRules:
    """How many children, and what one may use for a file: memory in MB; `base_s` seconds and `s_per_mb` more for each
    MiB, at most `timeout_s`. `reserve` and `cpu_budget_s`: see `GateRules`."""

    workers: int
    memory_mb: int
    timeout_s: float
    base_s: float = 10.0
    s_per_mb: float = 30.0
    cpu_budget_s: float = 60.0
    reserve: int = 0

    def limit_s(self, size: int) -> float:
        """Seconds that a file of `size` bytes may take."""
        return min(self.timeout_s, self.base_s + self.s_per_mb * size / _MIB)


@dataclass(frozen=True, slots=True)
class Outline:
    """What the child found: the text and the chunks are in the job's files. `chars` is the length of the whole text,
    in code points, also where only its beginning is in the file; `cut` says what of the file is in no text, or ""."""

    title: str
    chars: int
    pages: int | None
    chunks: int
    cut: str = ""


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """An image that the child has re-encoded into the job's `content`: its media type, and its size in pixels."""

    mime: str
    width: int
    height: int


@dataclass(slots=True)
class ParserPoolStats:
    """Since start: files read, files refused, children started, killed at the deadline, died on their own; seconds
    that files waited for a child, and CPU that children used."""

    files: int = 0
    refused: int = 0
    started: int = 0
    killed: int = 0
    died: int = 0
    waited_s: float = 0.0
    cpu_s: float = 0.0


class ParserPool:
    """Reads files in children, at most `rules.workers` at once; further ones wait, users in turn.

    `rules.reserve` are kept for users who have none: whatever the others' files do, a file of a user who has sent
    nothing else is begun at once. Users who took more CPU lately than the budget go behind all others.

    Children start with the first file, all at once, so that the one that is kept is ready. `command` is the program of
    a child; the two limits are appended to it.
    """

    def __init__(self, rules: ParserPoolRules, *, command: Sequence[str] = WORKER) -> None:
        self._rules = rules
        self._command = command
        self.gate = FairGate(
            GateRules(
                rules.workers,
                reserve=rules.reserve,
                waiting=UNBOUNDED,
                waiting_per_user=UNBOUNDED,
                budget_s=rules.cpu_budget_s,
            )
        )
        self._children = 0
        self._idle: list[_Child] = []
        self._closed = False
        self.stats = ParserPoolStats()

    async def read(self, job: Job, user_id: str, size: int) -> Outline:
        """Read one file of a user's, of `size` bytes. Raises `Refused` with its reason; a cancelled caller's child is
        killed."""
        return Outline(**await self._answer(job, user_id, size))

    async def redraw(self, job: Job, user_id: str, size: int) -> DrawnImage:
        """The same for an image. Raises as `read`."""
        return DrawnImage(**await self._answer(job, user_id, size))

    async def _answer(self, job: Job, user_id: str, size: int) -> dict[str, Any]:
        began = perf_counter()
        async with self.gate.place(user_id) as place:
            entered = perf_counter()
            self.stats.waited_s += entered - began
            answer: dict[str, Any] = {}
            try:
                answer = await self._ask(job, self._rules.limit_s(size))
            finally:
                # Who was killed, or died, is taken to have computed all the time.
                place.used_s = answer.pop("cpu_s", perf_counter() - entered)
                self.stats.cpu_s += place.used_s
        self.stats.files += 1
        if "refused" in answer:
            self.stats.refused += 1
            raise Refused(Reason(answer["refused"]))
        return answer

    async def aclose(self) -> None:
        """End the idle children. Files that are being read belong to tasks that have been cancelled before."""
        self._closed = True
        while self._idle:
            await self._idle.pop().end()

    async def _ask(self, job: Job, limit_s: float) -> dict[str, Any]:
        child = await self._child()
        keep = False
        try:
            async with asyncio.timeout(limit_s):
                answer = await child.ask(job)
            keep = child.asked < FILES_A_CHILD and not self._closed
        except TimeoutError:
            self.stats.killed += 1
            raise Refused(Reason.TIMED_OUT) from None
        except _Died as death:
            self.stats.died += 1
            logger.warning("a parsing child ended with code %s while it read a file", death.code)
            raise Refused(death.reason) from None
        finally:
            if keep:
                self._idle.append(child)
            else:
                await self._drop(child)
        return answer

    async def _child(self) -> "_Child":
        """An idle child, or a new one. One that died while it was idle says nothing of the next file."""
        for child in [child for child in self._idle if not child.alive]:
            self._idle.remove(child)
            await self._drop(child)
        # Also those that nobody needs yet: they load their libraries meanwhile.
        while self._children < self._rules.workers:
            self._idle.insert(0, await self._start())
        return self._idle.pop() if self._idle else await self._start()

    async def _drop(self, child: "_Child") -> None:
        self._children -= 1
        await child.kill()

    async def _start(self) -> "_Child":
        self.stats.started += 1
        self._children += 1
        # Not our environment: it holds the keys of models and databases.
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(CHECKOUT), "LANG": "C.UTF-8"}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(self._rules.memory_mb),
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                cwd=CHECKOUT,
            )
        except BaseException:
            self._children -= 1
            raise
        return _Child(process)


class _Died(Exception):
    """The child ended without an answer."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code
        # The kernel's out-of-memory killer sends SIGKILL; our own kill does not come this way.
        memory = code in (EXIT_OUT_OF_MEMORY, -signal.SIGKILL)
        self.reason = Reason.OUT_OF_MEMORY if memory else Reason.PARSER_DIED


class _Child:
    """One process and the line protocol to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.asked = 0

    @property
    def alive(self) -> bool:
        """Whether it has not been seen to end."""
        return self._process.returncode is None

    async def ask(self, job: Job) -> dict[str, Any]:
        """Send a job and wait for its answer. Raises `_Died`."""
        self.asked += 1
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(ConnectionError):  # it has died: the end of its output says so
            stdin.write(dumps(asdict(job)) + b"\n")
            await stdin.drain()
        try:
            line = await stdout.readline()
        except ValueError:  # longer than any answer is
            raise _Died(None) from None
        if not line.endswith(b"\n"):
            raise _Died(await self._process.wait())
        try:
            answer = loads(line)
        except InvalidJson:
            raise _Died(None) from None
        if not isinstance(answer, dict):
            raise _Died(None)
        return answer

    async def end(self) -> None:
        """Tell an idle child to end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(2.0):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it now, whatever it does, and wait for its end; the wait is for the kernel only."""
        with suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
