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
    new = commands.add_parser(
        "new",
        help="write a first agent: new agent NAME",
        description="Write agents/NAME.py, a first agent with a tool, tests/test_NAME.py, and a configuration with it, "
        "in this directory (in the checkout where there is one). Nothing is overwritten.",
    )
    key = commands.add_parser(
        "key",
        help="make, list and revoke API keys: key create NAME",
        description="Make, list and revoke API keys (docs/keys.md), in the database that the configuration names.",
    )
    doctor = commands.add_parser(
        "doctor",
        help="look at all that the configuration needs, and say what to do",
        description="Look at all that the configuration needs, from this machine: Postgres, the spool, models, the "
        "issuer, other services and instances, versions, clocks, limits. Prints a table. Exit code 0: all that is in "
        "use is ok or slow; 1: something is wrong or away; 2: no file says what to look at.",
    )
    try:
        from turnwise import doctor as of_doctor
        from turnwise import key as of_key
        from turnwise import new as of_new
        from turnwise import run as of_run

        for parser_of, module in ((run, of_run), (new, of_new), (key, of_key), (doctor, of_doctor)):
            module.add_arguments(parser_of)
            parser_of.set_defaults(run_command=module.run_command)
        arguments = sys.argv[1:] if argv is None else argv
        if not arguments:
            parser.print_help()
            return 0
        options = parser.parse_args(arguments)
        return int(options.run_command(options))
    except ModuleNotFoundError as error:
        print(f'turnwise: {error.name} is not installed: pip install "turnwise[{EXTRAS}]"', file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
