"""The README does what it says: its examples run, its targets exist."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.support.patience import PATIENCE_S
from tests.support.service import RunningService

README = ROOT / "README.md"
DEFAULT_ADDRESS = "127.0.0.1:8000"


def run(block: Block, address: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run an example as a reader of the checkout would, at the address of the test's service."""
    text = block.text.replace(DEFAULT_ADDRESS, address)
    if block.language == "python":
        script = directory / "example.py"
        script.write_text(text)
        command = [sys.executable, str(script)]
    else:
        # The environment of the tests stands for .venv, wherever it is.
        command = ["bash", "-euc", text.replace(".venv/bin/python", f"'{sys.executable}'")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize("block", blocks(README, "test"), ids=lambda block: f"line-{block.line}-{block.language}")
async def test_an_example_runs_against_the_service(block: Block, service: RunningService, tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, block, f"127.0.0.1:{service.port}", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = (
        ("llm_invoke",) if block.language == "python" else ("Success: 60 (100.00%)", "turn p50: ", " 95 % within ")
    )
    assert [words for words in expected if words not in done.stdout] == [], done.stdout + done.stderr


def test_every_target_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:^|`|\s)make ([a-z-]+)\b", README.read_text(), re.MULTILINE))
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"run", "test"} <= named
    assert named <= known


def test_the_readme_names_every_package() -> None:
    packages = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    assert packages - {name for name in packages if f"{name}/" in README.read_text()} == set()
