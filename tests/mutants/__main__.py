"""Plant each mistake in a copy of the tree and see that its test fails there: `python -m tests.mutants [words]`.

Exit code 0 when every mistake is caught and every named test passes without it. Words choose mutants by name.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("agentic_backend", "backend_kit", "deploy", "turnwise", "ws_bench", "docs", "tests", "pyproject.toml")
"""What the named tests need of the tree."""
_AT_ONCE = 2
_TEST_S = 120


class StaleMutant(Exception):
    """The text that a mutant replaces is not there once: the code has changed, and the table must follow."""


def main(words: Sequence[str]) -> int:
    """Run the chosen mutants; the exit code."""
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="turnwise-mutants-") as place:
        os.chmod(place, 0o755)  # noqa: PTH101, S103 - Postgres may run as another user
        whole = copy_of_tree(Path(place, "whole"))
        passed = failed_tests(whole, sorted({mutant.test for mutant in chosen}))
        if passed != set():
            print(f"not even without a mutant: {passed or 'the tests did not run'}")
            return 1
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            verdicts = list(pool.map(lambda pair: verdict(Path(place, str(pair[0])), pair[1]), enumerate(chosen)))
    for mutant, words_of in zip(chosen, verdicts, strict=True):
        print(f"{words_of or 'caught'}: {mutant.name}")
    alive = sum(bool(words_of) for words_of in verdicts)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants caught in {time.monotonic() - began:.0f} s")
    return 1 if alive or not chosen else 0


def verdict(place: Path, mutant: Mutant) -> str:
    """Empty where the mutant's test fails because of it, else what happened instead."""
    tree = copy_of_tree(place)
    try:
        plant(mutant, tree)
    except StaleMutant as error:
        return f"STALE ({error})"
    failed = failed_tests(tree, [mutant.test])
    shutil.rmtree(tree)
    if failed is None:
        return "BROKEN (the test did not run to its end)"
    return "" if failed == {mutant.test} else "SURVIVED"


def plant(mutant: Mutant, tree: Path) -> None:
    """Make the mistake. Raises `StaleMutant`."""
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise StaleMutant(f"its text stands {text.count(mutant.old)} times in {mutant.file}")
    file.write_text(text.replace(mutant.old, mutant.new))


def copy_of_tree(place: Path) -> Path:
    """A copy of what the tests need."""
    place.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(source, place / name)
    return place


def failed_tests(tree: Path, tests: list[str]) -> "set[str] | None":
    """Which of the tests fail in the tree, None where they could not be run."""
    options = ["-q", "--tb=no", "-rf", "-p", "no:cacheprovider", f"--timeout={_TEST_S}"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode not in (0, 1):
        print(run.stdout[-2000:], run.stderr[-2000:], sep="\n")
        return None
    return set(re.findall(r"^FAILED (\S+)", run.stdout, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
