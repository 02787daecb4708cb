"""The command line: help, what is not installed, and where data and files are."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from turnwise import __main__ as command
from turnwise import home


def test_bare_it_prints_help_and_run_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert "run" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(flag in said for flag in ("--port", "--verbose", "--config-agentic", "--no-first-turn"))


@pytest.mark.servers
def test_what_is_not_installed_is_named_with_how_to(tmp_path: Path) -> None:
    """A wheel without its extras: psycopg is what the launcher would need first."""
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')")
    run = [sys.executable, "-m", "turnwise", "run"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    expected = 'turnwise: psycopg is not installed: pip install "turnwise[agentic,knowledge-flow,bench,local]"\n'
    assert (done.stdout, done.stderr) == ("", expected)


@pytest.mark.parametrize("port", ["http", "-1", "0", "65536"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", f"--port={port}"]) == 2
    assert capsys.readouterr().err.startswith(f"turnwise: PORT={port}: must be ")


def test_what_comes_with_the_code_is_found_in_a_checkout_and_in_a_wheel(tmp_path: Path) -> None:
    assert home.checkout() == home.resource_directory() == ROOT
    (tmp_path / "data").mkdir()
    assert home.checkout(tmp_path) is None
    assert home.resource_directory(tmp_path) == tmp_path / "data"
