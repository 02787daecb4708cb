"""Which commit runs: by the variable, by the checkout, or not known."""

import subprocess
from pathlib import Path

import pytest

from backend_kit.process import git_sha
from tests.support.processes import ROOT

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t")


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    git(place, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "one")
    return place


@pytest.mark.servers
def test_the_checkout_that_runs_these_tests_is_known() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("these tests do not run from a checkout")
    assert git_sha({}) == git(ROOT, "rev-parse", "HEAD")


@pytest.mark.servers
def test_a_commit_is_found_wherever_git_keeps_it(checkout: Path, tmp_path: Path) -> None:
    sha = git(checkout, "rev-parse", "HEAD")
    assert git_sha({}, checkout) == sha
    git(checkout, "pack-refs", "--all")
    assert git_sha({}, checkout) == sha
    worktree = tmp_path / "worktree"
    git(checkout, "worktree", "add", "-q", str(worktree), "-b", "part/one")
    git(worktree, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "two")
    other = git(worktree, "rev-parse", "HEAD")
    assert git_sha({}, worktree) == other != sha
    git(worktree, "checkout", "-q", "--detach", sha)
    assert git_sha({}, worktree) == sha


@pytest.mark.servers
def test_the_variable_wins_unless_it_does_not_know_either(checkout: Path) -> None:
    assert git_sha({"TURNWISE_GIT_SHA": "abc"}, checkout) == "abc"
    for nothing in ("", "unknown"):
        assert git_sha({"TURNWISE_GIT_SHA": nothing}, checkout) == git(checkout, "rev-parse", "HEAD")


def test_what_is_no_checkout_is_not_known(tmp_path: Path) -> None:
    assert git_sha({}, tmp_path) == "unknown"
    (tmp_path / ".git").mkdir()
    assert git_sha({}, tmp_path) == "unknown"
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/none\n")
    assert git_sha({}, tmp_path) == "unknown"
