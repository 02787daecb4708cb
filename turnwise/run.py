"""`turnwise run`: everything on this machine, by one command, until Ctrl-C."""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from turnwise.console import Console
from turnwise.errors import EXIT_UNUSABLE, StartRefused, Unusable
from turnwise.home import checkout, choose_home, resource_directory
from turnwise.launcher import LAUNCHER, Launcher, StartPaths
from turnwise.plan import Plan, ServicePlan, read_plan
from turnwise.ports import require_free_ports
from turnwise.supervise import end_phrase, failure_line, last_word

CHECK_S = 120.0  # the service itself reports a graph that takes longer than 60 s to build
LANGGRAPH_JSON = "TURNWISE_LANGGRAPH_JSON"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `turnwise run` to the parser."""
    parser.add_argument("--port", metavar="N", help="the page on port N, everything else on those behind it ($PORT)")
    parser.add_argument("--verbose", action="store_true", help="show all that the programs write, no status line")
    parser.add_argument("--config-agentic", type=Path, metavar="FILE", help="configuration of the agentic service")
    parser.add_argument("--config-knowledge-flow", type=Path, metavar="FILE", help="configuration of knowledge flow")
    parser.add_argument("--langgraph", type=Path, metavar="FILE", help="serve the graphs of this langgraph.json, too")
    parser.add_argument("--bench", action="store_true", help="use configuration_bench.yaml, never a model elsewhere")
    parser.add_argument("--no-samples", action="store_true", help="do not send our documents to the library Turnwise")
    parser.add_argument("--no-first-turn", action="store_true", help="do not try a turn before saying ready")


def run_command(options: argparse.Namespace) -> int:
    """Run until Ctrl-C. Returns 0; 130 if interrupted before anything was started; after printing as the last line why
    it cannot go on, the code of that reason: 2 where what is configured cannot be used, else 1."""
    file = "configuration_bench.yaml" if options.bench else "configuration.yaml"
    config = resource_directory() / "config"
    agentic = options.config_agentic or config / "agentic" / file
    knowledge = options.config_knowledge_flow or config / "knowledge_flow" / file
    base = checkout() or Path.cwd()
    console = None
    refusal: StartRefused | None
    try:
        environ = _with_graphs(os.environ, options.langgraph)
        plan = read_plan(agentic, knowledge, environ, bench=options.bench, port=port_of(options.port))
        _require_good_configuration(plan, base)
        require_free_ports(plan.ports())
        paths = StartPaths(choose_home(base, os.environ), base)
        console = Console(sys.stdout, paths.log, verbose=options.verbose)
        console.print_line(LAUNCHER, f"data in {paths.home}, log in {paths.log}")
        if plan.knowledge_flow is None:
            console.print_line(LAUNCHER, "without knowledge flow, which is not installed: Rico finds no documents")
        # A bench seeds its own data, and an ingestion running beside it would be measured too.
        samples = not (options.no_samples or options.bench)
        launcher = Launcher(plan, paths, console, samples=samples)
        refusal = asyncio.run(launcher.run_until_stopped(with_first_turn=not options.no_first_turn))
    except StartRefused as refused:
        refusal = refused
    except KeyboardInterrupt:  # before anything was started: later the launcher handles the signal
        return 130
    except OSError as error:
        refusal = Unusable(f"cannot use {error.filename}: {error.strerror}")
    finally:
        if console is not None:
            console.close()
    if refusal is None:
        return 0
    print(f"turnwise: {refusal}", file=sys.stderr)
    return refusal.exit_code


def _with_graphs(environ: Mapping[str, str], langgraph_json: Path | None) -> Mapping[str, str]:
    """The environment in which the agentic service serves that file's graphs, whatever directory it runs in."""
    return environ if langgraph_json is None else {**environ, LANGGRAPH_JSON: str(langgraph_json.absolute())}


class _Check:
    """A service that looks whether its configuration can be used. What it writes goes to a file: a pipe would stay open
    as long as a program that an agent's module has started."""

    def __init__(self, service: ServicePlan, plan: Plan, cwd: Path, written: IO[str]) -> None:
        self._service = service
        self._written = written
        self._process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", service.module, "--check"],
            cwd=cwd,
            env={**plan.environment, "CONFIG_FILE": str(service.config)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=written,
        )

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()

    def refusal(self) -> StartRefused | None:
        """What is wrong, once it has ended; None if nothing is. A check that broke off is no verdict."""
        try:
            code = self._process.wait(CHECK_S)
        except subprocess.TimeoutExpired:
            return StartRefused(f"{self._service.config}: not checked within {CHECK_S:g} s")
        if code == 0:
            return None
        self._written.seek(0)
        lines = self._written.read().splitlines()
        how = f"{self._service.title}: python -m {self._service.module} --check {end_phrase(code)}"
        if code == EXIT_UNUSABLE:
            # The reason; above and below it may stand what an agent's own code had to say.
            return Unusable(last_word([line for line in lines if line.startswith("agent ")] or lines) or how)
        why = failure_line(lines)
        return StartRefused(f"{how}: {why}" if why else how)


def _require_good_configuration(plan: Plan, cwd: Path) -> None:
    """Let each service check its file, and agents that did not come with it. Raises their complaints: `Unusable` where
    one of them is, else `StartRefused`. Blocks for about a second, for a few where there are such agents."""
    services = [service for service in (plan.agentic, plan.knowledge_flow) if service is not None]
    with ExitStack() as stack:
        checks = []
        for service in services:
            written = stack.enter_context(TemporaryFile("w+", encoding="utf-8", errors="replace"))
            checks.append(_Check(service, plan, cwd, written))
            stack.callback(checks[-1].kill)
        refusals = [refusal for check in checks if (refusal := check.refusal()) is not None]
    if refusals:
        kind = Unusable if any(isinstance(refusal, Unusable) for refusal in refusals) else StartRefused
        raise kind("; ".join(str(refusal) for refusal in refusals))


def port_of(named: str | None) -> int | None:
    """The port that the flag or $PORT asks for. Raises `Unusable` if it is no number."""
    port = named or os.environ.get("PORT")
    if not port:
        return None
    if not port.isdecimal():
        raise Unusable(f"PORT={port}: must be a number")
    return int(port)
