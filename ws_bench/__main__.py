"""Command line of the load tester: `ws_bench [run] flags…` and `ws_bench mock-llm flags…`.

Exit codes: 0 something succeeded, 2 usage or preparation failed, 3 nothing succeeded, 130 interrupted.
"""

import asyncio
import contextlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from ws_bench.errors import BenchError, UsageError

_HELP = """usage: ws_bench [run] [flags]      load an agentic service (`ws_bench run -h` lists the flags)
       ws_bench mock-llm [flags]   serve a fake OpenAI-compatible model (`ws_bench mock-llm -h`)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's) names; flags alone mean `run`. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command, rest = (words[0], words[1:]) if words and not words[0].startswith("-") else ("run", words)
    if rest in (["-h"], ["--help"], ["-help"]) and words == rest:
        print(_HELP, end="")
        return 0
    try:
        if command == "run":
            return _run(rest)
        if command == "mock-llm":
            return _mock_llm(rest)
        raise UsageError(f"unknown command {command!r}\n{_HELP}".rstrip())
    except BenchError as failure:
        print(f"ws_bench: {failure}", file=sys.stderr)
        return 2


def _run(argv: list[str]) -> int:
    # Imported here: the fake model must not wait for what only a run needs, nor the other way round.
    from backend_kit.wire import dumps
    from ws_bench.flags import parse_run_flags
    from ws_bench.report import EXIT_INTERRUPTED, Style, config_recap, detail_block, result_json, summary_block
    from ws_bench.run import run

    config = parse_run_flags(argv)
    target = Path(config.json_path) if config.json_path else None
    if target is not None and not target.parent.is_dir():
        raise UsageError(f"-json: no directory {str(target.parent)!r}")
    _raise_file_limit()
    style = Style.of(sys.stdout)
    print(config_recap(config, style), end="", flush=True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(run(config))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("ws_bench: stopped at once, without a summary", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(summary_block(config, report, style), end="")
    print(detail_block(report, style), end="", flush=True)
    if target is not None:
        try:
            target.write_bytes(dumps(result_json(config, report, argv)) + b"\n")
        except OSError as failure:
            raise BenchError(f"-json: cannot write {str(target)!r}: {failure.strerror}") from failure
    return report.exit_code


def _mock_llm(argv: list[str]) -> int:
    from ws_bench.fakes.mock_llm import parse_mock_flags, serve

    options = parse_mock_flags(argv)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options))
    return 0


def _raise_file_limit() -> None:
    """A socket a client: the soft limit of 1024 files that many systems set is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # An administrator's cap shows later as a named error class; it is no reason not to start.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
