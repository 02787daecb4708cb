"""What is pinned: the lock is that of pyproject.toml, and above the versions whose faults are known."""

import os
import shutil
import subprocess
import tomllib
from functools import cache
from typing import Any

import pytest
from packaging.version import Version

from tests.checks.source import ROOT

# docs/trust.md#G5: below these, faults in token checks (pyjwt), in checkpoints (langgraph) and in form parsing are
# known.
FLOORS = {
    "pyjwt": "2.13",
    "langgraph": "1.0.10",
    "langgraph-checkpoint": "4",
    "langgraph-checkpoint-postgres": "3",
    "python-multipart": "0.0.20",
}


@pytest.mark.parametrize("package", FLOORS)
def test_the_lock_is_above_the_floor(package: str) -> None:
    versions = [Version(entry["version"]) for entry in _locked() if entry["name"] == package]
    assert versions, f"{package} is not locked"
    assert min(versions) >= Version(FLOORS[package])


@cache
def _locked() -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return packages


@pytest.mark.servers
def test_the_lock_is_up_to_date() -> None:
    beside = ROOT / ".tools/uv/bin/uv"
    uv = os.environ.get("TURNWISE_UV") or shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is None:
        pytest.fail("no uv on PATH: run this through `make check`, which finds or installs one", pytrace=False)
    done = subprocess.run([uv, "lock", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
