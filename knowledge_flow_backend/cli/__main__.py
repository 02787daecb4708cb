"""`knowledge-flow COMMAND`: works on the libraries of a running service.

Exit codes: 0 done, for `ingest` every file is in the library; 1 some of it failed; 2 nothing could be tried (usage,
service not reachable).
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from knowledge_flow_backend.cli.client import NotReachable, refuse
from knowledge_flow_backend.cli.ingest import add_ingest
from knowledge_flow_backend.cli.libraries import add_commands
from knowledge_flow_backend.cli.reindex import add_reindex


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except NotReachable as error:
        return refuse(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="knowledge-flow", description="Works on the libraries of a running service.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_ingest(commands)
    add_commands(commands)
    add_reindex(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
