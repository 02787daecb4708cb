"""Command line of the load tester; flags alone mean `run`, nothing at all the help.

Exit codes: 0 something succeeded and every gate held, 1 a gate or a comparison failed, 2 usage or preparation failed,
3 nothing succeeded, 130 interrupted.
"""

import asyncio
import contextlib
import importlib
import resource
import sys
from collections.abc import Sequence

import uvloop

from ws_bench.errors import BenchError, UsageError

_HELP = """usage: ws_bench [run] flags              load an agentic service (`ws_bench run -h` lists the flags)
       ws_bench sweep [flags]           the same load at several numbers of clients, as a table
       ws_bench find-knee [flags]       the highest rate of turns that the service holds
       ws_bench micro [flags]           what the smallest pieces of a client cost here, and of a service
       ws_bench ladder [flags]          what each layer of a turn costs, from a connection to a search
       ws_bench matrix [flags]          the same load over each combination of what a client can choose
       ws_bench profile [flags]         where the CPU of the service goes under a load
       ws_bench verdict [flags]         who bounds the service, at more and more clients
       ws_bench compare A.json B.json   better, worse or noise; exit 1 where worse
       ws_bench report RESULT.json      a result again, or as HTML, Markdown, CSV
       ws_bench merge A.json B.json     results of several generators as one
       ws_bench mock-llm [flags]        serve a fake OpenAI-compatible model
"""
_COMMANDS = {
    "run": ("ws_bench.cli.commands", "run_command"),
    "report": ("ws_bench.cli.commands", "report_command"),
    "merge": ("ws_bench.cli.commands", "merge_command"),
    "sweep": ("ws_bench.cli.sweep", "sweep_command"),
    "find-knee": ("ws_bench.cli.knee", "knee_command"),
    "micro": ("ws_bench.cli.micro", "micro_command"),
    "ladder": ("ws_bench.cli.ladder", "ladder_command"),
    "matrix": ("ws_bench.cli.matrix", "matrix_command"),
    "profile": ("ws_bench.cli.profile", "profile_command"),
    "verdict": ("ws_bench.cli.verdict", "verdict_command"),
    "compare": ("ws_bench.report.compare", "compare_command"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's) names. Returns its exit code, 2 for a `BenchError`."""
    words = list(sys.argv[1:] if argv is None else argv)
    command, rest = (words[0], words[1:]) if words and not words[0].startswith("-") else ("run", words)
    if not words or (rest in (["-h"], ["--help"], ["-help"]) and words == rest):
        print(_HELP, end="")
        return 0
    try:
        if command == "mock-llm":
            return _mock_llm(rest)
        if command not in _COMMANDS:
            raise UsageError(f"unknown command {command!r}\n{_HELP}".rstrip())
        _raise_file_limit()
        # Imported here, so that neither the fake model nor a run loads what only the other needs.
        module, function = _COMMANDS[command]
        code: int = getattr(importlib.import_module(module), function)(rest)
        return code
    except BenchError as failure:
        print(f"ws_bench: {failure}", file=sys.stderr)
        return 2


def _mock_llm(argv: list[str]) -> int:
    from ws_bench.fakes.mock_llm import parse_mock_flags, serve

    options = parse_mock_flags(argv)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options))
    return 0


def _raise_file_limit() -> None:
    """Raise the limit of open files: a client needs a socket, and many systems set a soft limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # A lower cap set by an administrator shows up later as an error class of its own.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
