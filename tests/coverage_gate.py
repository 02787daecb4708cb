"""Branch coverage of the packages that must not lose a turn: `python -m tests.coverage_gate`, exit code 1 below 90 %.

Runs the tests of these packages, and of the service that reach them most, under coverage. Arguments go to pytest.
"""

import json
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from tests.support.side_by_side import Program, all_good

PACKAGES = (
    ("agentic_backend/session",),
    ("agentic_backend/fleet", "agentic_backend/peers"),
    ("agentic_backend/spool", "agentic_backend/persist"),
    ("agentic_backend/chat", "agentic_backend/rest"),
)
"""What has the floor together: routes are added, and the spool's file is written, in threads, which are not seen."""
TESTS = (
    (
        "tests/agentic_backend/session",
        "tests/agentic_backend/fleet",
        "tests/agentic_backend/peers",
        "tests/integration/test_native.py",
        "tests/integration/test_compatible.py",
    ),
    (
        "tests/agentic_backend/spool",
        "tests/agentic_backend/persist",
        "tests/integration/test_turns.py",
        "tests/integration/test_failures.py",
    ),
    (
        "tests/agentic_backend/chat",
        "tests/agentic_backend/rest",
        "tests/integration/test_preferences.py",
        "tests/integration/test_feedback.py",
        "tests/integration/test_chat_metrics.py",
        "tests/integration/test_configuration_routes.py",
    ),
    (
        "tests/integration/test_conversations.py",
        "tests/integration/test_kpi_routes.py",
        "tests/integration/test_human.py",
        "tests/integration/test_attachments.py",
        "tests/integration/test_created_agents.py",
    ),
)
"""Enough for the floor, and no more: every other test only adds to what is measured here.

One process a group, two at once for each core, since a test mostly waits for its servers; the fewer services one heap
has seen, the shorter are its garbage collections.
"""
WITHOUT = (
    "tests/agentic_backend/persist/test_outage.py",
    "tests/agentic_backend/persist/test_schema.py",
    "tests/agentic_backend/spool/test_full_disk.py",
    "tests/agentic_backend/spool/test_pooler.py",
)
"""Tests of outages and migrations, which take long and reach little that the others do not."""
EXAMPLES = "examples=10"
"""Of a property: more of them reach what the first ones have reached."""
FLOOR_PERCENT = 90.0


def main(arguments: list[str]) -> int:
    """Run, measure, tell; the exit code."""
    with tempfile.TemporaryDirectory(prefix="turnwise-coverage-", ignore_cleanup_errors=True) as place:
        data, report = Path(place, "data"), Path(place, "report.json")
        ignored = [f"--ignore={path}" for path in WITHOUT]
        groups = []
        for number, group in enumerate(TESTS):
            # A directory each: runs that share pytest's own remove each other's old ones, and one may fail at that.
            pytest = ("pytest", "-q", "-o", EXAMPLES, f"--basetemp={Path(place, str(number))}")
            more = (*arguments, *group, *ignored)
            groups.append(_coverage(f"coverage of {', '.join(group)}", data, "run", *_RUN, "-m", *pytest, *more))
        if not all_good(groups, each_core=2):
            return 1
        combined = _coverage("combine", data, "combine", "-q")
        if not all_good([combined]) or not all_good([_coverage("report", data, "json", "-q", "-o", str(report))]):
            return 1
        return tell(json.loads(report.read_text())["files"])


def tell(files: dict[str, Any]) -> int:
    """One line for each group of packages, the unreached lines below it if it is under the floor; the exit code."""
    failed = 0
    for packages in PACKAGES:
        inside = {name: file for name, file in files.items() if name.startswith(tuple(f"{one}/" for one in packages))}
        percent, named = percent_of(inside), ", ".join(packages)
        print(f"{percent:6.2f} % branch coverage of {named} ({len(inside)} files, at least {FLOOR_PERCENT:.0f} %)")
        if percent < FLOOR_PERCENT:
            failed = 1
            for name, file in sorted(inside.items()):
                if missing := file["missing_lines"]:
                    print(f"         {name}: lines {', '.join(map(str, missing))}")
    return failed


def percent_of(files: dict[str, Any]) -> float:
    """Statements and branches that ran, of all there are; 0 where there is nothing, or the gate looks nowhere."""
    summaries = [file["summary"] for file in files.values()]
    there = sum(summary["num_statements"] + summary["num_branches"] for summary in summaries)
    ran = sum(summary["covered_lines"] + summary["covered_branches"] for summary in summaries)
    return 100.0 * ran / there if there else 0.0


# Without greenlet, what runs below SQLAlchemy's asyncio bridge is not seen. With threads too, two of them that end
# together can hang Python 3.11 for good: it enters the first callback of what the first one leaves again and again, as
# long as the second waits to be cleaned up. So what runs in threads counts as not reached.
_RUN = ("--parallel-mode", "--branch", "--concurrency=greenlet", f"--source={','.join(chain.from_iterable(PACKAGES))}")


def _coverage(name: str, data: Path, command: str, *arguments: str) -> Program:
    # No settings but these, whatever lies in the tree.
    line = (sys.executable, "-m", "coverage", command, "--rcfile=/dev/null", *arguments)
    return Program(name, line, {"COVERAGE_FILE": str(data)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
