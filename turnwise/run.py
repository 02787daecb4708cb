"""`turnwise run`: everything on this machine, by one command, until Ctrl-C."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from turnwise.check import require_good_configuration
from turnwise.console import Console
from turnwise.data import checkout, data_directory
from turnwise.errors import StartRefused
from turnwise.home import choose_home
from turnwise.launcher import US, Launcher, Place
from turnwise.plan import Plan, read_plan
from turnwise.ports import require_free


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said to `turnwise run`."""
    parser.add_argument("--port", metavar="N", help="the page on port N, everything else on those behind it ($PORT)")
    parser.add_argument("--verbose", action="store_true", help="show all that the programs write, no status line")
    parser.add_argument("--config-agentic", type=Path, metavar="FILE", help="configuration of the agentic service")
    parser.add_argument("--config-knowledge-flow", type=Path, metavar="FILE", help="configuration of knowledge flow")
    parser.add_argument("--bench", action="store_true", help="use configuration_bench.yaml, never a model elsewhere")
    parser.add_argument("--no-samples", action="store_true", help="do not send our documents to the library Turnwise")
    parser.add_argument("--no-first-turn", action="store_true", help="do not try a turn before saying ready")


def run(options: argparse.Namespace) -> int:
    """Run until Ctrl-C; the exit code: 0, or 1 with the reason in words, as the last line, where it cannot go on."""
    file = "configuration_bench.yaml" if options.bench else "configuration.yaml"
    config = data_directory() / "config"
    agentic = options.config_agentic or config / "agentic" / file
    knowledge = options.config_knowledge_flow or config / "knowledge_flow" / file
    base = checkout() or Path.cwd()
    console = None
    try:
        plan = read_plan(agentic, knowledge, os.environ, bench=options.bench, port=_port(options.port))
        require_good_configuration(plan, base)
        require_free(plan.ports())
        place = Place(choose_home(base, os.environ), base)
        console = Console(sys.stdout, place.log, verbose=options.verbose)
        console.say(US, f"data in {place.home}, log in {place.log}")
        if plan.knowledge_flow is None:
            console.say(US, "without knowledge flow, which is not installed: Rico finds no documents")
        # A bench seeds what it measures, and an ingestion beside it would be measured too.
        samples = not (options.no_samples or options.bench)
        refusal = asyncio.run(_run(plan, place, console, samples=samples, try_a_turn=not options.no_first_turn))
    except StartRefused as refused:
        refusal = str(refused)
    except KeyboardInterrupt:  # before anything was started: later it is a signal that the launcher takes
        return 130
    except OSError as error:
        refusal = f"cannot use {error.filename}: {error.strerror}"
    finally:
        if console is not None:
            console.close()
    if refusal is not None:
        print(f"turnwise: {refusal}", file=sys.stderr)
    return 0 if refusal is None else 1


async def _run(plan: Plan, place: Place, console: Console, *, samples: bool, try_a_turn: bool) -> str | None:
    return await Launcher(plan, place, console, samples=samples).run(try_a_turn=try_a_turn)


def _port(named: str | None) -> int | None:
    """The port that is asked for, by the flag or by the environment."""
    said = named or os.environ.get("PORT")
    if not said:
        return None
    if not said.isdecimal():
        raise StartRefused(f"PORT={said}: must be a number")
    return int(said)
