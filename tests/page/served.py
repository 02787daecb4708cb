"""What a browser fetches when the page is opened, and how large it is as the service sends it.

python -m tests.page.served
"""

import gzip
import re
import sys
from pathlib import Path

from agentic_backend.rest.page import WEB, without_comments

MOST_FIRST_BYTES = 120 * 1024
_GZIP_LEVEL = 4
"""That of the service's answers."""
_IMPORTED = re.compile(r"^(?:import|export)\b[^\"'()]*?[\"'](\.[^\"']+)[\"']", re.MULTILINE)


def needed(script: Path = WEB / "app.js", seen: set[Path] | None = None) -> set[Path]:
    """A script and all that it imports at once."""
    found = set() if seen is None else seen
    if script not in found:
        found.add(script)
        for name in _IMPORTED.findall(script.read_text()):
            needed((script.parent / name).resolve(), found)
    return found


def first_load(*, comments: bool = False) -> dict[str, int]:
    """Bytes of each file of the first load, compressed by itself; with or without the comments of its source."""
    commented = (*needed(), WEB / "style.css", WEB / "theme.js")
    texts = {file.relative_to(WEB).as_posix(): file.read_text() for file in commented}
    if not comments:
        texts = {name: without_comments(text) for name, text in texts.items()}
    texts |= {name: (WEB / name).read_text() for name in ("index.html", "icon.svg")}
    return {name: len(gzip.compress(text.encode(), _GZIP_LEVEL)) for name, text in texts.items()}


def main() -> int:
    """Print each file, largest first, and the sum; 1 where that is above the bound."""
    sizes = first_load()
    for name, size in sorted(sizes.items(), key=lambda one: -one[1]):
        print(f"{size:7,} {name}")
    total = sum(sizes.values())
    written = sum(first_load(comments=True).values())
    verdict = "ok" if total <= MOST_FIRST_BYTES else "TOO LARGE"
    print(
        f"{total:7,} bytes in {len(sizes)} files (with comments {written:,}); at most {MOST_FIRST_BYTES:,}: {verdict}"
    )
    return int(total > MOST_FIRST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
