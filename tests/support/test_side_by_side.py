"""What runs side by side is told apart, and no failure is lost among the others."""

import re
import sys

import pytest

from tests.support.side_by_side import Program, all_good

pytestmark = pytest.mark.servers


def program(name: str, code: str, **env: str) -> Program:
    return Program(name, (sys.executable, "-c", code), env)


def test_what_one_writes_stays_together(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import os, sys\nfor file in 50 * [sys.stdout, sys.stderr]: print(os.environ['W'], file=file, flush=True)"
    assert all_good([program("a", code, W="aa"), program("b", code, W="bb")])
    told = capsys.readouterr().out
    assert "\n".join(["aa"] * 100) in told
    assert "\n".join(["bb"] * 100) in told
    assert told.endswith("2 of 2 are ok\n")


def test_one_failure_is_the_failure_of_all_and_the_others_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    bad = program("bad", "print('found'); raise SystemExit(3)")
    assert not all_good([bad, *(program(f"good {number}", "print('fine')") for number in range(3))])
    told = capsys.readouterr().out
    assert re.search(r"^== bad: FAILED \(3\), \d+ s\nfound$", told, re.MULTILINE)
    assert len(re.findall(r"^== good \d: ok, \d+ s\nfine$", told, re.MULTILINE)) == 3
    assert told.endswith("FAILED: bad\n")


def test_a_missing_program_and_no_program_at_all_are_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert not all_good([Program("gone", ("/nowhere/program",))])
    assert "== gone: FAILED (127)" in capsys.readouterr().out
    assert not all_good([])
