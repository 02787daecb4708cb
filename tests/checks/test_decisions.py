"""Decision records: one page each, numbered without a gap, with the parts that make one."""

import re

from tests.checks.source import ROOT

PARTS = ("context", "decision", "consequences", "alternatives", "check")
DIRECTORY = ROOT / "docs/decisions"


def test_decisions_are_numbered_without_a_gap() -> None:
    names = sorted(file.name for file in DIRECTORY.glob("*.md"))
    assert names, "there is no decision record"
    badly_named = [name for name in names if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name)]
    assert badly_named == []
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_a_decision_says_what_else_there_was_and_which_check_guards_it() -> None:
    incomplete = []
    for file in sorted(DIRECTORY.glob("*.md")):
        headings = " ".join(re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)).lower()
        incomplete += [f"{file.name}: {part}" for part in PARTS if part not in headings]
    assert incomplete == []
