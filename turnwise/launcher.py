"""The children of one start: in order, supervised, until they are to end."""

import asyncio
import os
import secrets
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from turnwise.console import Console
from turnwise.data import data_directory
from turnwise.errors import PostgresFailed, StartRefused
from turnwise.first_turn import FirstTurnFailed, first_turn, readiness
from turnwise.plan import Plan, Service
from turnwise.postgres import ENVIRONMENT, START_S, STOP_S, EmbeddedPostgres
from turnwise.samples import LIBRARY, Samples, SamplesFailed
from turnwise.status import show_status
from turnwise.supervise import Child, Program, stop_in_turn
from turnwise.tether import tethered

AGENTIC_STOP_S = 50.0  # turns 25, those cancelled 5, sockets 5, history 5, closing 5
KNOWLEDGE_STOP_S = 40.0  # uploads that run may take 25 s to end
POLL_S = 0.05
SLOW_S = 20.0
US = "turnwise"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one start is: `home` keeps its data, `cwd` is where its programs run, `log` takes what they write."""

    home: Path
    cwd: Path

    @property
    def log(self) -> Path:
        """The file that the programs' output goes to."""
        return self.home / "log" / "turnwise.log"


class Launcher:
    """The children of one start, in the order in which they start; they end in the opposite one."""

    def __init__(self, plan: Plan, place: Place, console: Console, *, samples: bool) -> None:
        self._plan = plan
        self._samples = samples
        self._place = place
        self._console = console
        self._environment = {**plan.environment, "PYTHONUNBUFFERED": "1", "TURNWISE_HOME": str(place.home)}
        # Beside the database that it belongs to.
        self._environment.setdefault("TURNWISE_SPOOL_DIR", str(place.home / "spool"))
        self._stop = asyncio.Event()
        self._refusal: str | None = None
        self.children: list[Child] = []

    async def run(self, *, try_a_turn: bool) -> str | None:
        """Start, supervise, and end on SIGINT, SIGTERM or SIGHUP, or where going on is of no use: why, in one line.

        A second signal kills what is left.
        """
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(16))  # a thread waits for each child
        for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(what, self._on_signal)
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(self._open(tasks, try_a_turn=try_a_turn))
            await self._stop.wait()
            opening.cancel()
            self._console.status("")
            await stop_in_turn(self.children)
        self._console.say(US, "everything has ended")
        return self._refusal

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._console.say(US, "killing what is left")
            for child in self.children:
                child.kill()
        else:
            self._console.say(US, "stopping; once more to kill")
            self._stop.set()

    async def _open(self, tasks: asyncio.TaskGroup, *, try_a_turn: bool) -> None:
        """Bring everything up in order, and show how it goes. What makes the start hopeless ends it with its reason."""
        try:
            await self._start_postgres(tasks)
            self._start_model(tasks)
            self._start_tools(tasks)
            if self._plan.knowledge_flow is not None:
                self._start_service(tasks, "knowledge", self._plan.knowledge_flow, stop_s=KNOWLEDGE_STOP_S)
            agentic = self._start_service(tasks, "agentic", self._plan.agentic, stop_s=AGENTIC_STOP_S)
            await self._await_ready()
            agentic.of_use = True
            if try_a_turn:
                await self._try_a_turn(agentic)
            self._announce()
            async with asyncio.TaskGroup() as beside:
                beside.create_task(show_status(self._console, self._plan.agentic, self._place.log))
                beside.create_task(self._ingest_samples())
        except StartRefused as refusal:
            self._refuse(str(refusal))

    async def _await_ready(self) -> None:
        """Wait for the agentic service, as long as it runs; what takes long is said, once."""
        slow_at = asyncio.get_running_loop().time() + SLOW_S
        while (status := await readiness(self._plan.agentic)) != "ready":
            if asyncio.get_running_loop().time() > slow_at:
                slow_at = float("inf")
                said = f"still waiting for the agentic service ({status or 'silent'}): see {self._place.log}"
                self._console.say(US, said)
            await asyncio.sleep(POLL_S)

    async def _try_a_turn(self, agentic: Child) -> None:
        """Raise `StartRefused` where the first turn fails, with what the service logged of it."""
        agentic.warnings.clear()
        try:
            await first_turn(self._plan.agentic)
        except FirstTurnFailed as failure:
            await asyncio.sleep(POLL_S)  # what it logged comes through a pipe
            elsewhere = self._environment.get("OPENAI_BASE_URL")
            where = [f"OPENAI_BASE_URL is {elsewhere}"] if elsewhere else []
            why = "; ".join(["not ready: the first turn failed", str(failure), *list(agentic.warnings)[:1], *where])
            raise StartRefused(f"{why} (--no-first-turn starts without one)") from None

    def _refuse(self, reason: str) -> None:
        """End the start, and say why when everything has ended: the last line is the one that is read."""
        if self._refusal is None:
            self._refusal = reason
        self._stop.set()

    def _announce(self) -> None:
        agentic = self._plan.agentic
        metrics = f"metrics {agentic.metrics_url}, " if agentic.metrics_url else ""
        self._console.announce(f"Turnwise is ready: {agentic.origin}  ({metrics}Ctrl-C stops)")

    async def _ingest_samples(self) -> None:
        """Give Rico something to read, once. A failure is said: everything else works without."""
        service = self._plan.knowledge_flow
        if service is None or not self._samples:
            return
        # The embedded database moves with the home, whatever its port.
        where = "embedded" if self._plan.postgres_port is not None else str(service.config)
        try:
            samples = Samples(
                data_directory(),
                self._place.home,
                service,
                scope=f"{where}/{self._plan.database}",
                tell=lambda text: self._console.say(US, text),
            )
            if samples.are_there():
                return
            self._console.say(US, f"sending {len(samples)} documents of ours to the library {LIBRARY}")
            said = await samples.ingest(self._environment)
        except (SamplesFailed, OSError) as failure:
            self._console.say(US, f"the library {LIBRARY} is not complete: {failure}; the next start tries again")
        else:
            self._console.say(US, f"the library {LIBRARY} is ready: {said}")

    async def _start_postgres(self, tasks: asyncio.TaskGroup) -> None:
        if self._plan.postgres_port is None:
            return
        password = _kept_password(self._place.home / "postgres-password")
        server = EmbeddedPostgres(
            self._place.home / "postgres", self._plan.postgres_port, password=password, database=self._plan.database
        )
        self._environment["FRED_POSTGRES_PASSWORD"] = password
        await asyncio.to_thread(server.prepare)  # a refusal here ends the start; later it is only said
        self._keep(
            tasks,
            Program(
                "postgres",
                server.command,
                ENVIRONMENT,
                server.directory,
                signal.SIGINT,
                stop_s=STOP_S,
                prepare=server.prepare,
            ),
        )
        postgres = self.children[-1]
        give_up = asyncio.get_running_loop().time() + START_S
        while not await asyncio.to_thread(server.is_ready):
            if asyncio.get_running_loop().time() > give_up:
                raise PostgresFailed(f"Postgres does not answer after {START_S:g} s: {self._place.log} may say why")
            await asyncio.sleep(POLL_S)
        postgres.of_use = True

    def _start_model(self, tasks: asyncio.TaskGroup) -> None:
        if self._plan.model_url is None:
            return
        address = ["--host", self._plan.model_host, "--port", str(self._plan.model_port)]
        self._keep(tasks, self._python("model", ["ws_bench", "mock-llm", *address], 10.0))

    def _start_tools(self, tasks: asyncio.TaskGroup) -> None:
        """What Sammy can do. Nobody waits for it: without it he says so."""
        if self._plan.tools_port is None:
            return
        arguments = ["--port", str(self._plan.tools_port), "--notes", str(self._place.home / "notes.json")]
        tools = self._keep(tasks, self._python("tools", ["turnwise.sample_tools", *arguments], 5.0))
        tools.of_use = True  # whatever it ends of: nothing else is to end with it

    def _start_service(self, tasks: asyncio.TaskGroup, name: str, service: Service, *, stop_s: float) -> Child:
        config = service.config
        if service.content is not None:
            config = self._place.home / "run" / f"{name}.yaml"
            config.parent.mkdir(exist_ok=True)
            config.touch(mode=0o600)
            config.write_text(yaml.safe_dump(dict(service.content), sort_keys=False), encoding="utf-8")
        return self._keep(tasks, self._python(name, [service.module], stop_s, CONFIG_FILE=str(config)))

    def _python(self, name: str, arguments: list[str], stop_s: float, **environment: str) -> Program:
        """`python -m arguments…` with the launcher's environment and more."""
        return Program(
            name,
            lambda: tethered([sys.executable, "-m", *arguments], signal.SIGTERM),
            {**self._environment, **environment},
            self._place.cwd,
            stop_s=stop_s,
        )

    def _keep(self, tasks: asyncio.TaskGroup, program: Program) -> Child:
        child = Child(program, self._console)
        self.children.append(child)
        tasks.create_task(self._supervised(child), name=f"child {program.name}")
        return child

    async def _supervised(self, child: Child) -> None:
        """Run the child. One that is of no use to start again ends everything, at once."""
        await child.run()
        if child.fault is not None:
            self._refuse(f"{child.name} cannot run: {child.fault}")


def _kept_password(path: Path) -> str:
    """The password of the embedded Postgres, made at the first start and readable by its owner alone.

    Without one every user of the machine could connect as superuser and run commands as the server's user.
    """
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(24))
        return path.read_text().strip()
    except OSError as error:
        raise StartRefused(f"cannot use {path}: {error.strerror}") from None
