"""What the tests of the documents read: fenced blocks with the mark before them, and tables."""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).parents[2]

STEPS = ("run", "file", "add", "start")
_BLOCK = re.compile(
    r"^<!-- (?P<mark>[a-z]+): (?P<name>[\w./-]+) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block after a comment `<!-- mark: name -->`, and the line on which its text begins."""

    mark: str
    name: str
    language: str
    text: str
    line: int


def blocks(page: Path, mark: str) -> list[Block]:
    """The marked blocks of a page. A mark that no fence follows is a mistake."""
    text = page.read_text()
    found = [
        Block(
            match["mark"], match["name"], match["language"], match["text"], text.count("\n", 0, match.start("text")) + 1
        )
        for match in _BLOCK.finditer(text)
        if match["mark"] == mark
    ]
    assert len(found) == text.count(f"<!-- {mark}: "), f"{page}: a mark without a block"
    assert found, f"{page}: no block is marked {mark}"
    return found


def steps(page: Path) -> list[Block]:
    """What a reader does who follows a page, in order: the blocks marked `run` (a command to its end), `file` (save it
    under this name), `add` (an entry for the list of that name in `agentic.yaml`) and `start` (what runs until
    Ctrl-C)."""
    return sorted((block for mark in STEPS for block in blocks(page, mark)), key=lambda block: block.line)


def do(step: Block, folder: Path) -> None:
    """Save a file, or add an entry to the configuration, as a reader would."""
    file = folder / (step.name if step.mark == "file" else "agentic.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    if step.mark == "file":
        file.write_text(step.text)
        return
    key, text = f"\n  {step.name}:\n", file.read_text()
    assert text.count(key) == 1, f"{file}: no place for an entry of {step.name}"
    file.write_text(text.replace(key, key + indent(step.text, "    ")))


def table(page: Path, *heading: str) -> list[list[str]]:
    """The rows of the table under these headings, cells without backticks around them."""
    lines = iter(page.read_text().splitlines())
    rows: list[list[str]] = []
    for line in lines:
        if _cells(line) == list(heading):
            next(lines)  # the rule below the headings
            for row in lines:
                if not row.startswith("|"):
                    break
                rows.append(_cells(row))
    assert rows, f"{page}: no table with {heading}"
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
