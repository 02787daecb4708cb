"""What the page's files are once they are served: the code that was written, without its comments, and small."""

import json
import subprocess

import pytest

from agentic_backend.rest.page import without_comments
from tests.checks.source import ROOT
from tests.page.__main__ import PAGES, install, own_scripts
from tests.page.served import MOST_FIRST_BYTES, first_load, needed

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


def test_the_first_load_is_small() -> None:
    """Without what is imported later; as the service compresses it, each file by itself."""
    scripts = needed()
    assert len(scripts) > 20
    assert not [file for file in scripts if "vendor" in file.parts]
    assert sum(first_load().values()) <= MOST_FIRST_BYTES
