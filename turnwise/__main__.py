"""`python -m turnwise`: everything of Turnwise on this machine, by one command, until Ctrl-C."""

import argparse
import asyncio
import os
import secrets
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from turnwise.errors import PostgresFailed, StartRefused
from turnwise.first_turn import FirstTurnFailed, first_turn, is_ready
from turnwise.home import choose_home
from turnwise.plan import Plan, Service, read_plan
from turnwise.ports import require_free
from turnwise.postgres import ENVIRONMENT, START_S, EmbeddedPostgres
from turnwise.samples import LIBRARY, Samples, SamplesFailed
from turnwise.supervise import Child, Console, Program, stop_in_turn
from turnwise.tether import tethered

CHECKOUT = Path(__file__).parents[1]
AGENTIC_STOP_S = 50.0  # turns 25, those cancelled 5, sockets 5, history 5, closing 5
DEATHS_BEFORE_READY = 3
KNOWLEDGE_STOP_S = 40.0  # uploads that run may take 25 s to end
POLL_S = 0.05
US = "turnwise"


class Launcher:
    """The children of one start, in the order in which they start; they end in the opposite one."""

    def __init__(self, plan: Plan, home: Path, console: Console, *, samples: bool) -> None:
        self._plan = plan
        self._samples = samples
        self._home = home
        self._console = console
        self._environment = {**plan.environment, "PYTHONUNBUFFERED": "1", "TURNWISE_HOME": str(home)}
        # Beside the database that it belongs to.
        self._environment.setdefault("TURNWISE_SPOOL_DIR", str(home / "spool"))
        self._postgres: EmbeddedPostgres | None = None
        self._stop = asyncio.Event()
        self._failed = False
        self.children: list[Child] = []

    async def run(self, *, try_a_turn: bool) -> int:
        """Start, supervise, and end on SIGINT, SIGTERM or SIGHUP; the exit code. A second signal kills what is left."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(16))  # a thread waits for each child
        for what in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(what, self._on_signal)
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(self._open(tasks, try_a_turn=try_a_turn))
            await self._stop.wait()
            opening.cancel()
            await stop_in_turn(self.children)
        self._console.say(US, "everything has ended")
        return 1 if self._failed else 0

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._console.say(US, "killing what is left")
            for child in self.children:
                child.kill()
        else:
            self._console.say(US, "stopping; once more to kill")
            self._stop.set()

    async def _open(self, tasks: asyncio.TaskGroup, *, try_a_turn: bool) -> None:
        """Bring everything up in order. What makes the start hopeless ends it with its reason."""
        try:
            await self._start_postgres(tasks)
            self._start_model(tasks)
            if self._plan.knowledge_flow is not None:
                self._start_service(tasks, "knowledge", self._plan.knowledge_flow, stop_s=KNOWLEDGE_STOP_S)
            agentic = self._start_service(tasks, "agentic", self._plan.agentic, stop_s=AGENTIC_STOP_S)
            await self._await_ready(agentic)
            if try_a_turn:
                await first_turn(self._plan.agentic)
            self._announce()
            await self._ingest_samples()
        except FirstTurnFailed as failure:
            self._console.say(US, f"the services run, but a first turn failed: {failure}")
            self._announce()
            await self._ingest_samples()
        except StartRefused as refusal:
            self._console.say(US, str(refusal))
            self._failed = True
            self._stop.set()

    async def _await_ready(self, agentic: Child) -> None:
        while not await is_ready(self._plan.agentic):
            if agentic.deaths >= DEATHS_BEFORE_READY:
                raise StartRefused("the agentic service cannot start: its lines above say why")
            await asyncio.sleep(POLL_S)

    def _announce(self) -> None:
        agentic = self._plan.agentic
        metrics = f"metrics {agentic.metrics_url}, " if agentic.metrics_url else ""
        self._console.announce(f"Turnwise is ready: {agentic.origin}  ({metrics}Ctrl-C stops)")

    async def _ingest_samples(self) -> None:
        """Give Rico something to read, once. A failure is said: everything else works without."""
        service = self._plan.knowledge_flow
        if service is None or not self._samples:
            return
        where = f"{self._plan.postgres_port}/{self._plan.database}"
        try:
            samples = Samples(CHECKOUT, self._home, service, scope=where)
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
        password = _kept_password(self._home / "postgres-password")
        server = EmbeddedPostgres(
            self._home / "postgres", self._plan.postgres_port, password=password, database=self._plan.database
        )
        self._environment["FRED_POSTGRES_PASSWORD"] = password
        await asyncio.to_thread(server.prepare)  # a refusal here ends the start; later it is only said
        self._keep(
            tasks,
            Program("postgres", server.command, ENVIRONMENT, server.directory, signal.SIGINT, prepare=server.prepare),
        )
        give_up = asyncio.get_running_loop().time() + START_S
        while not await asyncio.to_thread(server.is_ready):
            if asyncio.get_running_loop().time() > give_up:
                raise PostgresFailed("Postgres does not answer: its lines above may say why")
            await asyncio.sleep(POLL_S)

    def _start_model(self, tasks: asyncio.TaskGroup) -> None:
        if self._plan.model_url is None:
            return
        address = ["--host", self._plan.model_host, "--port", str(self._plan.model_port)]
        self._keep(tasks, self._python("model", ["ws_bench", "mock-llm", *address], 10.0))

    def _start_service(self, tasks: asyncio.TaskGroup, name: str, service: Service, *, stop_s: float) -> Child:
        return self._keep(tasks, self._python(name, [service.module], stop_s, CONFIG_FILE=str(service.config)))

    def _python(self, name: str, arguments: list[str], stop_s: float, **environment: str) -> Program:
        """`python -m arguments…` with the launcher's environment and more."""
        return Program(
            name,
            lambda: tethered([sys.executable, "-m", *arguments], signal.SIGTERM),
            {**self._environment, **environment},
            CHECKOUT,
            stop_s=stop_s,
        )

    def _keep(self, tasks: asyncio.TaskGroup, program: Program) -> Child:
        child = Child(program, self._console)
        self.children.append(child)
        tasks.create_task(child.run(), name=f"child {program.name}")
        return child


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


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m turnwise", description="Start Turnwise on this machine.")
    parser.add_argument("--config-agentic", type=Path, metavar="FILE", help="configuration of the agentic service")
    parser.add_argument("--config-knowledge-flow", type=Path, metavar="FILE", help="configuration of knowledge flow")
    parser.add_argument("--bench", action="store_true", help="use configuration_bench.yaml, never a model elsewhere")
    parser.add_argument("--no-samples", action="store_true", help="do not send our documents to the library Turnwise")
    parser.add_argument("--no-first-turn", action="store_true", help="do not try a turn before saying ready")
    options = parser.parse_args(argv)
    file = "configuration_bench.yaml" if options.bench else "configuration.yaml"
    options.config_agentic = options.config_agentic or CHECKOUT / "config/agentic" / file
    options.config_knowledge_flow = options.config_knowledge_flow or CHECKOUT / "config/knowledge_flow" / file
    return options


def main(argv: list[str] | None = None) -> int:
    """Run until Ctrl-C; the exit code: 0, or 1 with the reason in words when the start is refused."""
    options = _arguments(argv)
    try:
        plan = read_plan(options.config_agentic, options.config_knowledge_flow, os.environ, bench=options.bench)
        require_free(plan.ports())
        home = choose_home(CHECKOUT, os.environ)
    except StartRefused as refusal:
        print(f"turnwise: {refusal}", file=sys.stderr)
        return 1
    console = Console(sys.stdout)
    console.say(US, f"data in {home}")
    # A bench seeds what it measures, and an ingestion beside it would be measured too.
    samples = not (options.no_samples or options.bench)
    return asyncio.run(_supervise(plan, home, console, samples=samples, try_a_turn=not options.no_first_turn))


async def _supervise(plan: Plan, home: Path, console: Console, *, samples: bool, try_a_turn: bool) -> int:
    return await Launcher(plan, home, console, samples=samples).run(try_a_turn=try_a_turn)


if __name__ == "__main__":
    sys.exit(main())
