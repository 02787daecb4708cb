"""The Makefile says what there is, and how it fails."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.checks.source import ROOT

pytestmark = pytest.mark.servers

TARGETS = (
    *(
        "help",
        "run",
        "keycloak",
        "opensearch",
        "test",
        "test-busy",
        "test-fast",
        "test-proxy",
        "test-late",
        "check",
        "wheel-test",
        "coverage",
        "mutants",
        "format",
        "lock",
    ),
    *(
        "bench",
        "bench-short",
        "bench-micro",
        "bench-turn",
        "bench-headline",
        "bench-ladder",
        "bench-matrix",
        "bench-acks",
        "bench-verdict",
        "bench-kpi",
        "bench-ingest",
        "bench-growth",
        "bench-memory",
        "bench-strangers",
        "bench-doors",
        "bench-langgraph",
        "bench-page",
        "bench-scale",
        "bench-tracing",
        "bench-truth",
        "doors-clients",
        "phoenix",
    ),
    *("profile", "eval", "chaos", "chaos-full", "chaos-mixed", "fuzz", "clean"),
)


def make(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **environment}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def toolchain(*arguments: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The script in a directory of its own, so that nothing touches the checkout's environment."""
    place = cwd / "deploy"
    place.mkdir(parents=True, exist_ok=True)
    script = place / "toolchain.sh"
    script.write_bytes((ROOT / "deploy/toolchain.sh").read_bytes())
    script.chmod(0o755)
    return subprocess.run(
        [script, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_help_is_the_default_and_names_every_target() -> None:
    done = make()
    assert done.returncode == 0
    assert tuple(re.findall(r"^  make (\S+) +\S", done.stdout, re.MULTILINE)) == TARGETS
    assert make("help").stdout == done.stdout


def test_no_target_is_taken_for_a_file() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert tuple(phony[1].split()) == TARGETS


def test_without_a_python_that_is_new_enough_it_says_what_to_install(tmp_path: Path) -> None:
    done = toolchain("sync", cwd=tmp_path, PYTHON="/bin/false")
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed (Debian: apt-get install python3 python3-venv)" in done.stderr


def test_a_uv_that_is_too_old_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "uv"
    old.write_text("#!/bin/sh\necho uv 0.8.22 '(of some day)'\n")
    old.chmod(0o755)
    done = toolchain("uv", "--version", cwd=tmp_path, UV=str(old))
    assert done.returncode == 1
    assert f"UV={old} is not uv 0.9 or newer" in done.stderr


def test_uv_gets_one_python_no_downloads_and_a_cache_it_can_write(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nif [ $1 = --version ]; then echo uv 1.2.3; else env; fi\n")
    uv.chmod(0o755)
    unwritable = {"UV_CACHE_DIR": "", "XDG_CACHE_HOME": "/proc/none", "HOME": ""}
    done = toolchain("uv", "say", cwd=tmp_path, UV=str(uv), UV_MANAGED_PYTHON="1", VIRTUAL_ENV="/other", **unwritable)
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert told["UV_PYTHON_DOWNLOADS"] == "never"
    assert told["UV_PYTHON_PREFERENCE"] == "only-system"
    assert Path(told["UV_PYTHON"]).is_absolute()
    assert told["UV_PROJECT_ENVIRONMENT"] == str(tmp_path / ".venv")
    assert told["UV_CACHE_DIR"] == str(tmp_path / ".tools/uv-cache")
    assert not {"UV_MANAGED_PYTHON", "VIRTUAL_ENV"} & told.keys()


def test_a_path_of_pythons_that_is_not_passed_on_is_said_once(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nif [ $1 = --version ]; then echo uv 1.2.3; else env; fi\n")
    uv.chmod(0o755)
    done = toolchain("uv", "say", cwd=tmp_path, UV=str(uv), PYTHONPATH="/my/agents")
    expected = "turnwise: PYTHONPATH is not passed on: agents are imported from ai.agents_path (./agents)\n"
    assert (done.returncode, done.stderr) == (0, expected)
    assert "PYTHONPATH" not in done.stdout
    assert toolchain("uv", "say", cwd=tmp_path, UV=str(uv), PYTHONPATH="").stderr == ""


def test_what_runs_gets_no_tools_of_development_and_what_has_them_keeps_them(tmp_path: Path) -> None:
    """Which `uv sync` each action asks for, one after the other in one checkout."""
    uv = tmp_path / "uv"
    uv.write_text(
        """#!/bin/sh
if [ "$1" = --version ]; then echo uv 1.2.3; exit; fi
echo "$@" >>"$UV_CALLS"
mkdir -p .venv/bin && ln -sf /bin/sh .venv/bin/python
"""
    )
    uv.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "uv.lock").touch()
    calls = tmp_path / "calls"
    seen = []
    for action in ("run", "run", "dev", "run", "dev"):
        calls.write_text("")
        done = toolchain(action, "true", cwd=tmp_path, UV=str(uv), UV_CALLS=str(calls))
        assert done.returncode == 0, done.stderr
        seen.append(calls.read_text().strip())
    sync = "sync --frozen --all-extras --compile-bytecode"
    assert seen == [sync.replace("extras", "extras --no-default-groups"), "", sync, "", ""]
    (tmp_path / "uv.lock").write_text("changed")
    toolchain("run", "true", cwd=tmp_path, UV=str(uv), UV_CALLS=str(calls))
    assert calls.read_text().strip() == sync  # a system that is developed on stays one


def test_the_makefile_runs_with_what_is_run_and_checks_with_the_tools() -> None:
    steps = dict(re.findall(r"^([a-z-]+): ##.*\n\t@(\$\(\w+\))", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {target for target, by in steps.items() if by == "$(RUN)"} == {"run", "keycloak", "opensearch"}
