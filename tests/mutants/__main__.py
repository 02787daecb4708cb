"""Plant each mistake in a copy of the tree and see that its test fails there: `python -m tests.mutants [words]`.

Exit code 0 when every mistake is caught and every named test passes without it. Words choose mutants by name.
"""

import compileall
import importlib.util
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.table import MUTANTS, Mutant
from tests.support.fork_server import TEST_LIBRARIES, ForkServer
from tests.support.patience import HANGS_S

ROOT = Path(__file__).parents[2]
COPIED = ("agentic_backend", "backend_kit", "deploy", "turnwise", "ws_bench", "docs", "tests", "pyproject.toml")
"""What the named tests need of the tree."""
_AT_ONCE = (os.cpu_count() or 1) + 1
"""One more than there are cores: each waits a part of its time for the servers that it starts."""
_OPTIONS = (
    *("-q", "--tb=short", "-rfE"),
    # One that hangs is caught all the same, and sooner than a test that shares the machine with others may take.
    *("-o", "test_limit_s=120", "-o", "hang_grace_s=5"),
    *("-p", "no:cacheprovider"),
    # Of plugins that the fork server has imported: no test looks into their assertions.
    *("-W", "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"),
)
_FORKS = ForkServer(*TEST_LIBRARIES)
"""A test's imports cost as much as most of the tests do."""


class StaleMutant(Exception):
    """The text that a mutant replaces is not there once: the code has changed, and the table must follow."""


def main(words: Sequence[str]) -> int:
    """Run the chosen mutants; the exit code."""
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    began = time.monotonic()
    # Not ended by what a mutant's servers still write there, as the tests' own directories would not be.
    with tempfile.TemporaryDirectory(prefix="turnwise-mutants-", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)  # noqa: PTH101, S103 - Postgres may run as another user
        whole = copy_of_tree(ROOT, Path(place, "whole"))
        # Once for all: what a copy finds compiled it does not compile again, in each of its processes.
        compileall.compile_dir(whole, quiet=1, workers=0)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            without = pool.submit(failed_tests, whole, sorted({mutant.test for mutant in chosen}))
            places = (Path(place, str(number)) for number in range(len(chosen)))
            verdicts = list(pool.map(verdict, itertools.repeat(whole), places, chosen))
        _FORKS.stop()
        failed, said = without.result()
        if failed != set():
            print(f"{said}\nnot even without a mutant: {failed or 'the tests did not run'}")
            return 1
    # Those that nothing caught come last: of a long run somebody may see the end alone.
    for mutant, words_of in sorted(zip(chosen, verdicts, strict=True), key=lambda one: bool(one[1])):
        print(f"{words_of or 'caught'}: {mutant.name}")
    alive = sum(bool(words_of) for words_of in verdicts)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants caught in {time.monotonic() - began:.0f} s")
    return 1 if alive or not chosen else 0


def verdict(whole: Path, place: Path, mutant: Mutant) -> str:
    """Empty where the mutant's test fails because of it, in a copy of the whole at `place`; else what happened."""
    tree = copy_of_tree(whole, place, os.link)
    try:
        plant(mutant, tree)
    except StaleMutant as error:
        return f"STALE ({error})"
    failed, said = failed_tests(tree, [mutant.test])
    shutil.rmtree(tree)
    if failed == {mutant.test}:
        return ""
    return f"{said}\n{'BROKEN (the test did not run to its end)' if failed is None else 'SURVIVED'}"


def plant(mutant: Mutant, tree: Path) -> None:
    """Make the mistake. Raises `StaleMutant`."""
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise StaleMutant(f"its text stands {text.count(mutant.old)} times in {mutant.file}")
    file.unlink()  # the others' copies are links to it
    file.write_text(text.replace(mutant.old, mutant.new))
    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


def copy_of_tree(root: Path, place: Path, copy: Callable[[str, str], object] = shutil.copy2) -> Path:
    """A copy of what the tests need, compiled where the other is; `copy` makes each of its files."""
    place.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            ignored = shutil.ignore_patterns(".*", "node_modules")
            shutil.copytree(source, place / name, ignore=ignored, copy_function=copy)
        else:
            copy(str(source), str(place / name))
    return place


def failed_tests(tree: Path, tests: list[str]) -> "tuple[set[str] | None, str]":
    """Which of the tests fail in the tree, None where they could not be run; and the end of what pytest said."""
    # Runs that share pytest's own directory remove each other's old ones when they end, and one may fail at that.
    temporary = f"--basetemp={tree.with_name(f'{tree.name}-tmp')}"
    run = _FORKS.start("pytest", [*_OPTIONS, temporary, *tests], os.environ, tree)
    with run.stdout as stream:
        said = stream.read()
    code = run.wait(HANGS_S)
    failed = set(re.findall(r"^FAILED (\S+)", said, re.MULTILINE))
    told = f"{said[-4000:]}\nexit code {code}"
    # Neither passed nor failed: an error before the test, or the end of the process.
    if code not in (0, 1) or (code == 1 and not failed):
        return None, told
    return failed, told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
