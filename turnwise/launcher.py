"""Starts the child processes of a local start in order, supervises them and stops them."""

import asyncio
import os
import secrets
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from backend_kit.parent_death import with_parent_death_signal
from turnwise.console import Console
from turnwise.errors import EXIT_UNUSABLE, PostgresFailed, StartRefused, Unusable
from turnwise.first_turn import FirstTurnFailed, first_turn, readiness
from turnwise.home import PASSWORD_FILE, resource_directory
from turnwise.plan import Plan, ServicePlan
from turnwise.postgres import ENVIRONMENT, START_S, STOP_S, EmbeddedPostgres
from turnwise.samples import LIBRARY, Samples, SamplesFailed
from turnwise.status import ProcessLog, show_status
from turnwise.supervise import Child, Program, stop_in_reverse

AGENTIC_STOP_S = 50.0  # turns 25, those cancelled 5, sockets 5, history 5, closing 5
KNOWLEDGE_STOP_S = 40.0  # uploads that run may take 25 s to end
POLL_S = 0.05
SLOW_S = 20.0
LAUNCHER = "turnwise"
SERVICES = frozenset({"agentic", "knowledge"})


@dataclass(frozen=True, slots=True)
class StartPaths:
    """Directories of one start: `home` for its data, `cwd` for its programs; `log` takes their output."""

    home: Path
    cwd: Path

    @property
    def log(self) -> Path:
        """The file for the programs' output."""
        return self.home / "log" / "turnwise.log"


def environment_of(plan: Plan, home: Path) -> dict[str, str]:
    """What the programs of a start are given, beside the password of an embedded Postgres."""
    # The spool belongs to the embedded database, so it lies beside it.
    return {"TURNWISE_SPOOL_DIR": str(home / "spool"), **plan.environment, "TURNWISE_HOME": str(home)}


class Launcher:
    """The child processes of one start, started in order and stopped in reverse."""

    def __init__(self, plan: Plan, paths: StartPaths, console: Console, *, samples: bool) -> None:
        self._plan = plan
        self._samples = samples
        self._paths = paths
        self._console = console
        self._environment = {**environment_of(plan, paths.home), "PYTHONUNBUFFERED": "1"}
        self._stop = asyncio.Event()
        self._refusal: StartRefused | None = None
        self.children: list[Child] = []

    async def run_until_stopped(self, *, with_first_turn: bool) -> StartRefused | None:
        """Start and supervise everything until SIGINT, SIGTERM or SIGHUP, or until the start is hopeless.

        Returns the reason, None after a signal. A second signal kills what is left.
        """
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(16))  # a thread waits for each child
        for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(what, self._on_signal)
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(self._open(tasks, with_first_turn=with_first_turn))
            await self._stop.wait()
            opening.cancel()
            self._console.status("")
            await stop_in_reverse(self.children)
        self._console.print_line(LAUNCHER, "everything has ended")
        return self._refusal

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._console.print_line(LAUNCHER, "killing what is left")
            for child in self.children:
                child.kill()
        else:
            self._console.print_line(LAUNCHER, "stopping; once more to kill")
            self._stop.set()

    async def _open(self, tasks: asyncio.TaskGroup, *, with_first_turn: bool) -> None:
        """Start everything in order, then show the status. A `StartRefused` ends the start with its reason."""
        try:
            await self._start_postgres(tasks)
            self._start_model(tasks)
            self._start_tools(tasks)
            if self._plan.knowledge_flow is not None:
                self._start_service(tasks, "knowledge", self._plan.knowledge_flow, stop_s=KNOWLEDGE_STOP_S)
            agentic = self._start_service(tasks, "agentic", self._plan.agentic, stop_s=AGENTIC_STOP_S)
            await self._await_ready()
            agentic.is_useful = True
            if with_first_turn:
                await self._run_first_turn(agentic)
            self._announce()
            async with asyncio.TaskGroup() as beside:
                beside.create_task(show_status(self._console, self._plan.agentic, self._paths.log))
                beside.create_task(self._ingest_samples())
                beside.create_task(ProcessLog(LAUNCHER, self._console, self._silent).write_each())
        except StartRefused as refusal:
            self._refuse(refusal)

    def _silent(self) -> list[Child]:
        """The programs that do not tell what they use: the services do."""
        return [child for child in self.children if child.name not in SERVICES]

    async def _await_ready(self) -> None:
        """Wait until the agentic service is ready; after 20 s report once what it waits for."""
        slow_at = asyncio.get_running_loop().time() + SLOW_S
        while (status := await readiness(self._plan.agentic)) != "ready":
            if asyncio.get_running_loop().time() > slow_at:
                slow_at = float("inf")
                text = f"still waiting for the agentic service ({status or 'silent'}): see {self._paths.log}"
                self._console.print_line(LAUNCHER, text)
            await asyncio.sleep(POLL_S)

    async def _run_first_turn(self, agentic: Child) -> None:
        """Run one turn. Raises `StartRefused` with the service's own log line if it fails."""
        agentic.warnings.clear()
        try:
            await first_turn(self._plan.agentic)
        except FirstTurnFailed as failure:
            await asyncio.sleep(POLL_S)  # its log line arrives through a pipe
            elsewhere = self._environment.get("OPENAI_BASE_URL")
            where = [f"OPENAI_BASE_URL is {elsewhere}"] if elsewhere else []
            why = "; ".join(["not ready: the first turn failed", str(failure), *list(agentic.warnings)[:1], *where])
            raise StartRefused(f"{why} (--no-first-turn starts without one)") from None

    def _refuse(self, reason: StartRefused) -> None:
        """End the start. The reason is printed after everything has ended: people read the last line.

        What fails after a signal, such as a first turn whose service is killed, is no reason.
        """
        if not self._stop.is_set():
            self._refusal = reason
        self._stop.set()

    def _announce(self) -> None:
        agentic = self._plan.agentic
        metrics = f"metrics {agentic.metrics_url}, " if agentic.metrics_url else ""
        self._console.announce(f"Turnwise is ready: {agentic.origin}  ({metrics}Ctrl-C stops)")

    async def _ingest_samples(self) -> None:
        """Ingest Rico's sample documents once. A failure is only reported: everything else works without them."""
        service = self._plan.knowledge_flow
        if service is None or not self._samples:
            return
        # The embedded database is identified by the home directory, whatever its port.
        where = "embedded" if self._plan.postgres_port is not None else str(service.config)
        try:
            samples = Samples(
                resource_directory(),
                self._paths.home,
                service,
                scope=f"{where}/{self._plan.database}",
                report=lambda text: self._console.print_line(LAUNCHER, text),
            )
            if samples.already_sent():
                return
            self._console.print_line(LAUNCHER, f"sending {len(samples)} documents of ours to the library {LIBRARY}")
            summary = await samples.ingest_files(self._environment)
        except (SamplesFailed, OSError) as failure:
            self._console.print_line(
                LAUNCHER, f"the library {LIBRARY} is not complete: {failure}; the next start tries again"
            )
        else:
            self._console.print_line(LAUNCHER, f"the library {LIBRARY} is ready: {summary}")

    async def _start_postgres(self, tasks: asyncio.TaskGroup) -> None:
        if self._plan.postgres_port is None:
            return
        password = _stored_password(self._paths.home / PASSWORD_FILE)
        server = EmbeddedPostgres(
            self._paths.home / "postgres", self._plan.postgres_port, password=password, database=self._plan.database
        )
        self._environment["FRED_POSTGRES_PASSWORD"] = password
        await asyncio.to_thread(server.prepare)  # a refusal here ends the start; at a restart it is only reported
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
        deadline = asyncio.get_running_loop().time() + START_S
        while not await asyncio.to_thread(server.is_ready):
            if asyncio.get_running_loop().time() > deadline:
                raise PostgresFailed(f"Postgres does not answer after {START_S:g} s: {self._paths.log} may say why")
            await asyncio.sleep(POLL_S)
        postgres.is_useful = True

    def _start_model(self, tasks: asyncio.TaskGroup) -> None:
        if self._plan.model_url is None:
            return
        address = ["--host", self._plan.model_host, "--port", str(self._plan.model_port)]
        self._keep(tasks, self._python("model", ["ws_bench", "mock-llm", *address], 10.0))

    def _start_tools(self, tasks: asyncio.TaskGroup) -> None:
        """Start Sammy's sample tools. Nothing waits for them: without them he answers that they are missing."""
        if self._plan.tools_port is None:
            return
        arguments = ["--port", str(self._plan.tools_port), "--notes", str(self._paths.home / "notes.json")]
        tools = self._keep(tasks, self._python("tools", ["turnwise.sample_tools", *arguments], 5.0))
        tools.is_useful = True  # restarted however it ends: its failure must not end the rest

    def _start_service(self, tasks: asyncio.TaskGroup, name: str, service: ServicePlan, *, stop_s: float) -> Child:
        config = service.config
        if service.content is not None:
            config = self._paths.home / "run" / f"{name}.yaml"
            config.parent.mkdir(exist_ok=True)
            config.touch(mode=0o600)
            config.write_text(yaml.safe_dump(dict(service.content), sort_keys=False), encoding="utf-8")
        program = self._python(name, [service.module], stop_s, CONFIG_FILE=str(config))
        return self._keep(tasks, replace(program, hopeless_codes=(EXIT_UNUSABLE,)))

    def _python(self, name: str, arguments: list[str], stop_s: float, **environment: str) -> Program:
        """`python -m arguments…` with the launcher's environment plus `environment`."""
        return Program(
            name,
            lambda: with_parent_death_signal([sys.executable, "-m", *arguments], signal.SIGTERM),
            {**self._environment, **environment},
            self._paths.cwd,
            stop_s=stop_s,
        )

    def _keep(self, tasks: asyncio.TaskGroup, program: Program) -> Child:
        child = Child(program, self._console)
        self.children.append(child)
        tasks.create_task(self._run_child(child), name=f"child {program.name}")
        return child

    async def _run_child(self, child: Child) -> None:
        """Keep the child running. If restarting it is hopeless, everything ends."""
        await child.keep_running()
        if child.fault is not None:
            kind = Unusable if child.is_unusable else StartRefused
            self._refuse(kind(f"{child.name} cannot run: {child.fault}"))


def _stored_password(path: Path) -> str:
    """The password of the embedded Postgres, generated at the first start and readable by its owner alone.

    Without one every user of the machine could connect as superuser and run commands as the server's user. Raises
    `Unusable` if the file cannot be used.
    """
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(24))
        return path.read_text().strip()
    except OSError as error:
        raise Unusable(f"cannot use {path}: {error.strerror}") from None
