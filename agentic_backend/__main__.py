"""The process of the agentic service: loads settings, binds the port, takes its locks, then imports the rest."""

import asyncio
import logging
import subprocess
import sys

from agentic_backend.settings import AgenticSettings, Ai
from backend_kit.process import arguments, configure, heavy_imports


def main() -> int:
    """Serve until a signal ends it.

    Exit codes: 0 drained, 1 forced or the agents could not be tried, 2 bad configuration, a model, an agent, spool
    directory or pooler that cannot be used or a taken port, 3 another process has the spool directory or the database
    (after a wait of up to 10 s at the start). What is detected later comes after a drain.
    """
    options = arguments("agentic_backend", "The agentic service.").parse_args()
    settings = configure(AgenticSettings, check=False)
    if not _models_are_usable(settings.ai):
        return 2
    code = _try_agents(settings.ai, whole=options.check)
    if code != 0 or options.check:
        return code
    from agentic_backend.spool.claim import EXIT_TAKEN, DatabaseTaken, take
    from agentic_backend.spool.pooler import PoolerUnusable
    from agentic_backend.spool.spooldir import SpoolTaken, SpoolUnusable
    from backend_kit.http import CannotListen, listen

    try:
        sock = listen(settings.app.address, settings.app.port)
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
    return serve_app(settings, sock, possessions)


def _models_are_usable(ai: Ai) -> bool:
    """Whether the models of other providers can be made; if not, stderr says why in one line."""
    if all(model.provider == "openai" for model in ai.called_models):
        return True  # and nothing heavy is imported
    with heavy_imports():
        from agentic_backend.llm.providers.make import ModelUnusable, try_models
    try:
        try_models(ai.called_models)
    except ModelUnusable as failure:
        sys.stderr.write(f"{failure}\n")
        return False
    return True


def _try_agents(ai: Ai, *, whole: bool) -> int:
    """Whether the agents whose code is not ours can be used, as an exit code; if not, stderr says why in one line.

    With `whole` every graph is made once. Without, those that are made on a loop are tried in a process of their own:
    what a user's module keeps of a loop must not outlive that loop here.
    """
    if all(agent.is_own for agent in ai.agents if agent.enabled):
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
    code = subprocess.run([sys.executable, "-m", "agentic_backend", "--check"], check=False).returncode
    if code in (0, 2):
        return code
    sys.stderr.write(f"the agents could not be tried: python -m agentic_backend --check ended with {code}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
