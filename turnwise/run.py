"""`turnwise run`: everything on this machine, by one command, until Ctrl-C."""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from turnwise.console import Console
from turnwise.errors import StartRefused
from turnwise.home import checkout, choose_home, resource_directory
from turnwise.launcher import EXIT_UNUSABLE, LAUNCHER, Launcher, StartPaths
from turnwise.plan import Plan, ServicePlan, read_plan
from turnwise.ports import require_free_ports
from turnwise.supervise import failure_line

CHECK_S = 60.0
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
    """Run until Ctrl-C. Returns 0, 1 after printing as the last line why it cannot go on, 130 if interrupted early."""
    file = "configuration_bench.yaml" if options.bench else "configuration.yaml"
    config = resource_directory() / "config"
    agentic = options.config_agentic or config / "agentic" / file
    knowledge = options.config_knowledge_flow or config / "knowledge_flow" / file
    base = checkout() or Path.cwd()
    console = None
    try:
        environ = _with_graphs(os.environ, options.langgraph)
        plan = read_plan(agentic, knowledge, environ, bench=options.bench, port=_port(options.port))
        _require_good_configuration(plan, base)
        require_free_ports(plan.ports())
        paths = StartPaths(choose_home(base, os.environ), base)
        console = Console(sys.stdout, paths.log, verbose=options.verbose)
        console.say(LAUNCHER, f"data in {paths.home}, log in {paths.log}")
        if plan.knowledge_flow is None:
            console.say(LAUNCHER, "without knowledge flow, which is not installed: Rico finds no documents")
        # A bench seeds its own data, and an ingestion running beside it would be measured too.
        samples = not (options.no_samples or options.bench)
        launcher = Launcher(plan, paths, console, samples=samples)
        refusal = asyncio.run(launcher.run_until_stopped(with_first_turn=not options.no_first_turn))
    except StartRefused as refused:
        refusal = str(refused)
    except KeyboardInterrupt:  # before anything was started: later the launcher handles the signal
        return 130
    except OSError as error:
        refusal = f"cannot use {error.filename}: {error.strerror}"
    finally:
        if console is not None:
            console.close()
    if refusal is not None:
        print(f"turnwise: {refusal}", file=sys.stderr)
    return 0 if refusal is None else 1


def _with_graphs(environ: Mapping[str, str], langgraph_json: Path | None) -> Mapping[str, str]:
    """The environment in which the agentic service serves that file's graphs, whatever directory it runs in."""
    return environ if langgraph_json is None else {**environ, LANGGRAPH_JSON: str(langgraph_json.absolute())}


def _require_good_configuration(plan: Plan, cwd: Path) -> None:
    """Let each service check its file, and agents that did not come with it. Raises `StartRefused` with their
    complaints. Blocks for about a second, for a few where there are such agents."""
    services = [service for service in (plan.agentic, plan.knowledge_flow) if service is not None]
    asked = [(service, _ask(service, plan.environment, cwd)) for service in services]
    refusals = [reason for service, process in asked if (reason := _answer(service, process))]
    if refusals:
        raise StartRefused("; ".join(refusals))


def _ask(service: ServicePlan, environment: Mapping[str, str], cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, "-m", service.module, "--check"],
        cwd=cwd,
        env={**environment, "CONFIG_FILE": str(service.config)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _answer(service: ServicePlan, process: "subprocess.Popen[str]") -> str:
    """What is wrong, in one line; empty if nothing is."""
    try:
        _, errors = process.communicate(timeout=CHECK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{service.config}: not read within {CHECK_S:g} s"
    if process.returncode == 0:
        return ""
    lines = errors.splitlines()
    if process.returncode == EXIT_UNUSABLE:
        # The reason; above and below it may stand what an agent's own code had to say.
        lines = [line for line in lines if line.startswith("agent ")][-1:] or lines[-1:]
    return failure_line(lines) or f"{service.title}: python -m {service.module} ends with {process.returncode}"


def _port(named: str | None) -> int | None:
    """The port that the flag or $PORT asks for. Raises `StartRefused` if it is no number."""
    port = named or os.environ.get("PORT")
    if not port:
        return None
    if not port.isdecimal():
        raise StartRefused(f"PORT={port}: must be a number")
    return int(port)
