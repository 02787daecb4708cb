"""`turnwise`, or `python -m turnwise`: the command line. What a command needs is imported when it runs."""

import argparse
import sys

EXTRAS = "agentic,knowledge-flow,bench,local"


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit code: its own, or 1 with the reason in words where something is not installed."""
    parser = argparse.ArgumentParser(prog="turnwise", description="Turnwise on this machine.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="start everything: Postgres, the mock model and the services; Ctrl-C stops",
        description="Start everything on this machine: Postgres, the mock model and the services; Ctrl-C stops. "
        "Data is kept in $TURNWISE_HOME, else in .turnwise of this directory (of the checkout where there is one).",
    )
    try:
        from turnwise import run as running

        running.add_arguments(run)
        arguments = sys.argv[1:] if argv is None else argv
        if not arguments:
            parser.print_help()
            return 0
        options = parser.parse_args(arguments)
        return running.run(options)
    except ModuleNotFoundError as error:
        print(f'turnwise: {error.name} is not installed: pip install "turnwise[{EXTRAS}]"', file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
