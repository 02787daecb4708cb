"""Whatever the project's texts name is there: documents with their headings and rows, and decisions."""

from pathlib import Path

import pytest

from tests.checks.references import headings, sources, unresolved
from tests.checks.source import ROOT

PAGE = """# A page

## What holds, and for whom
## `limits` of [a socket](a.md)
## Twice
## Twice

| row | promise |
|---|---|
| E5 | one |
| E6 | two |

```
## no heading
[no link](nowhere.md)
```
"""


def test_every_reference_resolves() -> None:
    assert [reference for file in sources(ROOT) for reference in unresolved(file, ROOT)] == []


def test_texts_of_each_kind_are_looked_at() -> None:
    looked_at = {str(file.relative_to(ROOT)) for file in sources(ROOT)}
    assert {"Makefile", ".ci/run", "README.md", "docs/trust.md", "agentic_backend/web/protocol.js"} <= looked_at
    assert {"config/agentic/configuration.yaml", "docs/schema/native-server.schema.json"} <= looked_at


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one page and one decision."""
    (tmp_path / "docs/decisions").mkdir(parents=True)
    (tmp_path / "docs/page.md").write_text(PAGE)
    (tmp_path / "docs/decisions/0031-a-title.md").write_text("# 31. A title\n")
    return tmp_path


def test_anchors_are_those_of_github(project: Path) -> None:
    assert headings(project / "docs/page.md") == {
        "a-page",
        "what-holds-and-for-whom",
        "limits-of-a-socket",
        "twice",
        "twice-1",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code.py", "docs/page.md"),
        ("code.py", "docs/page.md#twice, and docs/page.md#E5: more"),
        ("code.py", "docs/page.md#E5 and E6"),
        ("code.js", "Decision 31, (ADR 31), decisions 31 and 31"),
        ("code.py", "'a/docs/x.md', 'trusted', 'MY_STYLE', 'METRICS[0]', WS BENCH SUMMARY"),
        ("docs/b.md", "[one](page.md#twice-1) [two](decisions/0031-a-title.md) [three](https://example.com/x.md#y)"),
        ("docs/b.md", "# B\n\n[here](#b)\n```\n[no link](nowhere.md)\n```\n"),
    ],
)
def test_what_is_there_passes(project: Path, name: str, text: str) -> None:
    (project / name).write_text(text)
    assert unresolved(project / name, project) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code.py", "# docs/missing.md"),
        ("code.py", "# docs/page.md#missing"),
        ("code.py", "# docs/page.md#no-heading"),
        ("code.py", "# docs/page.md#E7"),
        ("code.py", "# docs/page.md#E5 and E7"),
        ("code.js", "// docs/page.md#E5 to E7"),
        ("Makefile", "# README.md#missing"),
        ("code.py", "# decision 32"),
        ("code.py", "# ADRs 31 and 32"),
        ("docs/b.md", "[one](missing.md)"),
        ("docs/b.md", "[one](page.md#missing)"),
        ("docs/b.md", "[a row is no anchor of a link](page.md#E5)"),
        ("docs/b.md", "[one](#missing)"),
        ("docs/b.md", "[one](docs/page.md)"),
        ("code.py", "# CONTRACT §2"),
        ("code.py", "# (TRUST E5)"),
        ("code.py", "# STYLE rule 12, without a rule of ours"),
        ("code.py", "# METRICS.md"),
        ("code.py", "# BENCH.md"),
        ("code.py", "# ../shared/notes"),
    ],
)
def test_what_is_not_there_is_found(project: Path, name: str, text: str) -> None:
    (project / name).write_text(text)
    assert len(unresolved(project / name, project)) == 1
