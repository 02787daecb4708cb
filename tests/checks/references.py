"""What texts of the project name (documents, headings, rows, decisions), and whether it is there.

In Markdown a link is followed as a browser would: relative to its page, to a heading. Anywhere a document is named from
the root, `docs/trust.md#E5`: the anchor is a heading or the first cell of a table's row, and further rows may follow
(`#D5 and D8`). A decision is named by its number.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.checks.source import PACKAGES

_FOLDERS = (*PACKAGES, ".ci", "config", "docs", "tests")
_ENDINGS = {".css", ".html", ".js", ".json", ".md", ".mjs", ".py", ".sh", ".toml", ".ts", ".yaml", ".yml"}
_NOT_OURS = {"__pycache__", "node_modules"}

_DOCUMENT = re.compile(
    r"(?<![\w./-])(?P<path>(?:docs/[\w./-]+|README|SECURITY)\.md)"
    r"(?:#(?P<anchor>[\w-]+)(?P<more>(?:(?:,| and| to) [A-Z]\d+\b)*))?"
)
_DECISION = re.compile(r"\b(?:[Dd]ecisions?|ADRs?) (\d+(?:(?:, | and )\d+)*)\b")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| ([A-Z]\d+) \|", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(
    r"\b(?:CONTRACT|COSTS|DESIGN|TRUST)\b|\b(?:BENCH|COMPONENTS|METRICS|MOVES|STYLE)(?:\.md| §| rule)|\.\./shared\b"
)
"""Documents that are not in the repository."""


def sources(root: Path) -> Iterator[Path]:
    """Every text of the project but this check's own, which name what must not be named."""
    files = [file for folder in _FOLDERS for file in sorted((root / folder).rglob("*"))]
    for file in (*files, *sorted(root.iterdir())):
        named = file.suffix in _ENDINGS or file.name in ("Makefile", "run") or file.name.startswith("Dockerfile")
        own = file.parent.name == "checks" and file.stem in ("references", "test_references")
        if named and not own and not _NOT_OURS & set(file.relative_to(root).parts) and file.is_file():
            yield file


def unresolved(file: Path, root: Path) -> list[str]:
    """`file: reference` of everything that a file names and that is not there."""
    text = file.read_text()
    found = [*_documents(text, root), *_decisions(text, root), *_ELSEWHERE.findall(text)]
    if file.suffix == ".md":
        found += _links(_FENCE.sub("", text), file)
    return [f"{file.relative_to(root)}: {reference}" for reference in found]


def _documents(text: str, root: Path) -> Iterator[str]:
    for match in _DOCUMENT.finditer(text):
        page = root / match["path"]
        anchors = {match["anchor"], *re.findall(r"\w\d+", match["more"])} if match["anchor"] else set()
        if not page.is_file() or not anchors <= headings(page) | rows(page):
            yield match[0]


def _decisions(text: str, root: Path) -> Iterator[str]:
    for match in _DECISION.finditer(text):
        if not all(any((root / "docs/decisions").glob(f"{int(n):04}-*.md")) for n in re.findall(r"\d+", match[1])):
            yield match[0]


def _links(text: str, page: Path) -> Iterator[str]:
    for path, anchor in _LINK.findall(text):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in headings(target))):
            yield f"({path}{'#' * bool(anchor)}{anchor})"


@cache
def headings(page: Path) -> frozenset[str]:
    """The anchors that GitHub makes of a page's headings."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(anchors)


@cache
def rows(page: Path) -> frozenset[str]:
    """The ids that stand in the first cell of a page's tables: a letter and a number."""
    return frozenset(_ROW.findall(page.read_text()))
