"""`make check`: every check of the source, side by side: `python -m tests.checks`; exit code 1 where one fails."""

import sys
from pathlib import Path

from tests.support.side_by_side import Program, all_good

_BIN = Path(sys.executable).parent
CHECKS = (
    Program("types", (sys.executable, "-m", "mypy")),
    Program("the project's own checks", (sys.executable, "-m", "pytest", "-q", "tests/checks")),
    Program("the pages' JavaScript", (sys.executable, "-m", "tests.page")),
    Program("import contracts", (str(_BIN / "lint-imports"),)),
    Program("lint", (str(_BIN / "ruff"), "check", ".")),
    Program("format", (str(_BIN / "ruff"), "format", "--check", ".")),
)
"""The longest first: what is left for one core at the end is short."""


if __name__ == "__main__":
    sys.exit(0 if all_good(CHECKS) else 1)
