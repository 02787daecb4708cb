"""What the page's files are once they are served: the code that was written, without its comments, and small."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest

from agentic_backend.rest.page import WEB, without_comments
from tests.checks.source import ROOT
from tests.page.__main__ import PAGES, install, own_scripts

MOST_FIRST_BYTES = 120 * 1024
IMPORTED = re.compile(r"^(?:import|export)\b[^\"'()]*?[\"'](\.[^\"']+)[\"']", re.MULTILINE)
PARSE = """
const { parse } = require("espree");
const sources = JSON.parse(require("fs").readFileSync(0, "utf8"));
const options = { ecmaVersion: 2024, sourceType: "module", loc: true };
const told = (source) => JSON.stringify(parse(source, options), (name, value) => {
  return ["start", "end", "column"].includes(name) ? undefined : value;
});
const differ = Object.entries(sources).filter(([, [written, served]]) => told(written) !== told(served));
process.stdout.write(JSON.stringify(differ.map(([name]) => name)));
"""


@pytest.mark.node
def test_served_scripts_are_the_code_that_was_written_line_by_line() -> None:
    install()
    sources = {
        str(file): (file.read_text(), without_comments(file.read_text())) for file in own_scripts(ROOT / PAGES[0])
    }
    assert any(written != served for written, served in sources.values())
    modules = ROOT / "tests/page/node_modules"
    done = subprocess.run(
        ["node", "-e", PARSE],
        cwd=modules,
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []


def test_comments_go_and_lines_stay() -> None:
    source = '/** Doc.\n * More. */\nconst a = 1; // why\n  // alone\n  /* x */\nconst b = "/* no */";\n'
    assert without_comments(source) == '\n\nconst a = 1; // why\n\n\nconst b = "/* no */";\n'


def needed(script: Path, seen: set[Path]) -> set[Path]:
    """A script and all that it imports at once."""
    if script not in seen:
        seen.add(script)
        for name in IMPORTED.findall(script.read_text()):
            needed((script.parent / name).resolve(), seen)
    return seen


def test_the_first_load_is_small() -> None:
    """Without what is imported later; as the service compresses it, each file by itself."""
    scripts = needed(WEB / "app.js", set())
    assert len(scripts) > 20
    assert not [file for file in scripts if "vendor" in file.parts]
    texts = [without_comments(file.read_text()) for file in (*scripts, WEB / "style.css")]
    texts += [(WEB / name).read_text() for name in ("index.html", "icon.svg")]
    assert sum(len(gzip.compress(text.encode(), 4)) for text in texts) <= MOST_FIRST_BYTES
