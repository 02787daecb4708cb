"""docs/page.md: what the page can do has its test, and there is enough of it."""

import re

from tests.checks.source import ROOT

LEAST = 24
ROW = re.compile(r"^\| ([^|]+) \| (✓|\u2013) \| ([^|]*)\|$", re.MULTILINE)
NAMED = re.compile(r"`(browser/\w+\.py)::(\w+)`")


def test_each_feature_is_shown_by_tests_that_are_there() -> None:
    rows = ROW.findall((ROOT / "docs/page.md").read_text())
    assert len(rows) == 33
    shown = {feature: NAMED.findall(proof) for feature, mark, proof in rows if mark == "✓"}
    assert len(shown) >= LEAST
    assert [feature for feature, named in shown.items() if not named] == []
    texts = {file: (ROOT / "tests" / file).read_text() for named in shown.values() for file, _ in named}
    absent = [test for named in shown.values() for file, test in named if f"async def {test}(" not in texts[file]]
    assert absent == []
