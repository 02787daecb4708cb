"""`turnwise`, or `python -m turnwise`: the command line. What a command needs is imported when it runs."""

import argparse
import sys

EXTRAS = "agentic,knowledge-flow,bench,local"


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit code, or 1 after naming the package that is not installed."""
    parser = argparse.ArgumentParser(prog="turnwise", description="Turnwise on this machine.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="start everything: Postgres, the mock model and the services; Ctrl-C stops",
        description="Start everything on this machine: Postgres, the mock model and the services; Ctrl-C stops. "
        "Data is kept in $TURNWISE_HOME, else in .turnwise of this directory (of the checkout where there is one).",
    )
    try:
        from turnwise.run import add_arguments, run_command

        add_arguments(run)
        arguments = sys.argv[1:] if argv is None else argv
        if not arguments:
            parser.print_help()
            return 0
        return run_command(parser.parse_args(arguments))
    except ModuleNotFoundError as error:
        print(f'turnwise: {error.name} is not installed: pip install "turnwise[{EXTRAS}]"', file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
