"""What checks the pages finds what is wrong with them, and never stays silent where it cannot look."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checks.__main__ import CHECKS
from tests.checks.source import PACKAGES, ROOT
from tests.page.__main__ import PAGES, CannotCheckError, install, own_scripts
from tests.page.frames import declarations
from tests.support.ports import free_port

pytestmark = pytest.mark.servers

OWN = (
    *("tests/__init__.py", "tests/checks/__init__.py", "tests/checks/source.py"),
    *("tests/support/__init__.py", "tests/support/programs.py"),
    *(f"tests/page/{name}" for name in ("__init__.py", "__main__.py", "frames.py")),
    *(f"tests/page/{name}" for name in ("eslint.config.js", "package-lock.json", "swagger.d.ts", "tsconfig.json")),
)
EXPORTED = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
LINT_MISTAKES = {
    "agentic_backend/web/format.js": (
        "/** @param {unknown} some */\nexport function nothing(some) {\n  return some == null;\n}\n",
        "eqeqeq",
    ),
    "agentic_backend/web/places.js": ('el("p", {}, "Not in any catalogue");\n', "no-restricted-syntax"),
    "backend_kit/http/web/page.js": ("function tell() {\n  console.log(gate);\n}\ntell();\n", "no-console"),
}
TYPE_MISTAKES = {
    "agentic_backend/web/format.js": ("export function twice(value) {\n  return value * 2;\n}\n", "TS7006"),
    "agentic_backend/web/dom.js": ('el("input").files.length;\n', "possibly 'null'"),
    "agentic_backend/web/protocol.js": (
        "/** @param {Frames.delta} frame */\nexport function wordsOf(frame) {\n  return frame.words;\n}\n",
        "Property 'words' does not exist on type 'delta'",
    ),
    "backend_kit/http/web/page.js": ("trouble.hidden = 1;\n", "TS2322"),
}


def run(root: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What `make check` runs, in a checkout."""
    env = {**os.environ, **environment}
    command = [sys.executable, "-m", "tests.page"]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The pages and what checks them, in a place where they may be broken."""
    install()
    for name in OWN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    for name in (*PAGES, "docs/schema"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "tests/page/node_modules").symlink_to(ROOT / "tests/page/node_modules")
    return tmp_path


def plant(mistakes: dict[str, tuple[str, str]], root: Path) -> None:
    for name, (text, _) in mistakes.items():
        with (root / name).open("a") as file:
            file.write(text)


@pytest.mark.node
def test_the_pages_pass_and_each_kind_of_mistake_is_found(checkout: Path) -> None:
    done = run(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ESLint and tsc find nothing in" in done.stdout

    kept = {name: (checkout / name).read_text() for name in TYPE_MISTAKES | LINT_MISTAKES}
    plant(LINT_MISTAKES, checkout)
    done = run(checkout)
    assert done.returncode == 1
    assert re.findall(r"^(\w+) \(exit code", done.stdout, re.MULTILINE) == ["eslint"]
    assert [said for _, said in LINT_MISTAKES.values() if said not in done.stdout] == []

    for name, text in kept.items():
        (checkout / name).write_text(text)
    plant(TYPE_MISTAKES, checkout)
    done = run(checkout)
    assert done.returncode == 1
    assert "tsc (exit code" in done.stdout
    assert [said for _, said in TYPE_MISTAKES.values() if said not in done.stdout] == []


@pytest.mark.node
def test_pages_that_are_not_where_they_were_are_no_clean_pages(checkout: Path) -> None:
    shutil.rmtree(checkout / PAGES[1])
    done = run(checkout)
    assert done.returncode == 1
    assert PAGES[1] in done.stdout


@pytest.mark.node
def test_without_the_registry_it_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "tests/page"
    here.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(ROOT / "tests/page" / name, here / name)
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    with pytest.raises(CannotCheckError, match=r"npm cannot install what checks the pages: .*ECONNREFUSED") as raised:
        install(tmp_path)
    assert "\n" not in str(raised.value)


def test_without_node_it_says_that_the_pages_were_not_checked(tmp_path: Path) -> None:
    done = run(ROOT, PATH=str(tmp_path), TURNWISE_REQUIRE="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (
        "pages: node and npm not found: the pages were NOT checked; Debian: apt-get install nodejs npm\n"
    )


def test_without_node_it_fails_where_all_are_required(tmp_path: Path) -> None:
    (tmp_path / "npm").touch(mode=0o755)
    old = tmp_path / "node"
    old.write_text("#!/bin/sh\necho v16.20.2\n")
    old.chmod(0o755)
    done = run(ROOT, PATH=str(tmp_path), TURNWISE_REQUIRE="all")
    assert done.returncode == 1
    assert done.stdout == (
        "pages: node v16.20.2, older than 18.18: required by TURNWISE_REQUIRE=all; Debian: apt-get install nodejs npm\n"
    )


def test_make_check_looks_at_every_script_that_is_shipped() -> None:
    shipped = {file for name in PACKAGES for file in (ROOT / name).rglob("*.js")}
    vendored = set((ROOT / PAGES[0] / "vendor").rglob("*.js"))
    assert shipped - vendored == {file for page in PAGES for file in own_scripts(ROOT / page)}
    recipe = re.search(r"^check: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "\t@$(PYTHON) -m tests.checks\n"
    assert [check.command[1:] for check in CHECKS].count(("-m", "tests.page")) == 1


def test_nothing_is_exported_that_no_other_script_and_no_test_names() -> None:
    texts = {file: file.read_text() for page in PAGES for file in own_scripts(ROOT / page)}
    texts |= {file: file.read_text() for file in (ROOT / "tests/browser").rglob("*.py")}
    exported = [(file, name) for file, text in texts.items() for name in EXPORTED.findall(text)]
    assert len(exported) > 100
    named = {file: set(re.findall(r"\w+", text)) for file, text in texts.items()}
    idle = [name for file, name in exported if not any(name in named[other] for other in texts if other != file)]
    assert idle == []


def test_types_of_frames_say_what_the_schemas_say(tmp_path: Path) -> None:
    (tmp_path / "native-server.schema.json").write_text(
        """{"oneOf": [{"$ref": "#/$defs/pong"}], "$defs": {
            "pong": {"type": "object", "properties": {"type": {"const": "pong"}, "at": {"type": ["number", "null"]},
                                                              "data": {"description": "Open."}},
                     "required": ["type"], "additionalProperties": false},
            "Names": {"type": "array", "items": {"enum": ["a", "b"]}}}}"""
    )
    client = tmp_path / "native-client.schema.json"
    client.write_text("""{"oneOf": [{"$ref": "#/$defs/open"}], "$defs": {"open": {"type": "object"}}}""")
    assert declarations(tmp_path).splitlines() == [
        "declare namespace Frames {",
        '  type pong = { "type": "pong"; "at"?: number | null; "data"?: unknown; };',
        '  type Names = ("a" | "b")[];',
        "  type FromServer = pong;",
        "  type open = { [key: string]: unknown; };",
        "  type FromClient = open;",
        "}",
    ]
    client.write_text("""{"oneOf": [{"$ref": "#/$defs/pong"}], "$defs": {"pong": {"type": "string"}}}""")
    with pytest.raises(ValueError, match="pong means one thing"):
        declarations(tmp_path)
