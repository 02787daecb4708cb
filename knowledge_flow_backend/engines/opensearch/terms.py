"""The words of a text that are searched, for an engine whose own analysis does not split names of code.

The same as the function `search_words` in Postgres: both engines find a name by its parts, its tails and whole.
"""

import re
import string
from collections.abc import Iterator
from typing import Final

_BLANKS: Final = str.maketrans(dict.fromkeys(string.punctuation, " "))
# Matches from the first of its signs on, whatever follows: nothing is read twice.
_DOTTED: Final = re.compile(r"[0-9A-Za-z_]+(?:\.[0-9A-Za-z_]+)*")
_MAX_PARTS: Final = 8
"""Of a name: a line of dots costs no more than prose."""
_MAX_NAME: Final = 200


def spelled(text: str) -> str:
    """The text without punctuation, and the names in it: `asyncio.gather()` is `asyncio gather asyncio.gather`."""
    names = {tail for parts in _names(text) for tail in _tails(parts)}
    return f"{text.translate(_BLANKS)} {' '.join(sorted(names))}".rstrip()


def _names(text: str) -> Iterator[list[str]]:
    """The parts of each word that has dots or underscores within."""
    for dotted in _DOTTED.findall(text):
        parts = dotted.split(".")
        for start in range(0, len(parts), _MAX_PARTS):
            yield parts[start : start + _MAX_PARTS]


def _tails(parts: list[str]) -> list[str]:
    tails = (".".join(parts[start:]) for start in range(len(parts)))
    return [tail for tail in tails if ("." in tail or "_" in tail) and tail.strip("_.") and len(tail) <= _MAX_NAME]
