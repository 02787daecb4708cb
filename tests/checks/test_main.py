"""What `make check` runs."""

from tests.checks.__main__ import CHECKS


def test_format_lint_types_contracts_and_the_projects_own_are_checked() -> None:
    lines = [" ".join(check.command) for check in CHECKS]
    for tool in ("ruff format --check .", "ruff check .", "-m mypy", "lint-imports", "-m pytest -q tests/checks"):
        assert sum(line.endswith(tool) for line in lines) == 1, tool
