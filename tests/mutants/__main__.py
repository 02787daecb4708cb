"""Plant each mistake in a copy of the tree and see that its test fails there: `python -m tests.mutants [words]`.

Exit code 0 when every mistake is caught and every named test passes without it. Words choose mutants by name.
"""

import compileall
import importlib.util
import itertools
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
_AT_ONCE = (os.cpu_count() or 1) + 1
"""One more than there are cores: each waits a part of its time for the servers that it starts."""
_OPTIONS = (
    *("-q", "--tb=no", "-rf"),
    # One that hangs is caught all the same, and sooner than a test that shares the machine with others may take.
    *("-o", "test_limit_s=120", "-o", "hang_grace_s=5"),
    *("-p", "no:cacheprovider"),
)


class StaleMutant(Exception):
    """The text that a mutant replaces is not there once: the code has changed, and the table must follow."""


def main(words: Sequence[str]) -> int:
    """Run the chosen mutants; the exit code."""
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="turnwise-mutants-") as place:
        os.chmod(place, 0o755)  # noqa: PTH101, S103 - Postgres may run as another user
        whole = copy_of_tree(ROOT, Path(place, "whole"))
        # Once for all: what a copy finds compiled it does not compile again, in each of its processes.
        compileall.compile_dir(whole, quiet=1, workers=0)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            without = pool.submit(failed_tests, whole, sorted({mutant.test for mutant in chosen}))
            places = (Path(place, str(number)) for number in range(len(chosen)))
            verdicts = list(pool.map(verdict, itertools.repeat(whole), places, chosen))
        if without.result() != set():
            print(f"not even without a mutant: {without.result() or 'the tests did not run'}")
            return 1
    for mutant, words_of in zip(chosen, verdicts, strict=True):
        print(f"{words_of or 'caught'}: {mutant.name}")
    alive = sum(bool(words_of) for words_of in verdicts)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants caught in {time.monotonic() - began:.0f} s")
    return 1 if alive or not chosen else 0


def verdict(whole: Path, place: Path, mutant: Mutant) -> str:
    """Empty where the mutant's test fails because of it, in a copy of the whole at `place`; else what happened."""
    tree = copy_of_tree(whole, place)
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
    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


def copy_of_tree(root: Path, place: Path) -> Path:
    """A copy of what the tests need, compiled where the other is."""
    place.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns(".*"))
        else:
            shutil.copy2(source, place / name)
    return place


def failed_tests(tree: Path, tests: list[str]) -> "set[str] | None":
    """Which of the tests fail in the tree, None where they could not be run."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, *tests], cwd=tree, capture_output=True, text=True, check=False
    )
    failed = set(re.findall(r"^FAILED (\S+)", run.stdout, re.MULTILINE))
    # Neither passed nor failed: an error before the test, or the end of the process.
    if run.returncode not in (0, 1) or (run.returncode == 1 and not failed):
        print(run.stdout[-2000:], run.stderr[-2000:], sep="\n")
        return None
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
