"""Branch coverage of the packages that must not lose a turn, held by the run of their tests: below 90 % it fails.

A plugin of pytest, `-p tests.coverage_gate`, so that .ci/run measures in its `make test`. As a program it runs the
measured tests alone; arguments go to pytest.
"""

import json
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage, CoverageData
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]

PACKAGES = (
    ("agentic_backend/session",),
    ("agentic_backend/fleet", "agentic_backend/peers"),
    ("agentic_backend/spool", "agentic_backend/persist"),
    ("agentic_backend/chat", "agentic_backend/rest"),
)
"""What has the floor together: routes are added, and the spool's file is written, in threads, which are not seen."""
TESTS = (
    "tests/agentic_backend/session",
    "tests/agentic_backend/fleet",
    "tests/agentic_backend/peers",
    "tests/agentic_backend/spool",
    "tests/agentic_backend/persist",
    "tests/agentic_backend/chat",
    "tests/agentic_backend/rest",
    "tests/integration/test_native.py",
    "tests/integration/test_compatible.py",
    "tests/integration/test_turns.py",
    "tests/integration/test_failures.py",
    "tests/integration/test_preferences.py",
    "tests/integration/test_feedback.py",
    "tests/integration/test_chat_metrics.py",
    "tests/integration/test_configuration_routes.py",
    "tests/integration/test_conversations.py",
    "tests/integration/test_kpi_routes.py",
    "tests/integration/test_usage.py",
    "tests/integration/test_human.py",
    "tests/integration/test_attachments.py",
    "tests/integration/test_created_agents.py",
    "tests/integration/test_images.py",
    "tests/integration/test_own_data.py",
    "tests/integration/test_pace.py",
    "tests/integration/test_shares.py",
)
"""Enough for the floor, and no more: every other test only adds to what is measured here.

The rest of the tests is not traced: it makes them slow, and their loops stall.
"""
FLOOR_PERCENT = 90.0


def import_all() -> None:
    """Import every module that is measured."""
    for package in chain(*PACKAGES):
        name = package.replace("/", ".")
        for found in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            import_module(found.name)


class Measurement:
    """What the measured tests reach in one process; in the one that hands tests to others, in all of these together."""

    def __init__(self) -> None:
        # Without greenlet, what runs below SQLAlchemy's asyncio bridge is not seen. With threads too, two of them that
        # end together can hang Python 3.11 for good: it enters the first callback of what the first one leaves again
        # and again, as long as the second waits to be cleaned up. So what runs in threads counts as not reached.
        # No settings but these, whatever lies in the tree.
        self._coverage = Coverage(
            data_file=None,
            config_file=False,
            branch=True,
            concurrency=["greenlet"],
            source=[str(ROOT / package) for package in chain(*PACKAGES)],
        )
        self._of_workers = CoverageData(no_disk=True)
        self._lines: list[str] = []
        # The first lines of a module run when it is imported: now, since a traced collection takes three times its CPU.
        self._coverage.start()
        import_all()
        self._coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace a measured test."""
        if not is_measured(item.nodeid):
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Take what a worker has measured; one that was killed has nothing to tell, and has failed the run."""
        data = CoverageData(no_disk=True)
        if told := getattr(node, "workeroutput", {}).get("coverage"):
            data.loads(told)
            self._of_workers.update(data)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Hand on what was measured, or judge it."""
        self._coverage.stop()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["coverage"] = self._coverage.get_data().dumps()
            return
        with tempfile.TemporaryDirectory(prefix="turnwise-coverage-") as place:
            data, report = Path(place, "data"), Path(place, "report.json")
            CoverageData(str(data)).update(self._of_workers or self._coverage.get_data())
            whole = Coverage(data_file=str(data), config_file=False)
            whole.load()
            whole.json_report(outfile=str(report))
            self._lines, enough = judged(json.loads(report.read_text())["files"])
        if not enough and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each group of packages."""
        terminalreporter.section("branch coverage")
        for line in self._lines:
            terminalreporter.line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before anything of ours is imported."""
    early_config.pluginmanager.register(Measurement(), "coverage_gate.measurement")


def is_measured(nodeid: str) -> bool:
    """Whether what this test reaches counts."""
    file = nodeid.partition("::")[0]
    return any(file == path or file.startswith(f"{path}/") for path in TESTS)


def judged(files: dict[str, Any]) -> tuple[list[str], bool]:
    """One line for each group of packages, with the unreached lines below it if it is under the floor; whether none is.

    `files` are those of coverage's JSON report.
    """
    lines, enough = [], True
    for packages in PACKAGES:
        inside = {name: file for name, file in files.items() if name.startswith(tuple(f"{one}/" for one in packages))}
        percent, named = percent_of(inside), ", ".join(packages)
        lines.append(f"{percent:6.2f} % of {named} ({len(inside)} files, at least {FLOOR_PERCENT:.0f} %)")
        if percent < FLOOR_PERCENT:
            enough = False
            for name, file in sorted(inside.items()):
                if missing := file["missing_lines"]:
                    lines.append(f"         {name}: lines {', '.join(map(str, missing))}")
    return lines, enough


def percent_of(files: dict[str, Any]) -> float:
    """Statements and branches that ran, of all there are; 0 where there is nothing, or the gate looks nowhere."""
    summaries = [file["summary"] for file in files.values()]
    there = sum(summary["num_statements"] + summary["num_branches"] for summary in summaries)
    ran = sum(summary["covered_lines"] + summary["covered_branches"] for summary in summaries)
    return 100.0 * ran / there if there else 0.0


def main(arguments: list[str]) -> int:
    """Run the measured tests; the exit code."""
    line = ("-m", "pytest", "-q", "-n", "auto", "-p", "tests.coverage_gate", *arguments, *TESTS)
    return subprocess.run([sys.executable, *line], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
