"""The process of the agentic service: loads settings, binds the port, takes its locks, then imports the rest."""

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from agentic_backend.settings import AgenticSettings, Ai
from backend_kit.process import arguments, configure, end_at_once, heavy_imports

_KILL_AFTER_DRAIN_S = 30.0
"""More than the server and the pools take behind the deadline of running turns."""

_LONGEST_TEMP = 40
"""Bytes; the path of a Unix socket has at most 107."""


def main() -> int:
    """Serve until a signal ends it.

    Exit codes: 0 drained, 1 forced or the agents could not be tried, 2 bad configuration, a model, an agent, a callback
    handler, spool directory or pooler that cannot be used or a taken port, 3 another process has the spool directory or
    the database (after a wait of up to 10 s at the start). What is detected later comes after a drain.
    """
    parser = arguments("agentic_backend", "The agentic service.")
    parser.add_argument("--siblings", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = configure(AgenticSettings, check=False, worker=options.worker)
    if options.worker is not None:
        return _work(settings, options.worker, options.lifeline, options.siblings)
    if settings.app.workers > 1 and not options.check:
        return _supervise(settings)
    if not _models_are_usable(settings.ai) or not _handlers_are_usable(settings):
        return 2
    code = _try_agents(settings.ai, whole=options.check)
    if code != 0 or options.check:
        return code
    return _serve(settings)


def _supervise(settings: AgenticSettings) -> int:
    """This process only watches: it imports nothing heavy and serves nothing."""
    from backend_kit.http import CannotListen
    from backend_kit.workers import serve_workers

    known = _only_openai(settings.ai) and _only_own(settings.ai) and not settings.tracing.callbacks
    if not known and (code := _try_aside()) != 0:
        return code
    where = None if len(tempfile.gettempdir()) <= _LONGEST_TEMP else "/tmp"  # noqa: S108 - a directory of our own in it
    with tempfile.TemporaryDirectory(prefix="turnwise-workers-", dir=where) as directory:
        try:
            return serve_workers(
                "agentic_backend",
                settings.app,
                kill_after_s=settings.deadlines.drain_s + _KILL_AFTER_DRAIN_S,
                more=("--siblings", directory),
            )
        except CannotListen as error:
            logging.getLogger(__name__).critical("%s", error)
            return 2


def _work(settings: AgenticSettings, number: int, lifeline: int, siblings: Path) -> int:
    """Serve as one of several workers. Models and agents were tried before it was started."""
    from backend_kit.workers import end_with

    end_with(lifeline)
    return _serve(settings.of_worker(number), siblings)


def _serve(settings: AgenticSettings, siblings: Path | None = None) -> int:
    from agentic_backend.spool.claim import EXIT_TAKEN, DatabaseTaken, take
    from agentic_backend.spool.pooler import PoolerUnusable
    from agentic_backend.spool.spooldir import SpoolTaken, SpoolUnusable
    from backend_kit.http import CannotListen, listen
    from backend_kit.workers import bind_beside_others

    bind = listen if siblings is None else bind_beside_others
    try:
        sock = bind(settings.app.address, settings.app.port)
        possessions = take(settings)
    except (CannotListen, SpoolUnusable, PoolerUnusable) as error:
        logging.getLogger(__name__).critical("%s", error)
        return 2
    except (SpoolTaken, DatabaseTaken) as error:
        logging.getLogger(__name__).critical("%s", error)
        return EXIT_TAKEN
    # Importing LangGraph and SQLAlchemy takes seconds: errors that can be found without them must not wait for them.
    with heavy_imports():
        from agentic_backend.app import serve_app
    code = serve_app(settings, sock, possessions, siblings)
    end_at_once()
    return code


def _only_openai(ai: Ai) -> bool:
    return all(model.provider == "openai" for model in ai.called_models)


def _only_own(ai: Ai) -> bool:
    return all(agent.is_own for agent in ai.agents if agent.enabled)


def _models_are_usable(ai: Ai) -> bool:
    """Whether the models of other providers can be made; if not, stderr says why in one line."""
    if _only_openai(ai):
        return True  # and nothing heavy is imported
    with heavy_imports():
        from agentic_backend.llm.providers.make import ModelUnusable, try_models
    try:
        try_models(ai.called_models)
    except ModelUnusable as failure:
        sys.stderr.write(f"{failure}\n")
        return False
    return True


def _handlers_are_usable(settings: AgenticSettings) -> bool:
    """Whether LangChain's callback handlers can be made; if not, stderr says why in one line."""
    if not settings.tracing.callbacks:
        return True  # and nothing heavy is imported
    with heavy_imports():
        from agentic_backend.agent.hosted.check import HandlerUnusable, load_handlers, prepare_imports
    try:
        prepare_imports(settings.ai)
        load_handlers(settings.tracing.callbacks)
    except HandlerUnusable as failure:
        sys.stderr.write(f"{failure}\n")
        return False
    return True


def _try_agents(ai: Ai, *, whole: bool) -> int:
    """Whether the agents whose code is not ours can be used, as an exit code; if not, stderr says why in one line.

    With `whole` every graph is made once. Without, those that are made on a loop are tried in a process of their own:
    what a user's module keeps of a loop must not outlive that loop here.
    """
    if _only_own(ai):
        return 0  # and nothing heavy is imported
    with heavy_imports():
        from agentic_backend.agent.hosted.check import load_agents, prepare_imports, try_graphs
        from agentic_backend.agent.hosted.loading import GraphUnusable
    try:
        prepare_imports(ai)
        graphs = load_agents(ai.agents)
        if whole:
            asyncio.run(try_graphs(graphs))
    except GraphUnusable as failure:
        sys.stderr.write(f"{failure}\n")
        return 2
    if whole or all(graph.static is not None for graph in graphs.values()):
        return 0
    return _try_aside()


def _try_aside() -> int:
    """Whether models and agents can be used, found out by a process of its own, as an exit code."""
    code = subprocess.run([sys.executable, "-m", "agentic_backend", "--check"], check=False).returncode
    if code in (0, 2):
        return code
    sys.stderr.write(f"the agents could not be tried: python -m agentic_backend --check ended with {code}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
