"""The commit that runs: named by the build of the service, else read from the checkout."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "TURNWISE_GIT_SHA"
UNKNOWN: Final = "unknown"
_ROOT: Final = Path(__file__).parents[1]
_SHA: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


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
