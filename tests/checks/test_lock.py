"""What is pinned: the lock is that of pyproject.toml, above the versions whose faults are known, and a library whose
private or undocumented parts we use has an upper bound."""

import os
import re
import shutil
import subprocess
import tomllib
from functools import cache
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.checks.source import ROOT
from tests.contracts.table import CONTRACTS, PYTHON

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


USERS = {
    library: {module for one in CONTRACTS if one.library == library for module in one.uses}
    for library in {one.library for one in CONTRACTS} - {PYTHON}
}
"""By library: the modules of ours that use more of it than it promises."""
_DEPENDENCY = re.compile(r' *"([a-z][^"]*)",')


@pytest.mark.parametrize("library", sorted(USERS))
def test_a_library_that_we_use_beyond_its_promises_has_an_upper_bound(library: str) -> None:
    """Wherever it is asked for; the comment above one of these places names the files of ours that stand on it."""
    asked = [(requirement, comment) for requirement, comment in _asked_for() if requirement.name == library]
    assert asked, f"{library} is not in pyproject.toml"
    (version,) = (entry["version"] for entry in _locked() if entry["name"] == library)
    major, *_ = Version(version).release
    for requirement, _ in asked:
        assert requirement.specifier.contains(version)
        assert not requirement.specifier.contains(f"{major + 1}.0")
    named = {path for _, comment in asked for path in re.findall(r"[\w/]+\.py", comment)}
    assert named == {f"{module.replace('.', '/')}.py" for module in USERS[library]}


def _asked_for() -> list[tuple[Requirement, str]]:
    """What the project asks for, with and without its extras, each with the comment above it."""
    text, _, _ = (ROOT / "pyproject.toml").read_text().partition("[dependency-groups]")
    found: list[tuple[Requirement, str]] = []
    comment = ""
    for line in text.splitlines():
        if dependency := _DEPENDENCY.match(line):
            found.append((Requirement(dependency[1]), comment))
        comment = f"{comment} {line}" if line.lstrip().startswith("#") else ""
    return found


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
