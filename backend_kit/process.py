"""The first steps of a service's process: arguments, log, settings, and which commit it runs. Imports nothing heavy."""

import argparse
import gc
import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from backend_kit.settings import ServiceSettings, load_or_exit

S = TypeVar("S", bound=ServiceSettings)
VARIABLE: Final = "TURNWISE_GIT_SHA"
UNKNOWN: Final = "unknown"
_ROOT: Final = Path(__file__).parents[1]
_SHA: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def arguments(package: str, description: str) -> argparse.ArgumentParser:
    """The parser of `python -m package`, which a service may add to."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    parser.add_argument("--check", action="store_true", help="only say whether the configuration can be used")
    return parser


def configure(model: type[S], *, check: bool, speaker: str = "") -> S:
    """Open the log on stderr and load the settings; each line of the log begins with `speaker`.

    Raises SystemExit: 2 for unusable settings, 0 after a successful `check`.
    """
    _keep_nothing_unwritten()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s %(name)s {speaker}%(message)s")
    settings = load_or_exit(model)
    if check:
        raise SystemExit(0)
    logging.getLogger().setLevel(settings.app.log_level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)  # we log the schema's revision ourselves
    return settings


def _keep_nothing_unwritten() -> None:
    """Have stderr drop what a full disk does not take: the interpreter would try once more at its end, and exit with
    120 whatever the service exits with."""
    stderr = sys.stderr
    if stderr is sys.__stderr__ and stderr is not None:
        raw = io.FileIO(stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(raw, stderr.encoding, stderr.errors, line_buffering=True, write_through=True)


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pause garbage collection during imports: they leave no garbage, and the search takes a twelfth of their time."""
    gc.disable()
    yield
    gc.enable()


def git_sha(environ: Mapping[str, str] | None = None, root: Path = _ROOT) -> str:
    """The commit by TURNWISE_GIT_SHA, else the one that is checked out in `root`; `unknown` for an installed package.

    Reads git's files and runs no program: a service may start where there is none.
    """
    said = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
    if said and said != UNKNOWN:
        return said
    try:
        return _checked_out(root / ".git") or UNKNOWN
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


def _checked_out(place: Path) -> str | None:
    if place.is_file():  # a worktree: the file says where its directory is
        place = place.parent / place.read_text().removeprefix("gitdir:").strip()
    head = (place / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _sha(head)
    name = head.removeprefix("ref:").strip()
    common = place / "commondir"
    places = [place, place / common.read_text().strip()] if common.exists() else [place]
    for where in places:
        if (where / name).is_file():
            return _sha((where / name).read_text())
    packed = places[-1] / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((_sha(line) for line in lines if line.endswith(f" {name}")), None)


def _sha(text: str) -> str | None:
    found = _SHA.match(text)
    return found.group() if found else None
