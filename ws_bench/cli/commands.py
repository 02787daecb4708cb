"""The commands that make or read one result: `run`, `report`, `merge`."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from backend_kit.wire import dumps
from ws_bench.config.flags import RunConfig, parse_run_flags
from ws_bench.config.golang import Flags
from ws_bench.config.options import Outputs
from ws_bench.errors import UsageError
from ws_bench.load.run import run_load
from ws_bench.load.workers import run_workers
from ws_bench.record.recording import Recording, load_recording, merge_recordings
from ws_bench.record.summary import EXIT_INTERRUPTED, EXIT_OK, RunReport, build_report
from ws_bench.report.html import html_report
from ws_bench.report.report import (
    Style,
    config_recap,
    csv_text,
    detail_block,
    markdown_text,
    result_json,
    summary_block,
    write_file,
)

T = TypeVar("T")


def run_command(argv: list[str]) -> int:
    """`ws_bench run`: one load, its summary and its files. Raises `BenchError`."""
    config = parse_run_flags(argv)
    check_outputs(config.outputs)
    style, quiet = Style.of(sys.stdout), config.outputs.progress
    if not quiet:
        print(config_recap(config, style), end="", flush=True)
    recording = run_in_loop(lambda: make_recording(config, argv))
    if recording is None:
        return EXIT_INTERRUPTED
    report = build_report(recording)
    if not quiet:
        print_report(report, style)
    write_outputs(report, config.outputs)
    return report.exit_code


def report_command(argv: list[str]) -> int:
    """`ws_bench report RESULT.json`: print a result, or write it as HTML, Markdown or CSV. Raises `BenchError`."""
    flags = Flags("ws_bench report", "Show the result of a run again.")
    flags.parser.add_argument("result", help="file that `run -json` wrote")
    for name in ("html", "md", "csv"):
        flags.value(name, "", str.strip, "write it to this file")
    values = flags.parse(argv)
    outputs = Outputs(html=values.html, markdown=values.md, csv=values.csv)
    check_outputs(outputs)
    report = build_report(load_recording(values.result))
    if not outputs.files():
        print_report(report, Style.of(sys.stdout))
    write_outputs(report, outputs)
    return EXIT_OK


def merge_command(argv: list[str]) -> int:
    """`ws_bench merge A.json B.json`: several generators' results of one load as one.

    Raises `UsageError` for fewer than two results or for runs at different times, `BenchError` for a file.
    """
    flags = Flags("ws_bench merge", "Join the results of generators that ran at the same time.")
    flags.parser.add_argument("results", nargs="+", help="files that `run -json` wrote")
    for name in ("json", "html", "md", "csv"):
        flags.value(name, "", str.strip, "write the whole to this file")
    values = flags.parse(argv)
    if len(values.results) < 2:
        raise UsageError("merge needs at least two results")
    outputs = Outputs(json=values.json, html=values.html, markdown=values.md, csv=values.csv)
    check_outputs(outputs)
    report = build_report(merge_recordings([load_recording(path) for path in values.results]))
    print_report(report, Style.of(sys.stdout))
    write_outputs(report, outputs)
    return report.exit_code


async def make_recording(config: RunConfig, argv: Sequence[str]) -> Recording:
    """Carry out a run, in this process or in several. Raises `BenchError` if it cannot begin."""
    return await (run_workers(config, argv) if config.workers > 1 else run_load(config, argv))


def run_in_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Run a coroutine on a new uvloop. Returns None, after a message on stderr, if it is interrupted a second time."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("ws_bench: stopped at once, without a summary", file=sys.stderr)
        return None


def print_report(report: RunReport, style: Style) -> None:
    """Print the compatible summary and the details after it."""
    print(summary_block(report, style), end="")
    print(detail_block(report, style), end="", flush=True)


def check_outputs(outputs: Outputs) -> None:
    """Raise `UsageError` for a file that cannot be written, before the run instead of after it."""
    for flag, path in outputs.files().items():
        directory = Path(path).parent
        if not directory.is_dir():
            raise UsageError(f"-{flag}: no directory {str(directory)!r}")
        if not os.access(directory, os.W_OK):
            raise UsageError(f"-{flag}: cannot write into {str(directory)!r}")


def check_one_table(config: RunConfig) -> None:
    """For a command of several loads, which prints a table of its own and writes it as JSON: raise `UsageError` for
    what only one run shows, and for a file that cannot be written."""
    outputs, gates, observe = config.outputs, config.gates, config.observe
    of_a_run = (outputs.html, outputs.csv, outputs.markdown, gates.thresholds, gates.goodput, observe.postgres,
                observe.pids, config.verify_history)  # fmt: skip
    if any(of_a_run):
        raise UsageError(
            "-html, -md, -csv, -threshold, -goodput, -postgres, -watch-pid and -verify-history are for one run"
        )
    check_outputs(outputs)


def write_outputs(report: RunReport, outputs: Outputs) -> None:
    """Write the files that were asked for. Raises `BenchError`."""
    makers: dict[str, Callable[[], bytes]] = {
        "json": lambda: dumps(result_json(report)) + b"\n",
        "csv": lambda: csv_text(report).encode(),
        "html": lambda: html_report(report).encode(),
        "md": lambda: markdown_text(report).encode(),
    }
    for flag, path in outputs.files().items():
        write_file(path, makers[flag](), flag)
