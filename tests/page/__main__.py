"""Lints and type-checks the JavaScript of the pages, which is served as it is written.

    python -m tests.page

Installs what package-lock.json names into tests/page/node_modules (again only when that file changes), writes the types
of the protocol's frames, and runs ESLint and tsc side by side. Says what they say; exits with 1 where one finds
something or cannot run. Without Node it says so and exits with 0, or with 1 where TURNWISE_REQUIRE=all.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.checks.source import ROOT
from tests.page.frames import declarations
from tests.support.programs import PROGRAMS

PAGES = ("agentic_backend/web", "backend_kit/http/web")
OLDEST_NODE = (18, 18)
"""What ESLint asks for; Debian 12 has it."""
_HERE = Path("tests/page")
_INSTALL_S = 300.0
_CHECK_S = 300.0


def own_scripts(folder: Path) -> list[Path]:
    """The scripts below a folder, without those of other projects."""
    return [file for file in folder.rglob("*.js") if "vendor" not in file.relative_to(folder).parts]


class CannotCheckError(Exception):
    """The checkers cannot be installed or run; the text is for the person at the terminal."""


def missing_node() -> str | None:
    """What of Node is missing, or None where all of it is here."""
    absent = [program for program in ("node", "npm") if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} not found"
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    numbers = told.removeprefix("v").split(".")
    version = tuple(int(number) for number in numbers[:2] if number.isdigit())
    return (
        None
        if version >= OLDEST_NODE
        else f"node {told or 'does not run'}, older than {OLDEST_NODE[0]}.{OLDEST_NODE[1]}"
    )


def install(root: Path = ROOT, folder: Path = _HERE) -> None:
    """Brings node_modules in step with a folder's package-lock.json. Raises `CannotCheckError` where npm cannot."""
    here = root / folder
    stamp = here / "node_modules/.installed"
    wanted = hashlib.sha256((here / "package-lock.json").read_bytes()).hexdigest()
    with _alone(here):
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1"]
        command += ["--fetch-retry-mintimeout=1000"]
        try:
            done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
        except subprocess.TimeoutExpired as error:
            raise CannotCheckError(f"npm did not end within {_INSTALL_S:.0f} s") from error
        if done.returncode != 0:
            said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise CannotCheckError(f"npm cannot install what checks the pages: {_reason(said)}")
        stamp.write_text(wanted)


def check(root: Path = ROOT) -> list[str]:
    """What ESLint and tsc say about the pages under `root`, one text for each that finds something."""
    here = root / _HERE
    build = here / "build"
    build.mkdir(exist_ok=True)
    frames = build / "frames.d.ts"
    text = declarations(root / "docs/schema")
    if not frames.is_file() or frames.read_text() != text:
        frames.write_text(text)
    programs = {
        "eslint": ["eslint/bin/eslint.js", f"--config={_HERE}/eslint.config.js", "--max-warnings=0", *PAGES],
        "tsc": ["typescript/bin/tsc", "--project", str(_HERE)],
    }
    running = {
        name: subprocess.Popen(
            ["node", f"{_HERE}/node_modules/{program}", *arguments],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, (program, *arguments) in programs.items()
    }
    try:
        said = {name: process.communicate(timeout=_CHECK_S)[0].strip() for name, process in running.items()}
    except subprocess.TimeoutExpired as error:
        raise CannotCheckError(f"the checkers of the pages did not end within {_CHECK_S:.0f} s") from error
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    # Whatever the exit code: what exits with 0 has nothing to say.
    return [
        f"{name} (exit code {process.returncode})\n{said[name]}"
        for name, process in running.items()
        if process.returncode != 0 or said[name]
    ]


def main() -> int:
    """Checks this checkout; the exit code."""
    missing = missing_node()
    if missing is not None:
        required = os.environ.get("TURNWISE_REQUIRE") == "all"
        fate = "required by TURNWISE_REQUIRE=all" if required else "the pages were NOT checked"
        packages = next(program.packages for program in PROGRAMS if program.name == "node")
        print(f"pages: {missing}: {fate}; Debian: apt-get install {packages}")
        return int(required)
    started = time.monotonic()
    try:
        install()
        found = check()
    except CannotCheckError as error:
        print(f"pages: {error}")
        return 1
    print(*found, sep="\n\n", end="\n" if found else "")
    if not found:
        files = sum(len(own_scripts(ROOT / page)) for page in PAGES)
        print(f"pages: ESLint and tsc find nothing in {files} files ({time.monotonic() - started:.1f} s)")
    return int(bool(found))


def _reason(said: list[str]) -> str:
    """The line of npm's output that says why; its first one may be a mere code."""
    lines = [line.removeprefix("npm ERR! ").removeprefix("npm error ") for line in said]
    telling = [line for line in lines if not line.startswith(("code ", "errno ", "syscall ", "npm warn", "npm WARN"))]
    return (telling or lines or ["it does not say why"])[0]


@contextmanager
def _alone(here: Path) -> Iterator[None]:
    """One install at a time in a checkout."""
    (here / "build").mkdir(exist_ok=True)
    with (here / "build/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
